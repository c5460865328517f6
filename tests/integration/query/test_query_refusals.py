"""Lakes that a query must not read."""

import shutil
from pathlib import Path

import pytest
from support.query_lake import deployment, log_batch, make_query, run_query
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_lake.errors import TableRefused


@pytest.fixture
def place(tmp_path: Path) -> Deployment:
    made = deployment(tmp_path)
    made.deliver([log_batch(["x"])])
    ingest_locally(made.url)
    return made


def _refused(place: Deployment) -> str:
    with pytest.raises(TableRefused) as caught:
        run_query(place, make_query())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_table_that_cannot_be_used_stops_the_query(place: Deployment) -> None:
    table = place.root / "lake" / "v1" / "logs"
    for path in (table / "_delta_log").glob("*.json"):
        path.write_text("{ not json")
    assert "cannot use lake table: it cannot be opened" in _refused(place)
    shutil.rmtree(table / "_delta_log")
    assert "not a Delta table: move it away" in _refused(place)
