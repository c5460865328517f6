"""The doctor: it names the broken promise of each planted store, and finds none in good ones."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.store_broken import BROKEN, Honest

from sluice_protocol.errors import InvalidRecord, StoreMisconfigured, StoreUnavailable
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store import open_local_store
from sluice_store.doctor import PROBES, examine
from sluice_store.doctor_result import (
    DoctorResult,
    open_result,
    read_doctor,
    require_doctor,
    seal_result,
    write_result,
)
from sluice_store.memory import Fault, Scripted, open_memory_store
from sluice_store.port import ObjectStore


def _examine(store: ObjectStore) -> DoctorResult:
    return asyncio.run(examine([store], ["memory:"], SystemIds()))


@pytest.mark.parametrize("name", BROKEN)
def test_doctor_names_the_broken_promise(name: str) -> None:
    """Each planted store is found by its probe, with what was seen and what it would cost."""
    make, wanted = BROKEN[name]
    broken = {one.probe: one for one in _examine(make()).findings if not one.kept}
    for probe in wanted:
        assert probe in broken
        assert broken[probe].seen
        assert broken[probe].cost


@pytest.mark.parametrize("make", [make for make, _ in BROKEN.values()])
def test_doctor_lets_no_gateway_start_on_broken_acceptance(make: Callable[[], Honest]) -> None:
    """A result that breaks what acceptance needs is refused, naming promise and cost."""

    async def run() -> None:
        result = await examine([make()], ["memory:"], SystemIds())
        good, _ = open_memory_store()
        await write_result(good, result, seal_result(result), SystemClock())
        if result.good:
            assert (await require_doctor(good)).result_id == result.result_id
        else:
            with pytest.raises(StoreMisconfigured, match="else"):
                await require_doctor(good)

    asyncio.run(run())


def test_doctor_finds_nothing_in_the_honest_fake() -> None:
    """The model of S3 keeps every promise; that the planted ones fail is their doing."""
    result = _examine(Honest())
    assert [one for one in result.findings if not one.kept] == []
    assert [one.probe for one in result.findings] == [probe.name for probe in PROBES]


def test_doctor_finds_nothing_in_a_directory(tmp_path: Path) -> None:
    """The local store keeps every promise, through two handles on it."""

    async def run() -> DoctorResult:
        async with open_local_store(tmp_path) as one, open_local_store(tmp_path) as other:
            return await examine([one, other], ["file://", "file://"], SystemIds())

    result = asyncio.run(run())
    assert [one for one in result.findings if not one.kept] == []


def test_doctor_leaves_nothing_behind() -> None:
    """What the probes wrote is removed, every incarnation of it."""

    async def run() -> None:
        store, transport = open_memory_store()
        await examine([store], ["memory:"], SystemIds())
        assert list(transport.bucket.incarnations("", "")) == []

    asyncio.run(run())


def test_doctor_judges_nothing_without_an_answer() -> None:
    """A store that does not answer is unavailable, not broken."""
    store, _ = open_memory_store(plan=Scripted(dict.fromkeys(range(1000), Fault.NOT_SENT)))
    with pytest.raises(StoreUnavailable):
        _examine(store)


def test_require_doctor_asks_for_a_probe() -> None:
    """A store that was never probed is refused, and the message names the command."""
    store, _ = open_memory_store()
    with pytest.raises(StoreMisconfigured, match="sluice doctor"):
        asyncio.run(require_doctor(store))


def test_doctor_result_newest_counts() -> None:
    """A later bad result takes the place of an earlier good one."""

    async def run() -> None:
        store, _ = open_memory_store()
        good = await examine([Honest()], ["memory:"], SystemIds())
        bad = await examine([BROKEN["ignores checksums"][0]()], ["memory:"], SystemIds())
        await write_result(store, good, seal_result(good), SystemClock())
        await write_result(store, bad, seal_result(bad), SystemClock())
        newest = await read_doctor(store)
        assert newest is not None
        assert newest.result_id == bad.result_id
        assert not newest.good

    asyncio.run(run())


def test_doctor_result_is_bound_and_signed() -> None:
    """A cut, edited, unsigned or otherwise signed result is refused where keys are trusted."""
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    result = _examine(Honest())
    sealed = seal_result(result, key=key, key_id="op")
    trusted = {"op": key.public_key()}
    assert open_result("k", sealed, trusted) == result
    for bad in (
        sealed.replace(b'\\"kept\\":true', b'\\"kept\\":false', 1),
        sealed[:-10],
        seal_result(result),
        seal_result(result, key=other, key_id="op"),
        seal_result(result, key=key, key_id="unknown"),
    ):
        with pytest.raises(InvalidRecord):
            open_result("k", bad, trusted)
    assert open_result("k", seal_result(result)) == result
