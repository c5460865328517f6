"""A versioned store in memory that behaves as S3, with hooks for races.

Last-Modified is truncated to seconds. After the delete of the current version the previous one is
current. A create over a delete marker succeeds. Without versioning every write replaces the version
`null`.
"""

import asyncio
import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, takewhile

from sluice_protocol.clock import Clock
from sluice_protocol.errors import ChecksumRefused, StoreUnavailable
from sluice_protocol.keys import digest_of
from sluice_protocol.outcomes import (
    Applied,
    CreateOutcome,
    Deleted,
    DeleteOutcome,
    Exists,
    Found,
    GetOutcome,
    HeadOutcome,
    Mismatch,
    NotFound,
    ObjectInfo,
    OverwriteOutcome,
    ReplaceOutcome,
    Unknown,
    UnknownReason,
)
from sluice_protocol.units import (
    NS_PER_S,
    NULL_VERSION,
    Digest,
    ETag,
    ObjectKey,
    ObjectVersion,
    UnixNs,
)
from sluice_store.port import (
    IncarnationPage,
    ListedIncarnation,
    ListedObject,
    ListPage,
    ObjectStore,
    Versioning,
)

PAGE = 1000
Hook = Callable[[], Awaitable[None] | None]


@dataclass(frozen=True)
class SimulatedVersion:
    """One stored version."""

    body: bytes
    incarnation: ObjectVersion
    at_ns: int

    @cached_property
    def sha256(self) -> Digest:
        return digest_of(self.body)

    @cached_property
    def etag(self) -> ETag:
        return ETag(f'"{self.sha256[:32]}"')

    @cached_property
    def stamp_ns(self) -> UnixNs:
        return UnixNs(self.at_ns // NS_PER_S * NS_PER_S)


@dataclass
class VersionedStore(ObjectStore):
    """A versioned store: a dict from each key to its versions, newest first.

    Attributes:
        clock: The clock of the store.
        rng: Selects faults; None means no faults.
        latency_s: Longest duration of a request, in virtual seconds.
        unknown: Share of writes and deletes with an unknown outcome.
        hooks: Each runs once, before the given operation on the given key.
        deleted: Every version that a delete removed, in order.
        late: Deletes that will be applied later or repeated.
    """

    clock: Clock
    rng: random.Random | None = None
    unknown: float = 0.0
    latency_s: float = 0.0
    versioning: list[Versioning] = field(default_factory=lambda: [Versioning.ENABLED])
    versions: dict[ObjectKey, list[SimulatedVersion]] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)
    hooks: dict[tuple[str, str], Hook] = field(default_factory=dict)
    deleted: list[tuple[ObjectKey, SimulatedVersion]] = field(default_factory=list)
    late: list[tuple[ObjectKey, ObjectVersion]] = field(default_factory=list)
    on_delete: Callable[[ObjectKey, SimulatedVersion], None] = lambda _key, _version: None
    on_put: Callable[[ObjectKey], None] = lambda _key: None
    counter: int = 0
    requests: dict[str, int] = field(default_factory=dict)

    async def _turn(self, verb: str, key: str) -> None:
        self.requests[verb] = self.requests.get(verb, 0) + 1
        await asyncio.sleep(self.rng.random() * self.latency_s if self.rng else 0)
        hook = self.hooks.pop((verb, key), None)
        if hook is not None:
            waiting = hook()
            if waiting is not None:
                await waiting
        if self.rng is not None and self.late and self.rng.random() < 0.2:
            self._remove(*self.late.pop(self.rng.randrange(len(self.late))))

    def _date(self) -> UnixNs:
        return UnixNs(self.clock.now_ns() // NS_PER_S * NS_PER_S)

    def _fault(self) -> bool | None:
        """Return None for no fault, True for a lost response, False for a lost request."""
        if self.rng is None or self.rng.random() >= self.unknown:
            return None
        return self.rng.random() < 0.5

    def put(self, key: ObjectKey, body: bytes) -> Applied:
        """Write a version immediately, without faults."""
        held = self.versions.get(key)
        if held is None:
            held = self.versions[key] = []
            insort(self.keys, key.encode())
        self.counter += 1
        keeps = self.versioning[0] is Versioning.ENABLED
        incarnation = ObjectVersion(f"v{self.counter:08d}") if keeps else NULL_VERSION
        held[:] = [one for one in held if one.incarnation != incarnation]
        version = SimulatedVersion(body=body, incarnation=incarnation, at_ns=self.clock.now_ns())
        held.insert(0, version)
        self.on_put(key)
        return Applied(etag=version.etag, incarnation=incarnation, date_ns=self._date())

    def remove_key(self, key: ObjectKey) -> None:
        """Remove a key with all its versions, which no component of sluice does."""
        if self.versions.pop(key, None) is not None:
            self.keys.remove(key.encode())

    def _remove(self, key: ObjectKey, incarnation: ObjectVersion) -> None:
        for one in list(self.versions.get(key, ())):
            if one.incarnation == incarnation:
                self.on_delete(key, one)
                self.deleted.append((key, one))
                self.versions[key].remove(one)
        if key in self.versions and not self.versions[key]:
            self.remove_key(key)

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        self._check(key, body, sha256)
        await self._turn("create", key)
        fault = self._fault()
        if fault is False:
            return Unknown(reason=UnknownReason.TIMEOUT)
        if key in self.versions:
            return Exists(date_ns=self._date())
        applied = self.put(key, body)
        return Unknown(reason=UnknownReason.RESET) if fault else applied

    def _check(self, key: ObjectKey, body: bytes, sha256: Digest | None) -> None:
        if sha256 is not None and sha256 != digest_of(body):
            raise ChecksumRefused("create", key, "the body does not match its checksum")

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        await self._turn("replace", key)
        held = self.versions.get(key)
        if held is None or held[0].etag != if_match:
            return Mismatch(date_ns=self._date())
        return self.put(key, body)

    async def overwrite(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> OverwriteOutcome:
        self._check(key, body, sha256)
        await self._turn("overwrite", key)
        fault = self._fault()
        if fault is False:
            return Unknown(reason=UnknownReason.TIMEOUT)
        applied = self.put(key, body)
        return Unknown(reason=UnknownReason.RESET) if fault else applied

    def _info(self, key: ObjectKey, one: SimulatedVersion) -> ObjectInfo:
        return ObjectInfo(
            key=key,
            size_bytes=len(one.body),
            etag=one.etag,
            incarnation=one.incarnation,
            last_modified_ns=one.stamp_ns,
            sha256=one.sha256,
            date_ns=self._date(),
        )

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        await self._turn("get", key)
        held = self.versions.get(key)
        if held is None:
            return NotFound(date_ns=self._date())
        end = None if last is None else last + 1
        return Found(info=self._info(key, held[0]), body=held[0].body[first:end])

    async def head(self, key: ObjectKey) -> HeadOutcome:
        await self._turn("head", key)
        held = self.versions.get(key)
        return NotFound(date_ns=self._date()) if held is None else self._info(key, held[0])

    async def head_incarnation(self, key: ObjectKey, incarnation: ObjectVersion) -> HeadOutcome:
        await self._turn("head_incarnation", key)
        for one in self.versions.get(key, ()):
            if one.incarnation == incarnation:
                return self._info(key, one)
        return NotFound(date_ns=self._date())

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        await self._turn("delete", key)
        fault = self._fault()
        if fault is False:
            self.late.append((key, incarnation))
            return Unknown(reason=UnknownReason.TIMEOUT)
        self._remove(key, incarnation)
        if fault:
            self.late.append((key, incarnation))
            return Unknown(reason=UnknownReason.RESET)
        return Deleted(date_ns=self._date())

    def _names(self, prefix: str, after: str, end: str | None) -> list[ObjectKey]:
        at = bisect_right(self.keys, after.encode()) if after else 0
        at = max(at, bisect_left(self.keys, prefix.encode()))
        held = takewhile(lambda raw: raw.startswith(prefix.encode()), islice(self.keys, at, None))
        return [ObjectKey(raw.decode()) for raw in held if end is None or raw <= end.encode()]

    async def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        await self._turn("list", prefix)
        names = self._names(prefix, start_after, end_at)
        for at in range(0, len(names) or 1, PAGE):
            await self._turn("list_page", prefix)
            yield ListPage(
                objects=tuple(
                    ListedObject(
                        key=key,
                        size_bytes=len(self.versions[key][0].body),
                        etag=self.versions[key][0].etag,
                        last_modified_ns=self.versions[key][0].stamp_ns,
                    )
                    for key in names[at : at + PAGE]
                    if key in self.versions
                ),
                date_ns=self._date(),
                last=at + PAGE >= len(names),
            )

    async def list_incarnations(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[IncarnationPage]:
        await self._turn("list_incarnations", prefix)
        names = self._names(prefix, start_after, end_at)
        for at in range(0, len(names) or 1, PAGE):
            yield IncarnationPage(
                incarnations=tuple(
                    ListedIncarnation(
                        key=key,
                        incarnation=one.incarnation,
                        current=number == 0,
                        marker=False,
                        size_bytes=len(one.body),
                        etag=one.etag,
                        last_modified_ns=one.stamp_ns,
                    )
                    for key in names[at : at + PAGE]
                    for number, one in enumerate(self.versions.get(key, ()))
                ),
                date_ns=self._date(),
                last=at + PAGE >= len(names),
            )

    async def read_versioning(self) -> Versioning:
        """Return the first of `versioning`; each read removes one until one is left."""
        await self._turn("read_versioning", "")
        return self.versioning.pop(0) if len(self.versioning) > 1 else self.versioning[0]


def refuse_reads() -> None:
    """Fail a read, as a hook."""
    raise StoreUnavailable("get", "", "no response")
