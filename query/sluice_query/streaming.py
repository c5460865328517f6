"""Records of a search while it runs, the newest or the oldest first.

Files and pending batches are read in waves, those with the first records of the order first. A
record is returned as soon as no later wave can contain one before it. When the limit is reached,
later waves are not read. What a stream reads is fixed before the first wave: a batch that is
ingested meanwhile is read from its blob, and not from the records.

One statement over all files would read more: each thread of the engine leaves out row groups only
after it has found `limit` records itself.

A wave is bounded by its cost, so the first records do not wait for a long backlog.
"""

import heapq
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Final

import msgspec

from sluice_lake.data_files import DataFile
from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import Kind
from sluice_protocol.manifests import AcceptedManifest
from sluice_query.engine import DataFilesUnreadable
from sluice_query.pending import batch_bounds_ns, joined_batches
from sluice_query.pruning import time_bounds_ns
from sluice_query.request import Query
from sluice_query.result import QueryResult, QuerySummary, Row, record_json
from sluice_query.search import Evaluator, Searcher, SearchRead, SourceReader
from sluice_query.statements import ordered_sql, result_columns

FIRST_WAVE_BYTES: Final = 8 << 20
FIRST_PART_BYTES: Final = 1 << 20
"""Of the row groups that the first wave is divided into: usually one is enough for a page.

Dividing costs the footer of each file, so later waves are not divided: with two divided ones, a
search through half of the files took 1.09 times as long.
"""
WAVE_BYTES_MAX: Final = 256 << 20
BATCH_COST_BYTES: Final = 256 << 10
"""What one pending batch costs in addition to its size: a request to the store, and decoding.

At most 32 batches are therefore in the first wave, however small they are.
"""
_GROWTH: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Sources that are read together.

    All records of later waves are before `until_ns`; None for the last wave. With the oldest first,
    it is a negated time, as in `_ordered_ns`.
    """

    files: tuple[DataFile, ...]
    batches: tuple[AcceptedManifest, ...]
    until_ns: float | None


RecordKey = tuple[int, str, str, int]
"""Time, agent, boot and sequence number of a record; the order of a search."""
KeyedRow = tuple[RecordKey, tuple[object, ...]]
_Source = DataFile | AcceptedManifest


def plan_waves(
    files: Sequence[DataFile],
    batches: Sequence[AcceptedManifest] = (),
    first_bytes: int | None = None,
    *,
    newest_first: bool,
) -> list[Wave]:
    """Divide sources into waves of growing cost, in the order of their records; at least one."""

    def bound_ns(source: _Source) -> float:
        start, end = (
            time_bounds_ns(source) if isinstance(source, DataFile) else batch_bounds_ns(source)
        )
        return end if newest_first else 1 - start

    sources: list[_Source] = [*batches, *files]
    groups: list[list[_Source]] = [[]]
    bound_bytes, cost_bytes = first_bytes or FIRST_WAVE_BYTES, 0
    for source in sorted(sources, key=bound_ns, reverse=True):
        if groups[-1] and cost_bytes + _cost_bytes(source) > bound_bytes:
            groups.append([])
            bound_bytes, cost_bytes = min(bound_bytes * _GROWTH, WAVE_BYTES_MAX), 0
        groups[-1].append(source)
        cost_bytes += _cost_bytes(source)
    later = [*(bound_ns(group[0]) for group in groups[1:]), None]
    return [
        Wave(
            files=tuple(one for one in group if isinstance(one, DataFile)),
            batches=tuple(one for one in group if isinstance(one, AcceptedManifest)),
            until_ns=until,
        )
        for group, until in zip(groups, later, strict=True)
    ]


def _ordered_ns(at_ns: int, *, newest_first: bool) -> int:
    """Return a time so that records with greater ones are first."""
    return at_ns if newest_first else -at_ns


def _cost_bytes(source: _Source) -> int:
    if isinstance(source, DataFile):
        return source.read_bytes
    return source.frame_bytes + BATCH_COST_BYTES


class MergedWaves:
    """Records of waves, merged: returned when no later wave can contain one before them."""

    def __init__(self, limit: int, *, newest_first: bool) -> None:
        self._left = limit
        self._newest_first = newest_first
        self._held: list[KeyedRow] = []
        self.more = False

    def add(self, found: Sequence[KeyedRow], until_ns: float | None) -> list[tuple[object, ...]]:
        """Add the rows of a wave, sorted; return the rows that are now certain to be next.

        `until_ns` is that of the wave.
        """
        newest_first = self._newest_first
        held = list(heapq.merge(self._held, found, key=itemgetter(0), reverse=newest_first))
        certain = len(held)
        if until_ns is not None:
            times = (_ordered_ns(key[0], newest_first=newest_first) for key, _ in held)
            certain = next((n for n, at_ns in enumerate(times) if at_ns < until_ns), certain)
        taken = min(certain, self._left)
        self._left -= taken
        # One row over the limit shows whether there are more; further ones are never returned.
        self._held = held[taken : taken + self._left + 1]
        self.more = self._left == 0 and bool(self._held)
        return [row for _, row in held[:taken]]

    @property
    def wanted(self) -> int:
        """Return how many rows of a further wave can be needed."""
        return self._left + 1


class StreamProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a search is.

    Attributes:
        segments: Files to read if the limit is not reached.
        batches: Pending batches to read if the limit is not reached.
    """

    segments_read: int
    segments: int
    batches_read: int
    batches: int
    results: int
    elapsed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPart:
    """One part of a stream: records, after all before them, or at the end the summary."""

    records: tuple[Row, ...] = ()
    progress: StreamProgress | None = None
    summary: QuerySummary | None = None


def stream_lines(kind: Kind, part: StreamPart) -> Iterator[bytes]:
    """Yield one part of a stream as NDJSON."""
    for row in part.records:
        yield msgspec.json.encode(record_json(kind, row)) + b"\n"
    if part.progress is not None:
        yield msgspec.json.encode({"progress": part.progress}) + b"\n"
    if part.summary is not None:
        yield msgspec.json.encode({"summary": part.summary}) + b"\n"


async def stream_search(searcher: Searcher, query: Query) -> AsyncGenerator[StreamPart]:
    """Yield the records of a query, in its order, then the summary."""
    if not query.is_for_records:
        raise BadUsage(
            "only records can be streamed: omit metric and stats_only, and write a log query"
        )
    if query.names_labels:
        from sluice_query.logql.unknown_labels import hinted_stream  # noqa: PLC0415 - only for labels

        plain = stream_search(searcher, replace(query, names_labels=False))
        async with aclosing(hinted_stream(plain, searcher, query)) as hinted:
            async for one in hinted:
                yield one
        return
    async with searcher.reading(query) as reader:
        read = await reader.select()
        merged = MergedWaves(query.limit, newest_first=query.newest_first)
        results, problems = 0, read.problems
        files, fetched = replace(read.files, read=()), joined_batches(())
        gone: set[str] = set()
        async for wave in _waves(reader, read):
            wanted = tuple(one for one in wave.files if one.path not in gone)
            part = replace(
                read,
                files=replace(read.files, read=wanted),
                fetched=await reader.fetch(wave.batches),
                problems=(),
            )
            while True:
                evaluator = searcher.evaluator(reader, part)
                try:
                    found = await reader.bounded(
                        partial(_read_wave, evaluator, part.files.read, limit=merged.wanted)
                    )
                    break
                except DataFilesUnreadable as error:
                    part = await reader.without_unreadable(part, error)
            gone.update({one.path for one in wanted} - {one.path for one in part.files.read})
            problems += part.problems
            rows = merged.add(found, wave.until_ns)
            records = await reader.bounded(partial(evaluator.rows, rows))
            results += len(records)
            files = replace(files, read=(*files.read, *part.files.read))
            # The tables of a wave are not needed after it.
            fetched = joined_batches((fetched, replace(part.fetched, tables=())))
            progress = StreamProgress(
                segments_read=files.count,
                segments=read.files.count,
                batches_read=fetched.batches,
                batches=len(read.waiting),
                results=results,
                elapsed_ms=reader.elapsed_ms(),
            )
            yield StreamPart(records=tuple(records), progress=progress)
            if merged.more:
                break
        pruned = read.files.pruned + read.files.count - files.count
        summary = QuerySummary(results=results, more=merged.more)
        files = replace(files, pruned=pruned)
        done = replace(read, files=files, fetched=fetched, problems=problems)
        yield StreamPart(summary=reader.summarize(summary, done))


async def collect_stream(searcher: Searcher, query: Query) -> QueryResult:
    """Return the result of a query for records."""
    records, summary = list[Row](), None
    # To its end: the engine of a stream that is left earlier is not kept.
    async for part in stream_search(searcher, query):
        records += part.records
        summary = part.summary
    if summary is None:
        raise AssertionError("a stream ends with its summary")
    return QueryResult(kind=query.kind, records=records, summary=summary)


async def _waves(reader: SourceReader, read: SearchRead) -> AsyncGenerator[Wave]:
    """Yield the waves of a search. The first one is divided by row groups."""
    newest_first = reader.query.newest_first
    waves = plan_waves(read.files.read, read.waiting, newest_first=newest_first)
    for number, wave in enumerate(waves):
        parts: list[DataFile] = []
        if number == 0 and sum(map(_cost_bytes, wave.files)) > FIRST_PART_BYTES:
            try:
                parts = await reader.bounded(partial(_row_groups, reader, read, wave))
            except DataFilesUnreadable:  # the search itself finds out which one
                parts = []
        if not parts:
            yield wave
            continue
        for part in plan_waves(parts, wave.batches, FIRST_PART_BYTES, newest_first=newest_first):
            ends = [one for one in (part.until_ns, wave.until_ns) if one is not None]
            yield replace(part, files=_whole(part.files), until_ns=max(ends, default=None))


def _row_groups(reader: SourceReader, read: SearchRead, wave: Wave) -> list[DataFile]:
    """Return each row group of the files of a wave as a separate file; small files are whole."""
    parts: list[DataFile] = []
    for file in wave.files:
        if file.read_bytes <= FIRST_PART_BYTES:
            parts.append(file)
            continue
        found = reader.engine.with_row_groups(read.files.location, file)
        parts += [replace(found, groups=(group,)) for group in found.groups or ()]
    return parts


def _whole(parts: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """Return parts of files with the row groups of each file together."""
    found: dict[str, DataFile] = {}
    for part in parts:
        before = found.get(part.path, part)
        groups = part.groups if before is part else (*(before.groups or ()), *(part.groups or ()))
        found[part.path] = replace(part, groups=groups)
    return tuple(found.values())


def _read_wave(evaluator: Evaluator, files: tuple[DataFile, ...], *, limit: int) -> list[KeyedRow]:
    query = evaluator.query
    sources = evaluator.sources(files)
    if not sources.names:
        return []
    columns = result_columns(query)
    places = [columns.index(name) for name in ("agent_id", "boot_id", "seq")]
    shown = ", ".join(["at_ns", *columns])
    statement = ordered_sql(query, shown, sources, limit=limit)
    found: list[KeyedRow] = []
    for at_ns, *row in evaluator.engine.rows(statement):
        agent, boot, seq = (row[place] for place in places)
        found.append(((at_ns, agent, boot, seq), tuple(row)))
    return found
