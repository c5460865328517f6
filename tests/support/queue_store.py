"""A small store in memory for the queue's simulations: seeded faults on writes, a virtual clock."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from ulid import ULID

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
from sluice_protocol.units import NS_PER_S, Digest, ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_store.port import IncarnationPage, ListedObject, ListPage, ObjectStore, Versioning

START_NS = 1_700_000_000 * NS_PER_S


class SimClock:
    """Virtual time: a sleep advances it and yields to the other tasks."""

    def __init__(self) -> None:
        self.at_ns = START_NS

    def now_ns(self) -> UnixNs:
        return UnixNs(self.at_ns)

    def monotonic_ns(self) -> int:
        return self.at_ns

    async def sleep(self, seconds: float) -> None:
        self.at_ns += int(seconds * NS_PER_S)
        await asyncio.sleep(0)


class SimIds:
    """ULIDs from a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def ulid(self) -> str:
        return str(ULID(self._rng.randbytes(16)))


@dataclass
class Faults:
    """Rates of unknown outcomes, and the real outcome: applied, lost, or applied late."""

    rng: random.Random
    unknown: float = 0.0


@dataclass
class _Held:
    body: bytes
    generation: int
    modified_ns: int


class OneByOne:
    """The verbs for many objects by those for one, for a store that passes on what it has not."""

    create_many = ObjectStore.create_many
    get_many = ObjectStore.get_many
    head_many = ObjectStore.head_many


@dataclass
class SimStore(ObjectStore):
    """Keys in a dict, with ETags as S3 makes them (a hash of the bytes), so that ABA would show."""

    clock: SimClock = field(default_factory=SimClock)
    faults: Faults | None = None
    held: dict[str, _Held] = field(default_factory=dict)
    late: list[tuple[str, ObjectKey, bytes, ETag | None]] = field(default_factory=list)
    generation: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    before: Callable[[str, str], object] = field(default=lambda _verb, _key: None)
    """Called with the verb and the key or prefix of each call, which it may refuse by raising."""

    def _tick(self) -> UnixNs:
        self.clock.at_ns += 1000
        return UnixNs(self.clock.at_ns)

    @staticmethod
    def etag(body: bytes) -> ETag:
        return ETag(f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"')

    async def _begin(self, verb: str, key: str) -> None:
        self.before(verb, key)
        await self._turn()

    async def _turn(self) -> None:
        for _ in range(self.faults.rng.randrange(4) if self.faults else 1):
            await asyncio.sleep(0)
        if self.faults and self.late and self.faults.rng.random() < 0.3:
            verb, key, body, match = self.late.pop(self.faults.rng.randrange(len(self.late)))
            if verb == "create" and key not in self.held:
                self._put(key, body)
            if verb == "replace" and key in self.held and self.etag(self.held[key].body) == match:
                self._put(key, body)

    def _put(self, key: str, body: bytes) -> Applied:
        self.generation += 1
        now = self._tick()
        self.held[key] = _Held(body=body, generation=self.generation, modified_ns=now)
        return Applied(
            etag=self.etag(body), incarnation=ObjectVersion(str(self.generation)), date_ns=now
        )

    def _lost(self, verb: str, key: ObjectKey, body: bytes, match: ETag | None) -> bool | None:
        """None: no fault. True: applied, response lost. False: not applied now, perhaps later."""
        self.counts[verb] = self.counts.get(verb, 0) + 1
        if self.faults is None or self.faults.rng.random() >= self.faults.unknown:
            return None
        fate = self.faults.rng.randrange(3)
        if fate == 2:
            self.late.append((verb, key, body, match))
        return fate == 0

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        await self._begin("create", key)
        lost = self._lost("create", key, body, None)
        if lost is False:
            return Unknown(reason=UnknownReason.TIMEOUT)
        outcome: CreateOutcome = (
            Exists(date_ns=self._tick()) if key in self.held else self._put(key, body)
        )
        return Unknown(reason=UnknownReason.RESET) if lost else outcome

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        await self._begin("replace", key)
        lost = self._lost("replace", key, body, if_match)
        if lost is False:
            return Unknown(reason=UnknownReason.TIMEOUT)
        same = key in self.held and self.etag(self.held[key].body) == if_match
        outcome: ReplaceOutcome = self._put(key, body) if same else Mismatch(date_ns=self._tick())
        return Unknown(reason=UnknownReason.CONFLICT) if lost else outcome

    async def overwrite(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> OverwriteOutcome:
        await self._begin("overwrite", key)
        return self._put(key, body)

    def _info(self, key: ObjectKey) -> ObjectInfo:
        held = self.held[key]
        return ObjectInfo(
            key=key,
            size_bytes=len(held.body),
            etag=self.etag(held.body),
            incarnation=ObjectVersion(str(held.generation)),
            last_modified_ns=UnixNs(held.modified_ns),
            sha256=Digest(hashlib.sha256(held.body).hexdigest()),
            date_ns=self._tick(),
        )

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        await self._begin("get", key)
        self.counts["get"] = self.counts.get("get", 0) + 1
        if key not in self.held:
            return NotFound(date_ns=self._tick())
        end = None if last is None else last + 1
        return Found(info=self._info(key), body=self.held[key].body[first:end])

    async def head(self, key: ObjectKey) -> HeadOutcome:
        await self._begin("head", key)
        self.counts["head"] = self.counts.get("head", 0) + 1
        return self._info(key) if key in self.held else NotFound(date_ns=self._tick())

    async def head_incarnation(self, key: ObjectKey, incarnation: ObjectVersion) -> HeadOutcome:
        found = await self.head(key)
        if isinstance(found, ObjectInfo) and found.incarnation != incarnation:
            return NotFound(date_ns=self._tick())
        return found

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        await self._begin("delete", key)
        if key in self.held and str(self.held[key].generation) == incarnation:
            del self.held[key]
        return Deleted(date_ns=self._tick())

    async def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        inside = [
            key
            for key in self.held
            if key.startswith(prefix) and key > start_after and (end_at is None or key <= end_at)
        ]
        keys = sorted(inside, key=str.encode)
        pages = [keys[at : at + 1000] for at in range(0, len(keys), 1000)] or [[]]
        for index, page in enumerate(pages):
            await self._begin("list", prefix)
            self.counts["list"] = self.counts.get("list", 0) + 1
            listed = tuple(
                ListedObject(
                    key=ObjectKey(key),
                    size_bytes=len(self.held[key].body),
                    etag=self.etag(self.held[key].body),
                    last_modified_ns=UnixNs(self.held[key].modified_ns),
                )
                for key in page
                if key in self.held
            )
            yield ListPage(objects=listed, date_ns=self._tick(), last=index == len(pages) - 1)

    async def list_incarnations(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[IncarnationPage]:
        yield IncarnationPage(incarnations=(), date_ns=self._tick(), last=True)

    async def read_versioning(self) -> Versioning:
        return Versioning.ENABLED


class CrowdedStore(SimStore):
    """A store that records how many reads are made at the same time."""

    running = 0
    most = 0

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        found = await super().get(key, first=first, last=last)
        self.running -= 1
        return found


class UnversionedStore(SimStore):
    """A bucket without versioning: no read shows an object version."""

    def _info(self, key: ObjectKey) -> ObjectInfo:
        return replace(super()._info(key), incarnation=None)
