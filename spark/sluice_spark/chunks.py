"""Rollup chunks: the rows of a cover as immutable objects, one per window, hour and metric.

    <cover>.lmrollup.zst        the rows of the points that this cover brought
    <cover>-all.lmrollup.zst    every row of that hour up to this cover: older chunks do not count

A reader takes the last `-all` of an hour and what has a higher number, or everything where there is
none. What no longer counts is removed by whoever finishes the cover (ADR 0057).
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from sluice_protocol.keys import rollup_key
from sluice_protocol.lake import ROLLUPS
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_spark.covers import Cover
from sluice_spark.schemas import arrow_schema
from sluice_store import ObjectStore, open_store
from sluice_store.retry import Backoff, create_known

WHOLE: Final = "whole"
"""Column of rows on their way into chunks: whether the hour of the row is written whole."""
HOUR_S: Final = 3600
_DIGITS: Final = 20
UNITS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What one chunk is about: a window's length, a metric, an hour."""

    window: str
    name: str
    hour_ns: UnixNs

    def key(self, chunk_id: str) -> ObjectKey:
        """Gives the key of a chunk of it."""
        return rollup_key(self.window, self.name, self.hour_ns, chunk_id)


def chunk_name(cover: Cover, *, whole: bool) -> str:
    """Gives the id of a cover's chunks; its first 20 characters are the cover's number."""
    return f"{cover.number:0{_DIGITS}d}{'-all' if whole else ''}"


async def put_chunks(store_url: str, cover: Cover, rows: pa.Table) -> None:
    """Creates a chunk per window, hour and metric; one that stands already is as good.

    Raises:
        OutcomeUnknown: The bounds are spent.
        StoreError: The store did not answer.
    """
    backoff = Backoff.seeded_by(SystemClock())
    async with open_store(store_url) as store:
        for key, body in encode_chunks(cover, rows):
            await create_known(store, key, body, backoff)


def encode_chunks(cover: Cover, rows: pa.Table) -> Iterator[tuple[ObjectKey, bytes]]:
    """Gives the chunks of rows: each the zstd of an Arrow IPC stream of the table's columns.

    Rows of older covers go into chunks of whole hours only: elsewhere they have theirs.
    """
    own = pc.equal(rows.column("cover"), cover.number)
    rows = rows.filter(pc.or_(rows.column(WHOLE), own))
    wholes = rows.column(WHOLE).to_pylist()
    stored = rows.select([column.name for column in ROLLUPS.stored_columns])
    plain = stored.cast(arrow_schema(ROLLUPS, partition=False))
    places: dict[tuple[Unit, bool], list[int]] = {}
    names = plain.column("name").to_pylist()
    windows = plain.column("window").to_pylist()
    for number, start in enumerate(plain.column("window_start").to_pylist()):
        unit = Unit(window=windows[number], name=names[number], hour_ns=_hour_ns(start))
        places.setdefault((unit, wholes[number]), []).append(number)
    for (unit, whole), numbers in places.items():
        yield unit.key(chunk_name(cover, whole=whole)), _ipc(plain.take(numbers))


def _hour_ns(start: datetime) -> UnixNs:
    seconds = int(start.astimezone(UTC).timestamp())
    return UnixNs((seconds - seconds % HOUR_S) * NS_PER_S)


def _ipc(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return zstandard.ZstdCompressor(level=3).compress(sink.getvalue().to_pybytes())


async def drop_superseded(store: ObjectStore, cover: Cover, units: Iterable[Unit]) -> int:
    """Removes the chunks of hours that a cover wrote whole and that are older; gives how many.

    Every version of them goes: they hold figures of deleted points. Repeating it is harmless.

    Raises:
        StoreError: The store did not answer.
    """
    dropped = 0
    for some in _batched(units):
        dropped += sum(await asyncio.gather(*(_drop_older(store, cover, unit) for unit in some)))
    return dropped


def _batched(units: Iterable[Unit]) -> Iterator[list[Unit]]:
    left = iter(units)
    while some := list(islice(left, UNITS_AT_ONCE)):
        yield some


async def _drop_older(store: ObjectStore, cover: Cover, unit: Unit) -> int:
    dropped = 0
    async for page in store.list_incarnations(unit.key("").rpartition("/")[0] + "/"):
        for found in page.incarnations:
            if not found.marker and _cover_of(found.key) < cover.number:
                await store.delete(found.key, found.incarnation)
                dropped += 1
    return dropped


def _cover_of(key: str) -> int:
    return int(key.rpartition("/")[2][:_DIGITS])
