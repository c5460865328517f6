"""Lanes are found by few requests, however many segments they have."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest

from sluice_protocol.units import ETag, ObjectKey, UnixNs
from sluice_queue.lane import Lane, list_lanes
from sluice_store.port import ListedObject, ListPage, ObjectStore

PAGE = 5


class ListedKeys:
    """A store that can only be listed, in small pages."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = sorted(keys)
        self.pages = 0

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ListPage]:
        keys = [one for one in self.keys if one.startswith(prefix) and one > start_after]
        for first in range(0, max(len(keys), 1), PAGE):
            self.pages += 1
            yield ListPage(
                objects=tuple(map(listed, keys[first : first + PAGE])),
                date_ns=UnixNs(1),
                last=first + PAGE >= len(keys),
            )


def listed(key: str) -> ListedObject:
    return ListedObject(
        key=ObjectKey(key), size_bytes=1, etag=ETag("e"), last_modified_ns=UnixNs(1)
    )


def keys_of(queue: str, lane: int, segments: int, damaged: int = 0) -> list[str]:
    folder = f"queue/v1/{queue}.{lane:03d}"
    return [
        *(f"{folder}/damaged-{number:064x}" for number in range(damaged)),
        f"{folder}/manifest",
        *(f"{folder}/segments/{number:020d}" for number in range(segments)),
    ]


def found(keys: Sequence[str], queue: str | None) -> tuple[list[tuple[str, int]], int]:
    store = ListedKeys(keys)
    lanes: tuple[Lane, ...] = asyncio.run(list_lanes(cast(ObjectStore, store), queue))
    return [(one.queue, one.lane) for one in lanes], store.pages


@pytest.mark.parametrize("queue", ["spark", None])
def test_lanes_without_segments_need_one_page(queue: str | None) -> None:
    keys = [key for lane in range(4) for key in keys_of("spark", lane, 0)]
    assert found(keys, queue) == ([("spark", lane) for lane in range(4)], 1)


def test_the_segments_of_a_lane_are_skipped() -> None:
    keys = [key for lane in range(3) for key in keys_of("spark", lane, 200)]
    lanes, pages = found(keys, "spark")
    assert lanes == [("spark", lane) for lane in range(3)]
    assert pages <= 4


def test_a_register_behind_many_other_keys_of_its_lane_is_found() -> None:
    keys = [key for lane in range(3) for key in keys_of("spark", lane, 3, damaged=12)]
    assert found(keys, "spark")[0] == [("spark", lane) for lane in range(3)]


def test_other_queues_and_keys_are_left_out() -> None:
    keys = [*keys_of("spark", 0, 7), *keys_of("spark-2", 1, 7), *keys_of("sink", 3, 7)]
    keys += ["queue/v1/other", "queue/v1/spark.abc/manifest", "queue/v1/spark.00/manifest"]
    assert found(keys, "spark")[0] == [("spark", 0)]
    assert found(keys, None)[0] == [("sink", 3), ("spark-2", 1), ("spark", 0)]


def test_an_empty_store_has_no_lane() -> None:
    assert found([], None) == ([], 1)
