"""Leaving files out by what index chunks tell of their text.

An index only ever leaves out what cannot match: a file without a chunk, a chunk that is missing or
cannot be read, and a text too short for its filters all mean that the file is read.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.index_chunk import TEXT_BYTES_MIN, decode_chunk
from sluice_protocol.keys import INDEX
from sluice_protocol.lake import LOGS
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import ObjectKey
from sluice_query.literals import required_texts
from sluice_query.request import Query
from sluice_query.segments import Segments
from sluice_store.port import ListedObject, ObjectStore

CHUNKS_AT_ONCE: Final = 2
"""A decoded chunk may take 256 MiB."""
_DATE: Final = re.compile(rf"{LOGS.partition_column}=(\d{{4}}-\d\d-\d\d)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What chunks told: the files that cannot match, and the bytes that were read to know it."""

    without: frozenset[str] = frozenset()
    size_bytes: int = 0


async def prune_by_index(store: ObjectStore, segments: Segments, query: Query) -> Segments:
    """Gives the segments without those that an index rules out.

    Raises:
        StoreError: The store did not answer.
    """
    wanted = [text.encode() for text in required_texts(query)]
    wanted = [text for text in wanted if len(text) >= TEXT_BYTES_MIN]
    if query.kind != "logs" or not wanted or not segments.read:
        return segments
    told = await _ask_chunks(store, segments, wanted)
    read = tuple(segment for segment in segments.read if segment.name not in told.without)
    return replace(
        segments,
        read=read,
        pruned=segments.pruned + len(segments.read) - len(read),
        index_bytes=told.size_bytes,
    )


async def _ask_chunks(store: ObjectStore, segments: Segments, wanted: Sequence[bytes]) -> Told:
    names = frozenset(segment.name for segment in segments.read)
    chunks = [one for day in _days(names) for one in await _list(store, f"{INDEX}date={day}/")]
    gate = asyncio.Semaphore(CHUNKS_AT_ONCE)

    async def ask(chunk: ListedObject) -> frozenset[str]:
        async with gate:
            match await store.get(chunk.key):
                case NotFound():
                    return frozenset()
                case Found(body=body):
                    return await asyncio.to_thread(_without, chunk.key, body, names, wanted)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(chunk)) for chunk in chunks]
    return Told(
        without=frozenset().union(*(task.result() for task in tasks)),
        size_bytes=sum(chunk.size_bytes for chunk in chunks),
    )


def _days(names: frozenset[str]) -> list[str]:
    found = (_DATE.match(name) for name in names)
    return sorted({match[1] for match in found if match is not None})


async def _list(store: ObjectStore, prefix: str) -> list[ListedObject]:
    return [one async for page in store.list(prefix) for one in page.objects]


def _without(
    key: ObjectKey, body: bytes, names: frozenset[str], wanted: Sequence[bytes]
) -> frozenset[str]:
    try:
        files = decode_chunk(key, body)
    except InvalidRecord:
        return frozenset()
    return frozenset(
        one.file.path
        for one in files
        if one.file.path in names and not all(one.may_contain(text) for text in wanted)
    )
