"""What uploads over HTTP leave in the acceptance journal of a gateway in this process."""

import asyncio
from pathlib import Path

import pytest
from support.gateway import (
    CountingStore,
    Running,
    TestKey,
    bodies_under,
    frame_of,
    identity,
    running,
)
from support.gateway_journal import MachineClock, journals, named, registrations

from sluice_gateway.journal import AcceptanceJournal
from sluice_protocol.errors import ErrorCode, StoreDenied
from sluice_protocol.journals import FENCE_S
from sluice_protocol.keys import ACCEPTED, GATEWAY_PROCESSES, GATEWAYS, accepted_key
from sluice_protocol.outcomes import CreateOutcome
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import Digest, ObjectKey
from sluice_store import StoreMode, open_store
from sluice_web.problems import HttpRefusal

HOST = TestKey("host-1", ("host-1",))


def journal_of(served: Running) -> AcceptanceJournal:
    journal = served.gateway.uploads.journal
    assert isinstance(journal, AcceptanceJournal)
    return journal


class Watched(CountingStore):
    """A store that lets time pass before a manifest is created, and may deny journals."""

    machine: MachineClock | None = None
    pass_s = 0.0
    denied = False

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        if self.denied and key.startswith(GATEWAYS):
            raise StoreDenied("create", key, "planned")
        if self.machine is not None and key.startswith(ACCEPTED):
            self.machine.pass_s(self.pass_s)
        return await super().create(key, body, sha256=sha256)


def with_clock(served: Running) -> MachineClock:
    """Give the journal a clock that the test moves."""
    clock = MachineClock(SystemClock().now_ns())
    clock.suspended_ns = SystemClock().boottime_ns() - clock.at_ns
    journal_of(served)._clock = clock
    return clock


async def test_an_entry_is_the_exact_manifest_and_a_cached_duplicate_adds_none(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, HOST) as served:
        for _ in range(3):
            assert (await served.client.upload(frame_of())).status == 200
        await journal_of(served).write_due()
        bodies = await bodies_under(f"file://{tmp_path}/store", "")
        stored = bodies[accepted_key(identity())]
        (written,) = [body for key, body in bodies.items() if "/journals/" in key]
        assert written.split(b"\n")[1:] == [stored, b""]


async def test_a_duplicate_is_journaled_by_a_gateway_that_has_not_journaled_it(
    tmp_path: Path,
) -> None:
    """The first gateway created the manifest and died before it wrote its journal."""
    async with running(tmp_path, HOST) as first:
        assert (await first.client.upload(frame_of())).status == 200
    async with running(tmp_path, HOST, cache_entries_max=0) as second:
        answer = await second.client.upload(frame_of())
        assert (answer.status, answer.body["duplicate"]) == (200, True)
        await journal_of(second).write_due()
        found = await journals(second.store)
        assert {process: named(objects) for process, objects in found.items()} == {
            journal_of(second).process: [0]
        }


async def test_an_entry_is_noted_before_the_answer_is_decided(tmp_path: Path) -> None:
    async with running(tmp_path, HOST) as served:
        journal = journal_of(served)

        async def refuse() -> None:
            assert journal._book.waiting == 1
            raise HttpRefusal(ErrorCode.OUTCOME_UNKNOWN, "planned")

        journal.require_current = refuse  # type: ignore[method-assign]
        answer = await served.client.upload(frame_of())
        assert (answer.status, answer.body["effect"]) == (503, "unknown")


@pytest.mark.parametrize("cached", [True, False])
async def test_the_fence_is_checked_after_the_manifest_exists(
    tmp_path: Path, *, cached: bool
) -> None:
    """A worker that stalls in its last store call registers again before it responds."""
    async with open_store(f"file://{tmp_path}/store", StoreMode.CREATE) as inner:
        store = Watched(inner)
        async with running(tmp_path, HOST, store=store) as served:
            clock = with_clock(served)
            if cached:
                assert (await served.client.upload(frame_of())).status == 200
                clock.pass_s(FENCE_S + 1)
            else:
                store.machine, store.pass_s = clock, FENCE_S + 1
            served.store.calls.clear()
            assert (await served.client.upload(frame_of())).status == 200
            assert len(await registrations(inner)) == 2
            creates = [key for op, key in served.store.calls if op == "create"]
            assert creates[-1].startswith(GATEWAY_PROCESSES)
            await journal_of(served).write_due()
            assert named((await journals(inner))[journal_of(served).process]) == [0]


async def test_a_gateway_that_cannot_journal_answers_503_and_is_not_ready(tmp_path: Path) -> None:
    """The manifest exists: the effect is unknown, and a retry through another gateway gets 200."""
    async with open_store(f"file://{tmp_path}/store", StoreMode.CREATE) as inner:
        store = Watched(inner)
        async with (
            running(tmp_path, HOST, store=store) as served,
            running(tmp_path / "other", HOST, store=CountingStore(inner)) as other,
        ):
            clock = with_clock(served)
            store.denied = True
            store.machine, store.pass_s = clock, FENCE_S + 1
            answer = await served.client.upload(frame_of())
            assert (answer.status, answer.body["effect"]) == (503, "unknown")
            assert accepted_key(identity()) in await bodies_under(
                f"file://{tmp_path}/store", ACCEPTED
            )
            await served.gateway.readiness.check_store()
            status, body = await served.client.get("/readyz")
            assert status == 503
            assert "journal" in body or "gateways/" in body
            retried = await other.client.upload(frame_of())
            assert (retried.status, retried.body["duplicate"]) == (200, True)
            await journal_of(other).write_due()
            assert named((await journals(inner))[journal_of(other).process]) == [0]


async def test_a_conflict_is_not_journaled(tmp_path: Path) -> None:
    async with running(tmp_path, HOST) as served:
        await served.client.upload(frame_of(text="owner"))
        assert (await served.client.upload(frame_of(text="other"))).status == 409
        await journal_of(served).write_due()
        (objects,) = (await journals(served.store)).values()
        assert [one.frame_sha256 for one in objects[0].manifests] != []
        assert len(named(objects)) == 1


async def test_an_upload_makes_no_further_store_call(tmp_path: Path) -> None:
    """The journal costs objects per second, not requests per upload."""
    async with running(tmp_path, HOST) as served:
        await served.client.upload(frame_of())
        assert [op for op, _ in served.store.calls] == ["create", "create"]
        await asyncio.sleep(0)
