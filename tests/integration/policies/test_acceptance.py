"""The gateway behind the rendered policies: it can work, and the optional rule has its
consequences.

A store that enforces the rendered policies: the simulator decides every call of one role.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from support.builders import make_identity, salted_frame
from support.frames import logs
from support.memory_bucket.transport import open_memory_store
from support.policies_live import settings

from sluice_gateway.uploads.acceptor import AcceptanceRun, Acceptor, Upload
from sluice_gateway.uploads.service import unfinished_refusal
from sluice_policies.evaluate import evaluate, request_for
from sluice_policies.policy_set import PolicySet, policy_set
from sluice_policies.settings import RoleName, Settings, Target
from sluice_protocol.acceptance import Accepted, Conflict, RetriesExhausted
from sluice_protocol.authority import Authority
from sluice_protocol.errors import StoreDenied, status_of
from sluice_protocol.frame import decode_head
from sluice_protocol.keys import blob_key, digest_of
from sluice_protocol.outcomes import (
    CreateOutcome,
    DeleteOutcome,
    GetOutcome,
    HeadOutcome,
    ObjectInfo,
    OverwriteOutcome,
    ReplaceOutcome,
)
from sluice_protocol.units import NS_PER_S, Digest, ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_store.port import IncarnationPage, ListPage, ObjectStore, Versioning


class PolicedStore(ObjectStore):
    """A store behind policies, as S3 is."""

    def __init__(self, inner: ObjectStore, policies: PolicySet, role: RoleName) -> None:
        self._inner, self._policies, self._role = inner, policies, role

    def _must(self, action: str, key: str | None, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = request_for(self._policies, self._role.value, action, key, named)
        decision = evaluate(self._policies, request)
        if not decision.allowed:
            raise StoreDenied(action, key or "", f"access denied by {decision.sid}")

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        self._must("s3:PutObject", key, if_none_match="*")
        return await self._inner.create(key, body, sha256=sha256)

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        self._must("s3:PutObject", key, if_match=if_match)
        return await self._inner.replace(key, body, if_match=if_match)

    async def overwrite(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> OverwriteOutcome:
        self._must("s3:PutObject", key)
        return await self._inner.overwrite(key, body, sha256=sha256)

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        self._must("s3:GetObject", key)
        return await self._inner.get(key, first=first, last=last)

    async def head(self, key: ObjectKey) -> HeadOutcome:
        self._must("s3:GetObject", key)
        return await self._inner.head(key)

    async def head_incarnation(self, key: ObjectKey, incarnation: ObjectVersion) -> HeadOutcome:
        self._must("s3:GetObjectVersion", key)
        return await self._inner.head_incarnation(key, incarnation)

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        self._must("s3:DeleteObjectVersion", key)
        return await self._inner.delete(key, incarnation)

    async def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        whole = f"{self._policies.settings.bucket.prefix}{prefix}"
        self._must("s3:ListBucket", None, **{"s3:prefix": whole})
        async for page in self._inner.list(prefix, start_after=start_after, end_at=end_at):
            yield page

    async def list_incarnations(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[IncarnationPage]:
        whole = f"{self._policies.settings.bucket.prefix}{prefix}"
        self._must("s3:ListBucketVersions", None, **{"s3:prefix": whole})
        pages = self._inner.list_incarnations(prefix, start_after=start_after, end_at=end_at)
        async for page in pages:
            yield page

    async def read_versioning(self) -> Versioning:
        self._must("s3:GetBucketVersioning", None)
        return await self._inner.read_versioning()


DAY_S = 86_400
ONCE = settings(("[notifications]", "[raw_blobs]\nrequire_if_none_match = true\n[notifications]"))
FREE = settings()


@dataclass
class Hands:
    """A clock that the test sets and that never waits."""

    now_s: int = 1_800_000_000

    def now_ns(self) -> UnixNs:
        return UnixNs(self.now_s * NS_PER_S)

    def monotonic_ns(self) -> int:
        return self.now_s * NS_PER_S

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@dataclass
class Scene:
    """A gateway on a versioned bucket behind policies."""

    chosen: Settings
    clock: Hands = field(default_factory=Hands)

    def __post_init__(self) -> None:
        self.bare: ObjectStore = open_memory_store(clock=self.clock)[0]
        self.policies = policy_set(self.chosen, Target.AWS)

    def as_role(self, name: RoleName) -> PolicedStore:
        return PolicedStore(self.bare, self.policies, name)

    async def upload(self, frame: bytes) -> AcceptanceRun:
        acceptor = Acceptor(
            store=self.as_role(RoleName.GATEWAY),
            authority=Authority(authority_id="A1"),
            collector_id="c1",
            clock=self.clock,
            rng=random.Random(1),
            time_s_max=30.0,
        )
        head = decode_head(frame)
        return await acceptor.accept(
            Upload(
                frame=frame,
                digest=digest_of(frame),
                identity=head.envelope.identity,
                envelope=head.envelope,
                principal="host-1",
                attempt_id=f"{self.clock.now_s:026d}",
                sent_before=False,
            )
        )


def frame(salt: str = "a") -> bytes:
    return salted_frame(make_identity(count=3, boot="b"), logs(), salt)


@pytest.mark.parametrize("chosen", [FREE, ONCE], ids=["free", "once"])
async def test_the_gateway_accepts_and_quarantines_behind_the_policies(chosen: Settings) -> None:
    scene = Scene(chosen)
    first = await scene.upload(frame("a"))
    again = await scene.upload(frame("a"))
    other = await scene.upload(frame("b"))
    assert isinstance(first.verdict, Accepted)
    assert isinstance(again.verdict, Accepted)
    assert isinstance(other.verdict, Conflict)


async def orphan(scene: Scene) -> bytes:
    """Create a blob that no manifest names, and advance the clock until it is old."""
    body = frame("orphan")
    await scene.as_role(RoleName.GATEWAY).create(blob_key(digest_of(body)), body)
    scene.clock.now_s += 30 * DAY_S
    return body


async def test_an_old_orphan_is_refreshed_when_the_rule_is_off() -> None:
    scene = Scene(FREE)
    assert isinstance((await scene.upload(await orphan(scene))).verdict, Accepted)


async def test_with_the_rule_an_old_orphan_is_503_until_gc_deletes_it() -> None:
    scene = Scene(ONCE)
    body = await orphan(scene)
    for _ in range(2):
        run = await scene.upload(body)
        assert isinstance(run.verdict, RetriesExhausted)
        assert status_of(unfinished_refusal(run).code) == 503
    key = blob_key(digest_of(body))
    found = await scene.bare.head(key)
    assert isinstance(found, ObjectInfo)
    assert found.incarnation is not None
    await scene.as_role(RoleName.GC).delete(key, found.incarnation)
    assert isinstance((await scene.upload(body)).verdict, Accepted)


async def test_with_the_rule_an_old_referenced_blob_is_a_duplicate() -> None:
    scene = Scene(ONCE)
    assert isinstance((await scene.upload(frame())).verdict, Accepted)
    scene.clock.now_s += 30 * DAY_S
    late = (await scene.upload(frame())).verdict
    assert isinstance(late, Accepted)
    assert late.duplicate


async def test_only_gc_deletes_a_blob_through_the_port() -> None:
    scene = Scene(FREE)
    await scene.upload(frame())
    key = blob_key(digest_of(frame()))
    found = await scene.bare.head(key)
    assert isinstance(found, ObjectInfo)
    assert found.incarnation is not None
    for name in RoleName:
        if name is not RoleName.GC:
            with pytest.raises(StoreDenied, match="BlobVersionsByGcAlone"):
                await scene.as_role(name).delete(key, found.incarnation)
