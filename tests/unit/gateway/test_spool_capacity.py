"""Which uploads a spool has room for."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import sluice_gateway.spool_capacity as capacity
from sluice_gateway.metrics import GatewayMetrics
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
    room.stored(MIB)  # counts before the next measurement
    assert refused(room, 2 * MIB)


def test_the_maximum_counts_stored_and_dropped_blobs(spool: Make) -> None:
    room = spool(100 * MIB, 4 * MIB, 0)
    room.stored(3 * MIB)
    assert not refused(room, MIB)
    assert refused(room, MIB + 1)
    room.dropped(2 * MIB)
    assert not refused(room, 3 * MIB)
    room.dropped(9 * MIB)
    assert room.used_bytes == 0
    room.counted(4 * MIB)
    assert refused(room, 1)


def test_a_disk_that_cannot_be_measured_refuses_nothing(
    spool: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = spool(0, 0, 8 * MIB)

    def fail(_: Path) -> Usage:
        raise OSError

    monkeypatch.setattr(capacity.shutil, "disk_usage", fail)
    assert not refused(room, MIB)
