"""A store that enforces the rendered policies: the simulator decides every call of one role."""

from collections.abc import AsyncIterator

from sluice_policies.evaluate import evaluate, request_for
from sluice_policies.policy_set import PolicySet
from sluice_policies.settings import RoleName
from sluice_protocol.errors import StoreDenied
from sluice_protocol.outcomes import (
    CreateOutcome,
    DeleteOutcome,
    GetOutcome,
    HeadOutcome,
    OverwriteOutcome,
    ReplaceOutcome,
)
from sluice_protocol.units import Digest, ETag, ObjectKey, ObjectVersion
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
