"""Source ranges: which samples the table `rollups` contains, and which deletes it honours.

A source range is created by a conditional write and never changes. For each lane, range n contains
the queue sequence after which it starts, where range n - 1 ends, and the sequence at which it ends.
The object exists before its rows. The table contains the rows of range n only if the version of its
transaction `ROLLUP_APP` is at least n. A reader takes the number from the state of the table that
it reads, never from a listing of the objects.

A range honours a set of deletes of any size, whose record has a bounded size. Only a set of ids
states exactly which deletes were applied. Ids and times do not order deletes: a writer may stop for
days between the choice of an id and the creation of the record. A record therefore lists its newest
ids and names objects, the parts, that contain the others. A part never changes. Each part contains
more than twice as many ids as the next one, so 10 parts are enough for a million ids, and an id is
written to a part about 10 times.
"""

import hashlib
import zlib
from collections.abc import Collection, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from sluice_protocol.clock import IdSource
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import ROLLUP
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, create_known

LISTED_MAX: Final = 1_000
"""Ids that a record lists before they become a part."""
_GROWTH: Final = 2


class IdsPart(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to an object with ids, one a line, sorted and compressed by zlib."""

    key: str
    sha256: str
    count: int
    first: str
    last: str


class DeleteIds(msgspec.Struct, frozen=True, kw_only=True):
    """A set of ids of deletes: sorted ids that are listed, and parts, the largest first."""

    listed: tuple[str, ...] = ()
    parts: tuple[IdsPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteIdsReader:
    """Reads sets of ids; the ids of each part are kept by its sha256."""

    store: ObjectStore
    known: MutableMapping[str, frozenset[str]] = field(default_factory=dict)

    async def read(self, found: DeleteIds, wanted: Collection[str] | None = None) -> frozenset[str]:
        """Return the ids of a set.

        Parts that cannot contain a `wanted` id are not read. None returns all ids.
        """
        ids = set(found.listed)
        for part in found.parts:
            if wanted is None or any(part.first <= one <= part.last for one in wanted):
                ids |= await self._read_part(part)
        return frozenset(ids if wanted is None else ids.intersection(wanted))

    async def _read_part(self, part: IdsPart) -> frozenset[str]:
        known = self.known.get(part.sha256)
        if known is None:
            read = await self.store.get(ObjectKey(part.key))
            if not isinstance(read, Found):
                raise InvalidRecord(part.key, "ids of deletes are missing")
            known = self.known[part.sha256] = _decode_part(part, read.body)
        return known


def _decode_part(part: IdsPart, body: bytes) -> frozenset[str]:
    if hashlib.sha256(body).hexdigest() != part.sha256:
        raise InvalidRecord(part.key, "ids of deletes have another digest than their reference")
    return frozenset(zlib.decompress(body).decode().splitlines())


def _encode_part(ids: Sequence[str]) -> bytes:
    return zlib.compress("\n".join(ids).encode(), 9)


async def with_ids(
    reader: DeleteIdsReader,
    before: DeleteIds,
    new: Iterable[str],
    *,
    prefix: str,
    ids: IdSource,
    backoff: Backoff,
) -> DeleteIds:
    """Return a set with more ids; write a part if too many would be listed.

    A part exists before a record that names it. If the caller stops in between, the part is named
    by no record and is removed at an age. A new id may be in the set already if it is listed.
    """
    listed = sorted({*before.listed, *new})
    if len(listed) <= LISTED_MAX:
        return DeleteIds(listed=tuple(listed), parts=before.parts)
    parts, merged = list(before.parts), set(listed)
    while parts and parts[-1].count <= _GROWTH * len(merged):
        merged |= await reader.read(DeleteIds(parts=(parts.pop(),)))
    found = sorted(merged)
    body = _encode_part(found)
    part = IdsPart(
        key=f"{prefix}{ids.ulid()}.txt.z",
        sha256=hashlib.sha256(body).hexdigest(),
        count=len(found),
        first=found[0],
        last=found[-1],
    )
    await create_known(reader.store, ObjectKey(part.key), body, backoff)
    return DeleteIds(parts=(*parts, part))


async def remove_old_parts(
    store: ObjectStore, prefix: str, named: Collection[str], before_ns: int
) -> int:
    """Delete the parts that were written before a time and that no record names; return how many.

    A part that is not older is kept: a record that names it may be written next.
    """
    removed = 0
    async for page in store.list_incarnations(prefix):
        for one in page.incarnations:
            is_old = not one.marker and one.last_modified_ns < before_ns
            if is_old and one.key not in named:
                await store.delete(one.key, one.incarnation)
                removed += 1
    return removed


SOURCE_RANGES_PREFIX: Final = f"{ROLLUP}source-ranges/"
HONOURED_DELETES_PREFIX: Final = f"{ROLLUP}deletes/"
"""Parts of the sets of deletes that source ranges honour."""
ROLLUP_APP: Final = "sluice-rollup"
"""The application id whose transaction version is the last source range in the table."""


class SourceRange(msgspec.Struct, frozen=True, kw_only=True):
    """One source range; a lane that is not named is at 0.

    The rows of the table `rollups` contain every sample up to `through`, and honour `deletes`, if
    the version of the table's transaction `sluice-rollup` is `number` (ADR 34).

    Attributes:
        number: 1, 2, 3 … without gaps.
        after: Lane to the last sequence before the range.
        through: Lane to the last sequence of the range.
        deletes: The deletes that apply to every row up to this range. For those that the range
            before did not contain, the affected hours are aggregated again (ADR 35).
        metrics_version: A version of the table `metrics` without rows later than `through`, so that
            the next range needs only files that were added after it; None if none is known.
    """

    schema: Literal["sluice.source_range.v3"] = "sluice.source_range.v3"
    number: int
    after: dict[str, int]
    through: dict[str, int]
    deletes: DeleteIds = DeleteIds()
    metrics_version: int | None = None

    def ends(self, lane: int) -> tuple[int, int]:
        """Return the sequences of a lane: after the first, through the second."""
        return self.after.get(str(lane), 0), self.through.get(str(lane), 0)


async def add_honoured(
    reader: DeleteIdsReader,
    before: SourceRange | None,
    new: Iterable[str],
    ids: IdSource,
    backoff: Backoff,
) -> DeleteIds:
    """Return the deletes of the range after `before`; parts that it names exist then."""
    known = before.deletes if before is not None else DeleteIds()
    return await with_ids(
        reader, known, new, prefix=HONOURED_DELETES_PREFIX, ids=ids, backoff=backoff
    )


def source_range_key(number: int) -> ObjectKey:
    """Return the key of a source range."""
    return ObjectKey(f"{SOURCE_RANGES_PREFIX}{number:020d}.json")


async def read_source_range(store: ObjectStore, number: int) -> SourceRange | None:
    """Read a source range; return None if it does not exist."""
    key = source_range_key(number)
    read = await store.get(key)
    return decode_record(key, read.body, SourceRange) if isinstance(read, Found) else None
