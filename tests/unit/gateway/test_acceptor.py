"""What an upload's run reports when the store refuses a write, or when its time runs out."""

import asyncio
import random

from support.gateway import CountingStore
from support.gc_world import MovedClock
from support.memory_bucket import open_memory_store

from sluice_gateway.uploads.acceptor import AcceptanceRun, Acceptor, Upload
from sluice_protocol.acceptance import Accepted, Conflict, RetriesExhausted
from sluice_protocol.authority import Authority
from sluice_protocol.errors import ChecksumRefused, StoreDenied
from sluice_protocol.frame import Envelope
from sluice_protocol.identity import Identity
from sluice_protocol.keys import ACCEPTED, accepted_key, blob_key, digest_of, quarantine_by_blob_key
from sluice_protocol.outcomes import CreateOutcome, ObjectInfo, OverwriteOutcome
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey

FRAME = b"first bytes"
AUTHORITY = Authority(authority_id="x")
WHO = Identity(agent_id="a", boot_id="b", seq_start=0, seq_end=0)


class RefusingStore(CountingStore):
    """Creates never return under a prefix, or are refused once; overwrites are denied."""

    hangs = "never"
    damaged = 0

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        if key.startswith(self.hangs):
            await asyncio.Event().wait()
        if self.damaged:
            self.damaged -= 1
            raise ChecksumRefused("create", key, "planned")
        return await super().create(key, body, sha256=sha256)

    async def overwrite(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> OverwriteOutcome:
        raise StoreDenied("overwrite", key, "planned")


async def accept(
    store: RefusingStore,
    clock: MovedClock,
    *,
    frame: bytes = FRAME,
    sent_before: bool = False,
    time_s_max: float = 30,
) -> AcceptanceRun:
    envelope = Envelope(
        agent_id="a", boot_id="b", seq_start=0, seq_end=0, count=1, kind="logs",
        min_ts_ns=0, max_ts_ns=0, resource=(),
    )  # fmt: skip
    acceptor = Acceptor(
        store=store, authority=AUTHORITY, collector_id="g", clock=clock,
        rng=random.Random(1), time_s_max=time_s_max,
    )  # fmt: skip
    return await acceptor.accept(
        Upload(
            frame=frame,
            digest=digest_of(frame),
            identity=WHO,
            envelope=envelope,
            principal="p",
            attempt_id="0" * 26,
            sent_before=sent_before,
        )
    )


def made() -> tuple[RefusingStore, MovedClock]:
    clock = MovedClock()
    return RefusingStore(open_memory_store(clock=clock)[0]), clock


def test_time_that_runs_out_during_a_write_leaves_its_outcome_unknown() -> None:
    """The response must not state that nothing was stored."""
    store, clock = made()
    store.hangs = ACCEPTED
    run = asyncio.run(accept(store, clock, time_s_max=0.02))
    assert (run.verdict, run.unsure) == (RetriesExhausted(), True)


def test_a_blob_that_was_damaged_on_its_way_to_the_store_is_sent_again() -> None:
    store, clock = made()
    store.damaged = 1
    run = asyncio.run(accept(store, clock))
    assert isinstance(run.verdict, Accepted)
    assert isinstance(run.failure, ChecksumRefused)
    assert not run.unsure


def test_a_retry_reads_the_manifest_before_it_writes() -> None:
    store, clock = made()
    asyncio.run(accept(store, clock, sent_before=True))
    assert store.calls[0] == ("get", accepted_key(WHO))


async def test_an_accept_is_repeated_from_memory_for_half_of_the_window_of_its_proof() -> None:
    """The proof is the blob, which may be older than the upload."""
    half_ns = AUTHORITY.proof_window_ns // 2
    store, clock = made()
    assert (await accept(store, clock)).cacheable_ns == half_ns
    clock.pass_s(60)
    assert (await accept(store, clock)).cacheable_ns == half_ns - 60 * NS_PER_S


async def test_a_conflict_has_a_reverse_reference() -> None:
    """A deletion reads it; without it the refused bytes would be kept by the envelope only."""
    store, clock = made()
    await accept(store, clock)
    run = await accept(store, clock, frame=b"other bytes")
    assert run.verdict == Conflict(accepted_digest=digest_of(FRAME))
    assert isinstance(
        await store.head(quarantine_by_blob_key(digest_of(b"other bytes"), WHO)), ObjectInfo
    )


async def test_an_old_orphan_that_may_not_be_overwritten_is_tried_again_later() -> None:
    """A policy that forbids it is no reason for an error: the orphan is deleted some day."""
    store, clock = made()
    await store.create(blob_key(digest_of(FRAME)), FRAME, sha256=digest_of(FRAME))
    clock.pass_s(AUTHORITY.retry_horizon_s)
    run = await accept(store, clock)
    assert run.verdict == RetriesExhausted()
