"""How a micro-batch is split into tasks, and which files a task writes."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from support.builders import log_columns, make_identity, manifest

from sluice_lake.records import DecodedBatch
from sluice_lake.tables import RECORD_TABLES
from sluice_protocol.frame import Resource, decode_frame, encode_frame
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_queue.worklists import PendingBatch
from sluice_spark.ingest import write_tasks
from sluice_spark.ingest.write_tasks import (
    TASK_BYTES_MAX,
    FileTarget,
    RecordFileWriter,
    WriteTask,
    plan_tasks,
)

MIB = 1024 * 1024


def rows(count: int, frame_bytes: int) -> list[PendingBatch]:
    each = replace(manifest(0), frame_bytes=frame_bytes)
    return [
        PendingBatch(lane=0, sequence=1, position=position, manifest=each)
        for position in range(count)
    ]


@pytest.mark.parametrize(
    ("count", "frame_mib", "parallelism", "tasks"),
    [
        pytest.param(1, 1, 2, 1, id="one small batch"),
        pytest.param(3, 1, 2, 1, id="too few bytes to split"),
        pytest.param(8, 1, 2, 2, id="one for each core"),
        pytest.param(700, 1, 2, 4, id="three large ones are four on two cores"),
        pytest.param(700, 1, 3, 3, id="three large ones on three cores"),
        pytest.param(1024, 1, 2, 4, id="four large ones"),
        pytest.param(1025, 1, 2, 6, id="three rounds"),
    ],
)
def test_the_number_of_tasks_fills_every_round(
    count: int, frame_mib: int, parallelism: int, tasks: int
) -> None:
    """A last round with fewer tasks than cores would leave cores idle."""
    assert len(plan_tasks("file:///s", rows(count, frame_mib * MIB), parallelism)) == tasks


def test_tasks_have_all_rows_in_order_and_about_equal_bytes() -> None:
    given = rows(700, MIB)
    tasks = plan_tasks("file:///s", given, 2)
    assert [row for task in tasks for row in task.rows] == given
    assert [task.part for task in tasks] == [0, 1, 2, 3]
    sizes = [sum(row.manifest.frame_bytes for row in task.rows) for task in tasks]
    assert max(sizes) - min(sizes) <= MIB
    assert max(sizes) <= TASK_BYTES_MAX


@pytest.mark.parametrize(
    ("named", "records"), [("nn", [2]), ("yy", [2]), ("nynn", [1, 1, 2]), ("nyyn", [1, 2, 1])]
)
def test_a_file_ends_where_the_columns_change_their_types(
    named: str, records: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of nulls has no dictionary, and a Parquet writer refuses another schema."""
    monkeypatch.setattr(write_tasks, "ROW_GROUP_BYTES", 1)
    task = WriteTask(
        store_url=f"file://{tmp_path}", part=0, rows=tuple(rows(1, 1)), tables=RECORD_TABLES
    )
    target = FileTarget(kind="logs", lane=0, date="2026-11-29")
    writer = RecordFileWriter(target, task, SystemClock(), SystemIds())
    columns = log_columns(["one"])
    files = []
    for number, one in enumerate(named):
        resource: Resource = (("service.name", "web"),) if one == "y" else ()
        who = make_identity(number, count=1)
        frame = decode_frame(encode_frame(identity=who, columns=columns, resource=resource))
        files += writer.add(DecodedBatch(frame=frame, accepted_at_ns=1, sequence=1), 1)
    files += writer.finish()
    assert [one.stats["numRecords"] for one in files] == records
    paths = [path for one in files for path in tmp_path.rglob(Path(one.path).name)]
    found = [text for path in paths for text in pq.read_table(path)["service"].to_pylist()]
    assert found == ["web" if one == "y" else None for one in named]
