"""Lakes that cannot be read rightly are refused by name, and bad questions in one line."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.query_lake import ask, deployment, log_batch, question
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
        ask(place, question())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _add_to_log(place: Deployment, *actions: dict[str, object]) -> None:
    log = place.root / "lake" / "v1" / "logs" / "_delta_log"
    version = DeltaTable(str(log.parent)).version() + 1
    lines = "\n".join(json.dumps(action) for action in actions)
    (log / f"{version:020d}.json").write_text(lines)


def _protocol(feature: str) -> dict[str, object]:
    if feature == "clustering":  # a feature of writers alone
        writers = ["clustering", "domainMetadata"]
        return {
            "protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": writers}
        }
    both = {"readerFeatures": [feature], "writerFeatures": [feature]}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **both}}


@pytest.mark.parametrize("feature", ["deletionVectors", "columnMapping", "clustering"])
def test_tables_whose_files_alone_would_lie_are_refused(place: Deployment, feature: str) -> None:
    """Deletion vectors, column mapping and clustering are refused by name."""
    _add_to_log(place, _protocol(feature))
    assert f"its feature {feature} must be off" in _refused(place)


def test_a_path_that_is_not_a_table_is_refused(place: Deployment) -> None:
    """A folder with other things, and a file, are no tables."""
    table = place.root / "lake" / "v1" / "logs"
    shutil.rmtree(table / "_delta_log")
    assert "not a Delta table: move it away" in _refused(place)
    shutil.rmtree(table)
    table.write_text("no folder")
    assert "cannot use lake table" in _refused(place)


def test_a_damaged_log_is_refused(place: Deployment) -> None:
    """A log that cannot be read is refused, not read as empty."""
    log = place.root / "lake" / "v1" / "logs" / "_delta_log"
    for path in log.glob("*.json"):
        path.write_text("{ not json")
    assert "cannot use lake table" in _refused(place)


def test_another_schema_is_refused(place: Deployment) -> None:
    """A table with a column missing or of another type names the column."""
    table = place.root / "lake" / "v1" / "logs"
    shutil.rmtree(table)
    write_deltalake(str(table), pa.table({"agent_id": ["a"], "accepted_date": ["2026-01-01"]}))
    assert "column boot_id must be string, found none" in _refused(place)


def test_a_file_that_is_gone_is_named(place: Deployment) -> None:
    """A data file that the log names and nobody has makes an error, never a short answer."""
    for path in (place.root / "lake" / "v1" / "logs").rglob("*.parquet"):
        path.unlink()
    assert "a data file cannot be read" in _refused(place)
