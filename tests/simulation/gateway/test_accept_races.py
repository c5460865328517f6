"""Gateways race on one identity in seeded interleavings, over a store that loses responses.

The acceptor is the one of the product; the loop, the store and the faults are simulated. The
history of each run is checked, and so is the final content of the store.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from support import mutants
from support.history import UploadResult, broken_guarantees
from support.queue_store import Faults, SimStore
from support.queue_store import SimClock as StoreClock
from support.simloop import SimClock, SimIds, SimLoop, seeds, simulate

import sluice_gateway.uploads.acceptor as shell
from sluice_gateway.uploads.acceptor import AcceptanceRun, Acceptor, Upload
from sluice_protocol.acceptance import Accepted, Conflict
from sluice_protocol.authority import Authority
from sluice_protocol.frame import Envelope
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key, blob_key, digest_of
from sluice_protocol.manifests import decode_accepted
from sluice_protocol.outcomes import Applied, Found

IDENTITY = Identity(agent_id="a", boot_id="b", seq_start=0, seq_end=0)
BODIES = (b"first bytes", b"other bytes")
UPLOADS = 4
SENDS_MAX = 40


def upload_of(body: bytes, attempt_id: str, *, sent_before: bool) -> Upload:
    envelope = Envelope(
        agent_id="a", boot_id="b", seq_start=0, seq_end=0, count=1, kind="logs",
        min_ts_ns=0, max_ts_ns=0, resource=(),
    )  # fmt: skip
    return Upload(
        frame=body,
        digest=digest_of(body),
        identity=IDENTITY,
        envelope=envelope,
        principal="p",
        attempt_id=attempt_id,
        sent_before=sent_before,
    )


def told_of(run: AcceptanceRun, body: bytes, asked: float, told: float) -> UploadResult:
    status, duplicate = 0, None
    if isinstance(run.verdict, Accepted):
        status, duplicate = 200, run.verdict.duplicate
    if isinstance(run.verdict, Conflict):
        status = 409
    return UploadResult(
        identity="i", digest=body.decode(), asked=asked, told=told, status=status,
        duplicate=duplicate,
    )  # fmt: skip


@dataclass
class WatchedStore(SimStore):
    """A store that records each manifest that appears before its blob."""

    alone: list[str] = field(default_factory=list)

    def _put(self, key: str, body: bytes) -> Applied:
        if key == accepted_key(IDENTITY):
            digest = decode_accepted(accepted_key(IDENTITY), body).digest
            if blob_key(digest) not in self.held:
                self.alone.append(f"a manifest appears before its blob {digest}")
        return super()._put(key, body)


def race(seed: int) -> tuple[list[UploadResult], WatchedStore]:
    """Run agents that send until they have a verdict; some gateways die during an upload."""

    async def main(loop: SimLoop, rng: Random) -> tuple[list[UploadResult], WatchedStore]:
        store = WatchedStore(
            clock=StoreClock(), faults=Faults(rng=rng, unknown=rng.choice([0, 0.2, 0.5]))
        )
        history: list[UploadResult] = []
        died: set[int] = set()

        def gateway() -> Acceptor:
            return Acceptor(
                store=store, authority=Authority(authority_id="x"), collector_id="g",
                clock=SimClock(loop), rng=rng, time_s_max=30,
            )  # fmt: skip

        async def agent(number: int, body: bytes) -> None:
            for sends in range(SENDS_MAX):
                asked = loop.time()
                again = sends > 0 and rng.random() < 0.5
                upload = upload_of(body, SimIds(rng).ulid(), sent_before=again)
                handling = asyncio.ensure_future(gateway().accept(upload))
                if number not in died and rng.random() < 0.2:
                    died.add(number)
                    loop.call_later(rng.random() / 1000, handling.cancel)
                try:
                    run = await handling
                except asyncio.CancelledError:
                    run = AcceptanceRun()
                history.append(told_of(run, body, asked, loop.time() + 1e-9))
                if history[-1].status:
                    return
                await asyncio.sleep(rng.random())

        await asyncio.gather(*(agent(n, rng.choice(BODIES)) for n in range(UPLOADS)))
        store.faults = None
        return history, store

    return simulate(seed, main)


def wrong(history: list[UploadResult], store: WatchedStore) -> list[str]:
    """Return every promise that a run broke, by its history and the final content of the store."""

    async def look() -> list[str]:
        found = await store.get(accepted_key(IDENTITY))
        if not isinstance(found, Found):
            return ["no manifest"] if any(told.status == 200 for told in history) else []
        owner = decode_accepted(accepted_key(IDENTITY), found.body).frame_sha256
        owners = {told.digest for told in history if told.status == 200}
        lost = [
            f"blob of {told.digest} is gone"
            for told in history
            if told.status
            and not isinstance(await store.get(blob_key(digest_of(told.digest.encode()))), Found)
        ]
        wrongly = [f"200 for {one}" for one in owners if digest_of(one.encode()) != owner]
        return lost + wrongly

    return broken_guarantees(history) + asyncio.run(look()) + store.alone


def test_races_keep_every_promise() -> None:
    """Hundreds of interleavings with lost responses, late writes and dying gateways."""
    for seed in seeds(400):
        history, store = race(seed)
        assert wrong(history, store) == [], f"replay with SLUICE_SIM_SEEDS={seed}"
        assert any(told.status == 200 for told in history)


def test_one_seed_replays() -> None:
    """A seed produces the same history twice, so that a failure can be analysed."""
    assert race(11)[0] == race(11)[0]


@pytest.mark.parametrize("mutant", [mutants.exists_is_success], ids=lambda m: m.__name__)
def test_planted_bug_is_found(
    mutant: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulation fails when the machine is broken, so that its success is evidence."""
    monkeypatch.setattr(shell, "step", mutant)
    assert any(wrong(*race(seed)) for seed in range(200))
