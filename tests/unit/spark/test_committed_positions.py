"""Where a rebuilt register continues, and the remedy if it cannot."""

import pytest

from sluice_protocol.errors import BadUsage
from sluice_spark.ingest.committed_positions import decide_position
from sluice_spark.ingest.exactly_once import TablePositions


def positions(logs: int, metrics: int, ledger: int) -> TablePositions:
    return TablePositions(records={"logs": {0: logs}, "metrics": {0: metrics}}, ledger={0: ledger})


@pytest.mark.parametrize("acked", [0, 3, 4])
def test_a_register_continues_after_tables_that_agree(acked: int) -> None:
    assert decide_position(positions(4, 4, 4), 0, acked) == 4


def test_a_lane_without_entries_continues_at_the_first() -> None:
    assert decide_position(positions(4, 4, 4), 1, 0) == 0


@pytest.mark.parametrize(
    ("found", "acked"),
    [
        pytest.param(positions(2, 2, 2), 4, id="all tables restored"),
        pytest.param(positions(0, 4, 4), 4, id="a record table lost"),
        pytest.param(positions(3, 4, 4), 0, id="a record table restored, no register"),
        pytest.param(positions(4, 4, 3), 4, id="a commit of the ledger lost"),
    ],
)
def test_a_lake_behind_its_queue_is_rebuilt(found: TablePositions, acked: int) -> None:
    with pytest.raises(BadUsage, match=r"lost commits .*; rebuild the lake \(docs/spark\.md\)"):
        decide_position(found, 0, acked)


def test_an_unfinished_run_is_finished_first() -> None:
    with pytest.raises(BadUsage, match="run the ingest"):
        decide_position(positions(4, 5, 4), 0, 4)
