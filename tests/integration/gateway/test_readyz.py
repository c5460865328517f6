"""`/readyz` reports the newest result of the doctor without a store call."""

from pathlib import Path

import msgspec
from support.gateway import Running, TestKey, run, running

from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store.doctor import examine, seal_result, write_result

HOST = TestKey("host-1", ("host-1",))


async def note_result(served: Running, number: int, *, kept: bool) -> None:
    """Write a result that is newer than the last and keeps or breaks one condition."""
    store = served.store.inner
    result = await examine([store], ["file:///test"], SystemIds())
    first, *others = result.findings
    planted = msgspec.structs.replace(first, kept=kept, seen="planted", cost="data")
    later = msgspec.structs.replace(
        result,
        findings=(planted, *others),
        ended_at_unix_ns=result.ended_at_unix_ns + number,
    )
    await write_result(store, later, seal_result(later), SystemClock())


async def test_readyz_follows_the_newest_probe(tmp_path: Path) -> None:
    """Ready after a good result, not ready after a bad one, ready again after the next good one."""
    async with running(tmp_path, HOST) as served:
        await served.gateway.readiness.check_store()
        for number, kept in enumerate((True, False, True)):
            await note_result(served, number, kept=kept)
            await served.gateway.readiness.check_doctor()
            served.store.calls.clear()
            status, text = await served.client.get("/readyz")
            assert status == (200 if kept else 503)
            assert ("planted" in text or "breaks" in text) != kept
            assert served.store.calls == []


def test_a_store_without_a_result_is_not_ready(tmp_path: Path) -> None:
    """A store without a result is not ready, unless the probe is skipped."""

    async def body(*, skip_probe: bool, wanted: int) -> None:
        folder = tmp_path / str(skip_probe)
        folder.mkdir()
        async with running(folder, HOST, skip_probe=skip_probe) as served:
            await served.gateway.readiness.check_store()
            await served.gateway.readiness.check_doctor()
            assert (await served.client.get("/readyz"))[0] == wanted

    run(body(skip_probe=False, wanted=503))
    run(body(skip_probe=True, wanted=200))
