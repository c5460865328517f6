"""One fault at every store call of an upload, in every mode; and a store that fails permanently."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.gateway import CountingStore, TestKey, bodies_under, frame_of, identity, run, running

from sluice_gateway.uploads.acceptor import Acceptor
from sluice_protocol.errors import StoreDenied, StoreUnavailable
from sluice_protocol.keys import ACCEPTED, accepted_key, blob_key, digest_of
from sluice_protocol.outcomes import (
    CreateOutcome,
    GetOutcome,
    HeadOutcome,
    OverwriteOutcome,
    Unknown,
    UnknownReason,
)
from sluice_protocol.units import Digest, ObjectKey
from sluice_store import StoreMode, open_store

HOST = TestKey("host-1", ("host-1",))
MODES = ("before", "lost", "conflict", "late", "never")


@dataclass
class Faults:
    """The nth call fails in one mode, or every call from the nth on."""

    nth: int
    mode: str
    for_good: bool = False
    seen: int = 0
    late: list[asyncio.Task[object]] = field(default_factory=list)

    def due(self) -> bool:
        self.seen += 1
        return self.seen == self.nth or (self.for_good and self.seen > self.nth)


class FaultyStore(CountingStore):
    """A store whose calls fail before sending, after applying, late, or never."""

    faults = Faults(nth=0, mode="before")

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        if not self.faults.due():
            return await super().create(key, body, sha256=sha256)
        return await self._write(key, super().create(key, body, sha256=sha256))

    async def overwrite(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> OverwriteOutcome:
        if not self.faults.due():
            return await super().overwrite(key, body, sha256=sha256)
        return await self._write(key, super().overwrite(key, body, sha256=sha256))

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        if self.faults.due():
            await self._read(key)
        return await super().get(key, first=first, last=last)

    async def head(self, key: ObjectKey) -> HeadOutcome:
        if self.faults.due():
            await self._read(key)
        return await super().head(key)

    async def _read(self, key: str) -> None:
        if self.faults.mode == "never":
            await asyncio.Event().wait()
        raise StoreUnavailable("get", key, "planned fault")

    async def _write(self, key: str, call: "asyncio.Future[object] | object") -> Unknown:
        coroutine = call
        match self.faults.mode:
            case "before":
                coroutine.close()  # type: ignore[attr-defined]
                raise StoreUnavailable("create", key, "planned fault")
            case "denied":
                coroutine.close()  # type: ignore[attr-defined]
                raise StoreDenied("create", key, "planned fault")
            case "conflict":
                coroutine.close()  # type: ignore[attr-defined]
                return Unknown(reason=UnknownReason.CONFLICT)
            case "lost":
                await coroutine  # type: ignore[misc]
                return Unknown(reason=UnknownReason.TIMEOUT)
            case "late":
                self.faults.late.append(asyncio.create_task(_later(coroutine)))
                return Unknown(reason=UnknownReason.RESET)
            case _:
                coroutine.close()  # type: ignore[attr-defined]
                await asyncio.Event().wait()
                raise AssertionError


async def _later(call: object) -> object:
    await asyncio.sleep(0.12)
    return await call  # type: ignore[misc]


def upload_with(tmp_path: Path, faults: Faults, *, prepare: str = "") -> list[tuple[int, str]]:
    """Upload once with faults and once without; return status and code or duplicate."""
    said: list[tuple[int, str]] = []

    async def main() -> None:
        url = f"file://{tmp_path}/store"
        async with open_store(url, StoreMode.CREATE) as inner:
            store = FaultyStore(inner)
            async with running(tmp_path, HOST, store=store, cache_entries_max=0) as served:
                if prepare:
                    await served.client.upload(frame_of(text=prepare))
                store.faults = faults
                bounded = faults.mode == "never" or faults.for_good
                for limit_s in (0.4 if bounded else 20.0, 20.0):
                    # Only a call that must time out gets little time: the machine may be busy.
                    acceptor = served.gateway.uploads.acceptor
                    assert isinstance(acceptor, Acceptor)
                    acceptor._time_s_max = limit_s
                    answer = await served.client.upload(frame_of(text="mine"))
                    kind = answer.body.get("code", str(answer.body.get("duplicate")))
                    said.append((answer.status, kind))
                    store.faults = Faults(nth=0, mode="before")
                await asyncio.gather(*faults.late)

    run(main())
    return said


@pytest.mark.daily(3)
@pytest.mark.parametrize("mode", MODES)
def test_one_fault_at_every_call_of_a_new_upload(tmp_path: Path, mode: str) -> None:
    """A single fault is repaired inside the upload: 200, new, and the store has one acceptance.

    A call without a response costs the bounded time and ends in 503 `outcome_unknown`; the next
    upload of the same bytes is then accepted.
    """
    for nth in range(1, 20):
        faults = Faults(nth=nth, mode=mode)
        first, second = upload_with(tmp_path / str(nth), faults)
        url = f"file://{tmp_path / str(nth)}/store"
        stored = asyncio.run(bodies_under(url, ""))
        assert blob_key(digest_of(frame_of(text="mine"))) in stored
        assert accepted_key(identity()) in stored
        if faults.seen < nth:
            assert first == (200, "False") or mode == "never"
            return
        wanted = (503, "outcome_unknown") if mode == "never" else (200, "False")
        assert first == wanted, nth
        if mode != "never":
            assert second == (200, "True"), nth
        else:  # the write may have succeeded or not; the batch is accepted now either way
            assert second[0] == 200, nth
    raise AssertionError("the upload never ran without a fault")


@pytest.mark.daily(3)
@pytest.mark.parametrize("mode", MODES)
def test_one_fault_at_every_call_of_a_conflict(tmp_path: Path, mode: str) -> None:
    """A conflict is reported only with its record, whichever call failed; never a 200."""
    for nth in range(1, 20):
        faults = Faults(nth=nth, mode=mode)
        first, second = upload_with(tmp_path / str(nth), faults, prepare="theirs")
        assert second == (409, "identity_conflict")
        if faults.seen < nth:
            assert first == (409, "identity_conflict") or mode == "never"
            return
        assert first[0] in ({503, 409} if mode == "never" else {409}), nth
        accepted = asyncio.run(bodies_under(f"file://{tmp_path / str(nth)}/store", ACCEPTED))
        assert len(accepted) == 1
    raise AssertionError("the upload never ran without a fault")


@pytest.mark.parametrize(
    ("mode", "code"),
    [
        ("before", "store_unavailable"),
        ("denied", "store_unavailable"),
        ("conflict", "outcome_unknown"),
        ("never", "outcome_unknown"),
    ],
)
def test_a_store_that_fails_permanently(tmp_path: Path, mode: str, code: str) -> None:
    """503 within the bounded time, and 200 as soon as the store is reachable."""
    first, second = upload_with(tmp_path, Faults(nth=1, mode=mode, for_good=True))
    assert first == (503, code)
    assert second == (200, "False")
