"""Index chunks in a search: which row groups of the selected files may match.

A search reads the head of each chunk of the selected dates, and one page for each term that it
looks up. What is not known rules nothing out: a file without a chunk, a chunk that is missing or
damaged, and a text too short for the filters all mean that the file is read.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Final

from sluice_lake.data_files import DataFile, RowGroup, partitions_of
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.index_chunk import (
    PAGE_BYTES,
    ChunkHead,
    Filter,
    TermsWanted,
    check_page,
    decode_chunk_head,
    groups_meeting,
    hash_text,
    head_size,
    label_place,
    looked_up,
    pages_wanted,
    value_terms,
)
from sluice_protocol.index_chunk import (
    Found as FoundGroups,
)
from sluice_protocol.keys import index_prefix
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_query.pruning import SelectedFiles
from sluice_query.request import FilterOperator, Query, TextCondition
from sluice_store.port import ObjectStore, run_together

READS_CONCURRENT: Final = 32
"""Reads of pages and heads, each of at most a head."""
START_BYTES: Final = 64 * 1024
"""The first read of a chunk: usually its head, and for a small chunk its pages too."""
TEXTS_MAX: Final = 4
"""Texts of one alternative that are looked up, the longest ones."""
WHOLE_SHARE: Final = 0.5
"""A file of which a larger share of the row groups may match is read as a whole."""
PARTIAL_FILES_MAX: Final = 64
"""Files of which only some row groups are read: each is a separate scan in the engine's plan."""


def wanted_terms(query: Query) -> list[list[TermsWanted]]:
    """Return the terms that a row group needs for a match; empty if the index cannot decide."""
    kind = KINDS[query.kind]
    wanted: list[list[TermsWanted]] = []
    for condition in query.required if kind.searched in kind.indexed else ():
        found = [_terms_of(texts, condition) for texts in condition.alternatives]
        if all(one.terms for one in found):
            wanted.append(found)
    values: dict[str, list[TermsWanted]] = {}
    for one in query.filters:
        column = one.field.column
        if one.operator is FilterOperator.EQUAL and column in kind.indexed:
            values.setdefault(column, []).append(_value(column, str(one.value)))
    for key, value in (*query.attributes, *query.labels):
        wanted.append([_value(label_place(key), value)])
    return [*wanted, *values.values()]


def _terms_of(texts: Sequence[str], condition: TextCondition) -> TermsWanted:
    longest = sorted(texts, key=len, reverse=True)[:TEXTS_MAX]
    terms = {
        term for text in longest for term in looked_up(text, ignore_case=condition.ignore_case)
    }
    return TermsWanted(Filter.TEXTS, tuple(sorted(terms)))


def _value(place: str, value: str) -> TermsWanted:
    (terms,) = value_terms(place, hash_text(value.encode()))
    return TermsWanted(Filter.VALUES, tuple(terms.tolist()))


async def look_up_groups(
    store: ObjectStore, selected: SelectedFiles, kind: Kind, wanted: list[list[TermsWanted]]
) -> SelectedFiles:
    """Return a selection without the files and row groups that cannot have the wanted terms."""
    paths = {file.path: file for file in selected.read}
    lookup = _Lookup(store=store, limit=asyncio.Semaphore(READS_CONCURRENT), wanted=wanted)
    async with asyncio.TaskGroup() as group:
        days = [
            group.create_task(lookup.chunks(index_prefix(kind, day)))
            for day in partitions_of(paths)
        ]
    async with asyncio.TaskGroup() as group:
        keys = [key for task in days for key in task.result()]
        tasks = [group.create_task(lookup.matching(key)) for key in keys]
    found = {
        path: groups for task in tasks for path, groups in task.result().items() if path in paths
    }
    read = [_narrowed(file, found.get(file.path)) for file in selected.read]
    some = tuple(file for file in read if file.groups != ())
    return replace(
        selected,
        read=_with_few_parts(some),
        pruned=selected.pruned + len(read) - len(some),
        index_bytes=lookup.bytes_read,
        looked_up=True,
    )


def _narrowed(file: DataFile, groups: tuple[tuple[int, bool], ...] | None) -> DataFile:
    """Return a file with the row groups that may match, each given by its rows."""
    if groups is None or file.records not in (None, sum(rows for rows, _ in groups)):
        return file
    ends = pairwise(accumulate((rows for rows, _ in groups), initial=0))
    kept = tuple(
        RowGroup(number=number, first=first, end=end)
        for number, ((first, end), (_, may_match)) in enumerate(zip(ends, groups, strict=True))
        if may_match
    )
    return file if len(kept) > WHOLE_SHARE * len(groups) else replace(file, groups=kept)


def _with_few_parts(files: tuple[DataFile, ...]) -> tuple[DataFile, ...]:
    """Return files of which few are read in part: those of which most is left out."""
    partial = [file for file in files if file.groups is not None]
    if len(partial) <= PARTIAL_FILES_MAX:
        return files
    partial.sort(key=lambda file: file.size_bytes - file.read_bytes, reverse=True)
    kept = {file.path for file in partial[:PARTIAL_FILES_MAX]}
    return tuple(file if file.path in kept else replace(file, groups=None) for file in files)


@dataclass(slots=True, kw_only=True)
class _Lookup:
    """The reads of one search."""

    store: ObjectStore
    limit: asyncio.Semaphore
    wanted: list[list[TermsWanted]]
    bytes_read: int = 0

    async def chunks(self, prefix: str) -> list[ObjectKey]:
        async with self.limit:
            return [one.key async for page in self.store.list(prefix) for one in page.objects]

    async def matching(self, key: ObjectKey) -> dict[str, tuple[tuple[int, bool], ...]]:
        """Return, for each file of a chunk, its row groups: their rows, and whether they may match.

        A chunk that is missing or damaged has none.
        """
        try:
            start = await self._read(key, 0, START_BYTES)
            after = head_size(key, start)
            if after > len(start):
                start += await self._read(key, len(start), after - len(start))
            head = decode_chunk_head(key, start)
            places = pages_wanted(head, self.wanted)
            pages = await run_together(
                *(self._page(key, start, after + at) for at in places.values())
            )
            found = groups_meeting(head, dict(zip(places, pages, strict=True)), self.wanted)
        except InvalidRecord:
            return {}
        return _by_file(head, found)

    async def _page(self, key: ObjectKey, start: bytes, at: int) -> bytes:
        page = start[at : at + PAGE_BYTES]
        return check_page(
            key, page if len(page) == PAGE_BYTES else await self._read(key, at, PAGE_BYTES)
        )

    async def _read(self, key: ObjectKey, first: int, size_bytes: int) -> bytes:
        async with self.limit:
            match await self.store.get(key, first=first, last=first + size_bytes - 1):
                case Found(body=body):
                    self.bytes_read += len(body)
                    return body
                case _:
                    raise InvalidRecord(key, "index chunk is missing")


def _by_file(head: ChunkHead, found: FoundGroups) -> dict[str, tuple[tuple[int, bool], ...]]:
    ends = accumulate((len(file.groups) for file in head.files), initial=0)
    return {
        file.path: tuple(zip(file.groups, found[first:end].tolist(), strict=True))
        for file, (first, end) in zip(head.files, pairwise(ends), strict=True)
    }
