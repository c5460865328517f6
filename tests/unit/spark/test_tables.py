from pathlib import Path

import pytest
from deltalake import DeltaTable, Schema

from sluice_protocol.lake import BATCHES, LOGS
from sluice_spark.errors import TableRefused
from sluice_spark.schemas import schema_json
from sluice_spark.tables import find_table, open_table, read_versions


def test_open_table_creates_once_and_opens_again(tmp_path: Path) -> None:
    """A table is made where there is none; its versions begin at 0."""
    url = f"file://{tmp_path}"
    assert find_table(url, LOGS) is None
    assert open_table(url, LOGS).version() == 0
    opened = open_table(url, LOGS)
    assert opened.version() == 0
    assert read_versions(opened, [0, 3]) == {0: 0, 3: 0}


def test_open_table_refuses_a_path_that_is_no_table(tmp_path: Path) -> None:
    """Something else in the table's place is left alone; what a crash left is not in the way."""
    place = tmp_path / "lake/v1/logs"
    (place / "_delta_log").mkdir(parents=True)
    assert open_table(f"file://{tmp_path}", LOGS).version() == 0
    other = tmp_path / "lake/v1/batches"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(TableRefused, match="not a Delta table"):
        open_table(f"file://{tmp_path}", BATCHES)


def test_open_table_refuses_another_schema_and_features(tmp_path: Path) -> None:
    """A table that files alone do not tell of, or of another schema, is refused in one line."""
    logs, batches = tmp_path / "lake/v1/logs", tmp_path / "lake/v1/batches"
    logs.mkdir(parents=True)
    batches.mkdir(parents=True)
    DeltaTable.create(logs, Schema.from_json(schema_json(BATCHES)), partition_by=["accepted_hour"])
    DeltaTable.create(
        batches,
        Schema.from_json(schema_json(BATCHES)),
        partition_by=["accepted_hour"],
        configuration={"delta.enableDeletionVectors": "true"},
    )
    with pytest.raises(TableRefused, match="see columns") as refused:
        find_table(f"file://{tmp_path}", LOGS)
    assert "\n" not in str(refused.value)
    with pytest.raises(TableRefused, match="deletionVectors"):
        find_table(f"file://{tmp_path}", BATCHES)
