"""The doctor names the broken promise of each deliberately broken store, and none of good ones."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.memory_bucket import Fault, Scripted, open_memory_store
from support.store_broken import BROKEN, Honest

from sluice_protocol.errors import InvalidRecord, StoreMisconfigured, StoreUnavailable
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store import open_local_store
from sluice_store.doctor import (
    PROBES,
    RESULTS,
    RESULTS_KEPT,
    DoctorResult,
    examine,
    open_result,
    read_doctor,
    require_doctor,
    seal_result,
    write_result,
)
from sluice_store.port import ObjectStore


def _examine(store: ObjectStore) -> DoctorResult:
    return asyncio.run(examine([store], ["memory:"], SystemIds()))


@pytest.mark.parametrize("name", BROKEN)
def test_doctor_names_the_broken_promise(name: str) -> None:
    """Each broken store fails its probe, with what was seen and the consequence."""
    make, wanted = BROKEN[name]
    broken = {one.probe: one for one in _examine(make()).findings if not one.kept}
    for probe in wanted:
        assert probe in broken
        assert broken[probe].seen
        assert broken[probe].cost


@pytest.mark.parametrize("make", [make for make, _ in BROKEN.values()])
def test_broken_promise_of_acceptance_stops_a_gateway_from_starting(
    make: Callable[[], Honest],
) -> None:
    """A result with a broken promise that acceptance needs is refused, with promise and
    consequence.
    """

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
    """The model of S3 keeps every promise, so the broken stores fail for their changes only."""
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


def test_doctor_removes_every_object_of_its_probes() -> None:
    """Every object version that the probes wrote is removed."""

    async def run() -> None:
        store, transport = open_memory_store()
        await examine([store], ["memory:"], SystemIds())
        assert list(transport.bucket.incarnations("", "")) == []

    asyncio.run(run())


def test_doctor_has_no_result_for_an_unreachable_store() -> None:
    """An unreachable store is unavailable, not broken."""
    store, _ = open_memory_store(plan=Scripted(dict.fromkeys(range(1000), Fault.NOT_SENT)))
    with pytest.raises(StoreUnavailable):
        _examine(store)


def test_require_doctor_refuses_a_store_without_a_result() -> None:
    """A store without a doctor's result is refused, and the message names the command."""
    store, _ = open_memory_store()
    with pytest.raises(StoreMisconfigured, match="sluice doctor"):
        asyncio.run(require_doctor(store))


def test_newest_doctor_result_is_used() -> None:
    """A later bad result replaces an earlier good one."""

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


def test_old_results_are_removed() -> None:
    """Every check writes a result; only the newest ones stay."""

    async def run() -> None:
        store, _ = open_memory_store()
        good = await examine([Honest()], ["memory:"], SystemIds())
        for number in range(RESULTS_KEPT + 3):
            one = msgspec.structs.replace(good, ended_at_unix_ns=good.ended_at_unix_ns + number)
            await write_result(store, one, seal_result(one), SystemClock())
        keys = [one.key async for page in store.list(RESULTS) for one in page.objects]
        assert len(keys) == RESULTS_KEPT
        newest = await read_doctor(store)
        assert newest is not None
        assert newest.ended_at_unix_ns == good.ended_at_unix_ns + RESULTS_KEPT + 2

    asyncio.run(run())


def test_doctor_result_is_bound_and_signed() -> None:
    """A truncated, edited or unsigned result, or one signed by another key, is refused."""
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
