"""Records of a search while it runs, the newest first.

Files are read in waves, those with the newest records first. A record is returned as soon as no
file of a later wave can contain a newer one. When the limit is reached, later waves are not read.
"""

import heapq
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec

from sluice_lake.data_files import DataFile
from sluice_protocol.errors import BadUsage
from sluice_protocol.manifests import Kind
from sluice_query.evaluation import Evaluator
from sluice_query.pruning import newest_files, time_bound_ns
from sluice_query.request import Query
from sluice_query.result import QuerySummary, Row, record_json
from sluice_query.search import Searcher
from sluice_query.sql import ordered_sql, returned_columns

FIRST_WAVE_BYTES: Final = 8 << 20
WAVE_BYTES_MAX: Final = 256 << 20
_GROWTH: Final = 4


class StreamProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a search is.

    Attributes:
        segments_read: Files of the lake that were read.
        segments: Files that have to be read if the limit is not reached.
        results: Records that were returned.
        elapsed_ms: Time since the start of the search.
    """

    segments_read: int
    segments: int
    results: int
    elapsed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPart:
    """One part of a stream.

    Attributes:
        records: Records, each older than those before it.
        progress: How far the search is.
        summary: The summary; in the last part only.
    """

    records: tuple[Row, ...] = ()
    progress: StreamProgress | None = None
    summary: QuerySummary | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Files that are read together.

    Attributes:
        files: The files.
        until_ns: All records of later waves are before this time; None for the last wave.
    """

    files: tuple[DataFile, ...]
    until_ns: float | None


_Key = tuple[int, str, str, int]


def plan_waves(files: Sequence[DataFile]) -> list[Wave]:
    """Divide files into waves of growing size, the newest records first; at least one wave."""
    groups: list[list[DataFile]] = [[]]
    bound_bytes, size_bytes = FIRST_WAVE_BYTES, 0
    for file in newest_files(files):
        if groups[-1] and size_bytes + file.size_bytes > bound_bytes:
            groups.append([])
            bound_bytes, size_bytes = min(bound_bytes * _GROWTH, WAVE_BYTES_MAX), 0
        groups[-1].append(file)
        size_bytes += file.size_bytes
    later = [*(time_bound_ns(group[0]) for group in groups[1:]), None]
    return [
        Wave(files=tuple(group), until_ns=until) for group, until in zip(groups, later, strict=True)
    ]


class NewestFirst:
    """Records of waves, merged: returned when no later wave can contain a newer one."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._held: list[tuple[_Key, tuple[object, ...]]] = []
        self.more = False

    def add(
        self, found: Sequence[tuple[_Key, tuple[object, ...]]], until_ns: float | None
    ) -> list[tuple[object, ...]]:
        """Add the rows of a wave, sorted; return the rows that are now certain to be next.

        Args:
            found: Keys and rows, the newest first.
            until_ns: All rows of later waves are before this time; None if there are none.
        """
        held = list(heapq.merge(self._held, found, key=_order, reverse=True))
        certain = len(held)
        if until_ns is not None:
            certain = next((n for n, (key, _) in enumerate(held) if key[0] < until_ns), certain)
        taken = min(certain, self._left)
        self._left -= taken
        # One row over the limit shows whether there are more; further ones are never returned.
        self._held = held[taken : taken + self._left + 1]
        self.more = self._left == 0 and bool(self._held)
        return [row for _, row in held[:taken]]

    @property
    def wanted(self) -> int:
        """How many rows of a further wave can be needed."""
        return self._left + 1


def _order(item: tuple[_Key, tuple[object, ...]]) -> _Key:
    return item[0]


def stream_lines(kind: Kind, part: StreamPart) -> Iterator[bytes]:
    """Yield one part of a stream as NDJSON."""
    for row in part.records:
        yield msgspec.json.encode(record_json(kind, row)) + b"\n"
    if part.progress is not None:
        yield msgspec.json.encode({"progress": part.progress}) + b"\n"
    if part.summary is not None:
        yield msgspec.json.encode({"summary": part.summary}) + b"\n"


async def stream_search(searcher: Searcher, query: Query) -> AsyncGenerator[StreamPart]:
    """Yield the records of a query, the newest first, then the summary.

    The records and their order are those of the same query with `newest_first`.

    Raises:
        SluiceError: As `Searcher.search`; also after some records were returned.
    """
    if query.series is not None or query.stats_only or query.view is not None:
        raise BadUsage("only records can be streamed: omit metric and stats_only")
    query = replace(query, newest_first=True)
    async with searcher.reading(query) as reader:
        read = await reader.read()
        evaluator = searcher.evaluator(reader, read)
        merged, done, results = NewestFirst(query.limit), 0, 0
        total = len(read.files.read)
        for place, wave in enumerate(plan_waves(read.files.read)):
            found = await reader.bounded(
                partial(_read_wave, evaluator, wave, pending=place == 0, limit=merged.wanted)
            )
            done += len(wave.files)
            rows = merged.add(found, wave.until_ns)
            records = await reader.bounded(partial(evaluator.rows, rows))
            results += len(records)
            progress = StreamProgress(
                segments_read=done,
                segments=total,
                results=results,
                elapsed_ms=reader.elapsed_ms(),
            )
            yield StreamPart(records=tuple(records), progress=progress)
            if merged.more:
                break
        files = replace(
            read.files,
            read=newest_files(read.files.read)[:done],
            pruned=read.files.pruned + total - done,
        )
        summary = QuerySummary(results=results, more=merged.more)
        yield StreamPart(summary=reader.summarize(summary, replace(read, files=files)))


def _read_wave(
    evaluator: Evaluator, wave: Wave, *, pending: bool, limit: int
) -> list[tuple[_Key, tuple[object, ...]]]:
    query = evaluator.query
    sources = evaluator.sources(wave.files, pending=pending)
    if not sources.names:
        return []
    columns = returned_columns(query.kind)
    places = [columns.index(name) for name in ("agent_id", "boot_id", "seq")]
    shown = ", ".join(["at_ns", *columns])
    statement = ordered_sql(query, shown, sources, limit=limit)
    found: list[tuple[_Key, tuple[object, ...]]] = []
    for at_ns, *row in evaluator.engine.rows(statement):
        agent, boot, seq = (row[place] for place in places)
        found.append(((at_ns, agent, boot, seq), tuple(row)))
    return found
