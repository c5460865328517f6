"""Which uploads a spool has room for."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_gateway.metrics import GatewayMetrics
from sluice_gateway.spool import capacity
from sluice_protocol.errors import ErrorCode
from sluice_protocol.system_clock import SystemClock
from sluice_web.problems import HttpRefusal

MIB = 1024 * 1024


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, int, int], capacity.SpoolCapacity]:
    def make(free: int, bytes_max: int, free_min: int) -> capacity.SpoolCapacity:
        monkeypatch.setattr(capacity.shutil, "disk_usage", lambda _: Usage(100 * MIB, 0, free))
        return capacity.SpoolCapacity(
            tmp_path,
            bytes_max=bytes_max,
            free_bytes_min=free_min,
            clock=SystemClock(),
            metrics=GatewayMetrics(),
        )

    return make


Make = Callable[[int, int, int], capacity.SpoolCapacity]


def refused(room: capacity.SpoolCapacity, size_bytes: int) -> bool:
    try:
        room.require_room(size_bytes)
    except HttpRefusal:
        return True
    return False


def test_a_full_spool_responds_503(spool: Make) -> None:
    with pytest.raises(HttpRefusal, match="spool is full") as error:
        spool(0, 0, 1).require_room(1)
    assert error.value.code is ErrorCode.OVERLOADED


def test_an_upload_leaves_the_reserve_on_the_disk(spool: Make) -> None:
    room = spool(10 * MIB, 0, 8 * MIB)
    assert not refused(room, 2 * MIB)
    assert refused(room, 2 * MIB + 1)
    room.stored("a", MIB)  # counts before the next measurement
    assert refused(room, 2 * MIB)


def test_the_maximum_counts_stored_and_dropped_blobs(spool: Make) -> None:
    room = spool(100 * MIB, 4 * MIB, 0)
    room.stored("a", MIB)
    room.stored("b", 2 * MIB)
    room.stored("b", 2 * MIB)  # a duplicate
    assert not refused(room, MIB)
    assert refused(room, MIB + 1)
    room.dropped("b")
    assert not refused(room, 3 * MIB)
    room.dropped("b")
    assert room.used_bytes == MIB
    room.begin_count()
    room.end_count({"c": 4 * MIB})
    assert room.used_bytes == 4 * MIB
    assert refused(room, 1)


@given(st.lists(st.tuples(st.sampled_from("sdBLE"), st.sampled_from("abc"))))
def test_a_count_beside_uploads_and_transfers_is_exact(steps: list[tuple[str, str]]) -> None:
    """A listing sees one moment between begin and end; the count is always that of the disk.

    Steps: s, d: a blob is stored or dropped; B, L, E: a count begins, lists, ends.
    """
    room = capacity.SpoolCapacity(
        Path(), bytes_max=0, free_bytes_min=0, clock=SystemClock(), metrics=GatewayMetrics()
    )
    sizes = {"a": 1, "b": 10, "c": 100}
    disk: set[str] = set()
    listed: dict[str, int] | None = None
    counting = False
    for step, key in steps:
        match step:
            case "s":
                disk.add(key)
                room.stored(key, sizes[key])
            case "d":
                disk.discard(key)
                room.dropped(key)
            case "B":
                room.begin_count()
                counting, listed = True, None
            case "L" if counting:
                listed = {each: sizes[each] for each in disk}
            case "E" if listed is not None:
                room.end_count(listed)
                counting, listed = False, None
        assert room.used_bytes == sum(sizes[each] for each in disk)


@pytest.mark.parametrize("listed_before", [True, False])
def test_a_blob_that_is_listed_before_its_upload_counts_it_is_counted_once(
    spool: Make, *, listed_before: bool
) -> None:
    room = spool(100 * MIB, 4 * MIB, 0)
    room.begin_count()
    if listed_before:
        room.end_count({"a": MIB})
        room.stored("a", MIB)
    else:
        room.stored("a", MIB)
        room.end_count({"a": MIB})
    assert room.used_bytes == MIB
    room.dropped("a")
    assert room.used_bytes == 0


def test_a_disk_that_cannot_be_measured_refuses_nothing(
    spool: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = spool(0, 0, 8 * MIB)

    def fail(_: Path) -> Usage:
        raise OSError

    monkeypatch.setattr(capacity.shutil, "disk_usage", fail)
    assert not refused(room, MIB)
