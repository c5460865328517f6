"""How many tasks a plan has."""

import pytest

from sluice_gc.certificate import ShardFiles
from sluice_gc.evidence_files import EvidenceFile
from sluice_gc.planner import task_count
from sluice_protocol.units import Digest, ObjectKey


def shards(count: int, rows: int) -> list[ShardFiles]:
    file = EvidenceFile(
        kind="blobs",
        place="00",
        key=ObjectKey("k"),
        sha256=Digest("0" * 64),
        size_bytes=1,
        rows=rows,
    )
    return [(f"{number:02x}", (), (file,)) for number in range(count)]


@pytest.mark.parametrize(
    ("count", "rows", "parallelism", "tasks"),
    [
        pytest.param(16, 62_500, 2, 2, id="few rows: one task per core"),
        pytest.param(16, 625_000, 2, 4, id="many rows: two per core"),
        pytest.param(256, 390_625, 2, 4, id="many shards: two per core"),
        pytest.param(16, 625_000, 50, 16, id="many cores: as many as shards"),
        pytest.param(256, 97_656, 40, 49, id="many cores: half a million rows each"),
        pytest.param(16, 0, 2, 2, id="no rows"),
        pytest.param(1, 0, 8, 1, id="one shard"),
        pytest.param(0, 0, 8, 1, id="no shard"),
    ],
)
def test_the_number_of_tasks(count: int, rows: int, parallelism: int, tasks: int) -> None:
    assert task_count(shards(count, rows), parallelism) == tasks
