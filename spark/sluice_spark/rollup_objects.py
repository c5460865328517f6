"""Covers: which points a rollup chunk is made of, decided once and for ever by conditional create.

Cover n says, lane by lane, after which queue sequence it begins and with which it ends; it begins
where cover n - 1 ended. Whoever creates it first decides the ends; every other owner then makes the
same chunks. So no point is counted twice or left out, whoever runs, and late data is in a later
source, never in a changed chunk. A cover also says which deletes the rollups honour from it on.

Rollup chunks: the rows of a cover as immutable objects, one per window, hour and metric.

    <cover>.lmrollup.zst        the rows of the points that this cover brought
    <cover>-all.lmrollup.zst    every row of that hour up to this source: older chunks do not count

A reader takes the last `-all` of an hour and what has a higher number, or everything where there is
none. What no longer counts is removed by whoever finishes the cover (ADR 0057).
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from sluice_protocol.errors import OutcomeUnknown
from sluice_protocol.keys import ROLLUP, rollup_key
from sluice_protocol.lake import ROLLUPS
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Applied, Exists, Found
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_spark.schemas import arrow_schema
from sluice_store import ObjectStore, open_store

COVERS = f"{ROLLUP}covers/"
TRIES_MAX: Final = 5


class SourceRange(msgspec.Struct, frozen=True, kw_only=True):
    """One cover; a lane that is not named stands at 0.

    Attributes:
        number: 1, 2, 3 … without gaps.
        after: Lane to the last sequence that is not in it any more.
        through: Lane to the last sequence that is in it.
        deletes: The deletes that every row up to this cover honours, in order; the ones that the
            cover before lacks made its owner do the touched hours again (ADR 0057).
    """

    schema: str = "sluice.rollup_cover.v1"
    number: int
    after: dict[str, int]
    through: dict[str, int]
    deletes: tuple[str, ...] = ()

    def ends(self, lane: int) -> tuple[int, int]:
        """Gives the ends of a lane: after the first, through the second."""
        return self.after.get(str(lane), 0), self.through.get(str(lane), 0)


def source_range_key(number: int) -> ObjectKey:
    """Gives the key of a source."""
    return ObjectKey(f"{COVERS}{number:020d}.json")


async def read_source_range(store: ObjectStore, number: int) -> SourceRange | None:
    """Reads a source, or gives None where there is none.

    Raises:
        InvalidRecord: It is not of this schema.
        StoreError: The store did not answer.
    """
    key = source_range_key(number)
    answer = await store.get(key)
    return decode_record(key, answer.body, SourceRange) if isinstance(answer, Found) else None


async def next_source_range(
    store: ObjectStore,
    previous: SourceRange | None,
    ends: Mapping[int, int],
    deletes: Collection[str] = (),
) -> SourceRange | None:
    """Gives the cover after `previous`: the one that stands, or one up to `ends`.

    Returns:
        None where nothing has come: neither points nor, after a first source, deletes.

    Raises:
        OutcomeUnknown: The bounds are spent.
        StoreError: The store did not answer.
    """
    number = previous.number + 1 if previous is not None else 1
    standing = await read_source_range(store, number)
    if standing is not None:
        return standing
    after = dict(previous.through) if previous is not None else {}
    through = after | {
        str(lane): end for lane, end in ends.items() if end > after.get(str(lane), 0)
    }
    known = frozenset(previous.deletes) if previous is not None else frozenset(deletes)
    honoured = tuple(sorted(known.union(deletes)))
    if through == after and known.issuperset(deletes):
        return None
    wanted = SourceRange(number=number, after=after, through=through, deletes=honoured)
    for _ in range(TRIES_MAX):
        match await store.create(source_range_key(number), encode_record(wanted)):
            case Applied():
                return wanted
            case Exists():
                return await read_source_range(store, number)
            case _:
                continue
    raise OutcomeUnknown("create", source_range_key(number), TRIES_MAX)


WHOLE: Final = "whole"
"""Column of rows on their way into chunks: whether the hour of the row is written whole."""
HOUR_S: Final = 3600
_DIGITS: Final = 20
UNITS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupUnit:
    """What one chunk is about: a window's length, a metric, an hour."""

    window: str
    name: str
    hour_ns: UnixNs

    def key(self, chunk_id: str) -> ObjectKey:
        """Gives the key of a chunk of it."""
        return rollup_key(self.window, self.name, self.hour_ns, chunk_id)


def chunk_name(source: SourceRange, *, whole: bool) -> str:
    """Gives the id of a cover's chunks; its first 20 characters are the cover's number."""
    return f"{source.number:0{_DIGITS}d}{'-all' if whole else ''}"


async def put_chunks(store_url: str, source: SourceRange, rows: pa.Table) -> None:
    """Creates a chunk per window, hour and metric; one that stands already is as good.

    Raises:
        OutcomeUnknown: The bounds are spent.
        StoreError: The store did not answer.
    """
    async with open_store(store_url) as store:
        for key, body in encode_chunks(source, rows):
            for _ in range(TRIES_MAX):
                if isinstance(await store.create(key, body), Applied | Exists):
                    break
            else:
                raise OutcomeUnknown("create", key, TRIES_MAX)


def encode_chunks(source: SourceRange, rows: pa.Table) -> Iterator[tuple[ObjectKey, bytes]]:
    """Gives the chunks of rows: each the zstd of an Arrow IPC stream of the table's columns.

    Rows of older covers go into chunks of whole hours only: elsewhere they have theirs.
    """
    own = pc.equal(rows.column("cover"), source.number)
    rows = rows.filter(pc.or_(rows.column(WHOLE), own))
    wholes = rows.column(WHOLE).to_pylist()
    stored = rows.select([column.name for column in ROLLUPS.stored_columns])
    plain = stored.cast(arrow_schema(ROLLUPS, partition=False))
    places: dict[tuple[RollupUnit, bool], list[int]] = {}
    names = plain.column("name").to_pylist()
    windows = plain.column("window").to_pylist()
    for number, start in enumerate(plain.column("window_start").to_pylist()):
        unit = RollupUnit(window=windows[number], name=names[number], hour_ns=_hour_ns(start))
        places.setdefault((unit, wholes[number]), []).append(number)
    for (unit, whole), numbers in places.items():
        yield unit.key(chunk_name(source, whole=whole)), _ipc(plain.take(numbers))


def _hour_ns(start: datetime) -> UnixNs:
    seconds = int(start.astimezone(UTC).timestamp())
    return UnixNs((seconds - seconds % HOUR_S) * NS_PER_S)


def _ipc(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return zstandard.ZstdCompressor(level=3).compress(sink.getvalue().to_pybytes())


async def delete_superseded_chunks(
    store: ObjectStore, source: SourceRange, units: Iterable[RollupUnit]
) -> int:
    """Removes the chunks of hours that a cover wrote whole and that are older; gives how many.

    Every version of them goes: they hold figures of deleted points. Repeating it is harmless.

    Raises:
        StoreError: The store did not answer.
    """
    dropped = 0
    for some in _batched(units):
        dropped += sum(await asyncio.gather(*(_drop_older(store, source, unit) for unit in some)))
    return dropped


def _batched(units: Iterable[RollupUnit]) -> Iterator[list[RollupUnit]]:
    left = iter(units)
    while some := list(islice(left, UNITS_AT_ONCE)):
        yield some


async def _drop_older(store: ObjectStore, source: SourceRange, unit: RollupUnit) -> int:
    dropped = 0
    async for page in store.list_incarnations(unit.key("").rpartition("/")[0] + "/"):
        for found in page.incarnations:
            if not found.marker and _cover_of(found.key) < source.number:
                await store.delete(found.key, found.incarnation)
                dropped += 1
    return dropped


def _cover_of(key: str) -> int:
    return int(key.rpartition("/")[2][:_DIGITS])
