"""How a micro-batch is split into tasks."""

import pytest
from msgspec.structs import replace
from support.builders import manifest

from sluice_queue.worklists import PendingBatch
from sluice_spark.ingest.write_tasks import TASK_BYTES_MAX, plan_tasks

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
