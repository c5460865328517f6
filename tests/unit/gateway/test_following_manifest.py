"""Acceptance into a store that creates the manifest right after its blob."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from support.store_groups import ALWAYS_GROUPS, CountedSync

from sluice_gateway.acceptor import AcceptanceRun, Acceptor
from sluice_gateway.uploads import Upload
from sluice_protocol.acceptance import Accepted, Conflict
from sluice_protocol.authority import Authority
from sluice_protocol.envelope import Envelope
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key, blob_key, digest_of
from sluice_protocol.manifests import decode_accepted
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.system_clock import SystemClock
from sluice_store.local import LocalStore, open_local_store

IDENTITY = Identity(agent_id="a", boot_id="b", seq_start=0, seq_end=0)
SECOND_NAMES = 2
"""The sync of a group after which the names of manifests are durable."""


def upload_of(body: bytes, attempt_id: str = "01ARZ3NDEKTSV4RRFFQ69G5FAA") -> Upload:
    envelope = Envelope(
        agent_id="a", boot_id="b", seq_start=0, seq_end=0, count=1, kind="logs",
        min_ts_ns=0, max_ts_ns=0, resource=(),
    )  # fmt: skip
    return Upload(
        frame=body, digest=digest_of(body), identity=IDENTITY, envelope=envelope, principal="p",
        attempt_id=attempt_id, sent_before=False,
    )  # fmt: skip


Accept = Callable[[Upload], Awaitable[AcceptanceRun]]


def acceptor_of(store: LocalStore, collector_id: str = "g") -> Acceptor:
    return Acceptor(
        store=store, authority=Authority(authority_id="x"), collector_id=collector_id,
        clock=SystemClock(), rng=random.Random(1), time_s_max=30,
    )  # fmt: skip


def play(root: Path, work: Callable[[Accept, LocalStore, CountedSync], Awaitable[None]]) -> None:
    async def main() -> None:
        syncs = CountedSync(root)
        async with open_local_store(root, filesystem=syncs, limits=ALWAYS_GROUPS) as store:
            await work(acceptor_of(store).accept, store, syncs)

    asyncio.run(main())


def test_an_accept_has_three_syncs_instead_of_four(tmp_path: Path) -> None:
    """The manifest has the time of the store at which the blob was written."""

    async def work(accept: Accept, store: LocalStore, syncs: CountedSync) -> None:
        run = await accept(upload_of(b"first bytes"))
        assert syncs.calls == 3
        blob = await store.head(blob_key(digest_of(b"first bytes")))
        manifest = await store.get(accepted_key(IDENTITY))
        assert isinstance(blob, ObjectInfo)
        assert isinstance(manifest, Found)
        assert run.verdict == Accepted(duplicate=False, accepted_at_ns=blob.last_modified_ns)
        assert run.manifest == manifest.body
        decoded = decode_accepted(accepted_key(IDENTITY), manifest.body)
        assert decoded.accepted_at_ns == blob.last_modified_ns
        assert manifest.info.last_modified_ns > blob.last_modified_ns

    play(tmp_path, work)


def test_the_same_bytes_are_a_duplicate_and_others_a_conflict(tmp_path: Path) -> None:
    async def work(accept: Accept, store: LocalStore, _: CountedSync) -> None:
        await accept(upload_of(b"first bytes"))
        owner = await store.get(accepted_key(IDENTITY))
        again = await accept(upload_of(b"first bytes", "01ARZ3NDEKTSV4RRFFQ69G5FAB"))
        assert isinstance(again.verdict, Accepted)
        assert again.verdict.duplicate
        other = await accept(upload_of(b"other bytes", "01ARZ3NDEKTSV4RRFFQ69G5FAC"))
        assert other.verdict == Conflict(accepted_digest=digest_of(b"first bytes"))
        kept = await store.get(accepted_key(IDENTITY))
        assert isinstance(owner, Found)
        assert isinstance(kept, Found)
        assert kept.body == owner.body

    play(tmp_path, work)


def test_a_manifest_with_an_unknown_outcome_is_created_again(tmp_path: Path) -> None:
    """Its first create named it, so the second one finds the manifest of this upload."""

    async def work(accept: Accept, _: LocalStore, syncs: CountedSync) -> None:
        syncs.failing = frozenset({SECOND_NAMES})
        run = await accept(upload_of(b"first bytes"))
        assert isinstance(run.verdict, Accepted)
        assert not run.verdict.duplicate
        assert run.own_write_met
        assert run.unsure

    play(tmp_path, work)


def test_a_manifest_of_another_gateway_is_copied_as_it_is(tmp_path: Path) -> None:
    """A spool transfers the manifest that it acknowledged."""

    async def work(accept: Accept, store: LocalStore, _: CountedSync) -> None:
        first = await accept(upload_of(b"first bytes"))
        moved = msgspec.structs.replace(upload_of(b"first bytes"), manifest=first.manifest)
        target = tmp_path / "target"
        syncs = CountedSync(target)
        async with open_local_store(target, filesystem=syncs, limits=ALWAYS_GROUPS) as authority:
            run = await acceptor_of(authority, "h").accept(moved)
            there = await authority.get(accepted_key(IDENTITY))
        assert isinstance(there, Found)
        assert there.body == run.manifest == first.manifest

    play(tmp_path / "spool", work)
