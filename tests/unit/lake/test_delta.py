import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from sluice_lake import delta
from sluice_lake.delta import (
    check_tables,
    delta_errors_translated,
    delta_schema,
    find_table,
    is_extended,
    open_or_create_table,
)
from sluice_lake.errors import CommitConflict, TableRefused
from sluice_lake.locations import TableLocation
from sluice_lake.schemas import arrow_schema, schema_json
from sluice_lake.tables import BATCHES, LOGS, TABLES
from sluice_protocol.errors import OutcomeUnknown, SluiceError


def path_of(root: Path, name: str = "logs") -> Path:
    path = root / "lake/v1" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def refusal(root: Path, *, for_writing: bool = False) -> str:
    with pytest.raises(TableRefused) as refused:
        find_table(f"file://{root}", LOGS, for_writing=for_writing)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_missing_table_is_created_once_and_opened_afterwards(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    assert find_table(url, LOGS) is None
    assert open_or_create_table(url, LOGS).version() == 0
    opened = open_or_create_table(url, LOGS)
    assert opened.version() == 0
    assert find_table(url, LOGS) is not None


@pytest.mark.parametrize("leftover", [None, "00000000000000000000.json#1", "_commit_1.json.tmp"])
def test_a_log_without_a_commit_is_a_table_that_does_not_exist_yet(
    tmp_path: Path, leftover: str | None
) -> None:
    """A creator that is at work, or has stopped, does not prevent reading or creating the table."""
    log = path_of(tmp_path) / "_delta_log"
    log.mkdir(parents=True)
    if leftover is not None:
        (log / leftover).write_text("{}")
    url = f"file://{tmp_path}"
    assert find_table(url, LOGS) is None
    assert open_or_create_table(url, LOGS).version() == 0


@pytest.mark.parametrize(
    "occupied",
    [
        "notes.txt",
        "accepted_date=2026-09-21/part-0.parquet",
        "_delta_log/_last_checkpoint",
        "_delta_log/00000000000000000050.checkpoint.parquet",
    ],
)
def test_a_path_with_anything_else_is_refused(tmp_path: Path, occupied: str) -> None:
    """Data without a usable log is reported, never treated as an empty table."""
    file = path_of(tmp_path) / occupied
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    assert "cannot use lake table" in refusal(tmp_path)
    with pytest.raises(TableRefused):
        open_or_create_table(f"file://{tmp_path}", LOGS)
    assert file.read_text() == "mine"


def test_data_next_to_a_log_without_a_commit_is_refused(tmp_path: Path) -> None:
    (path_of(tmp_path) / "_delta_log").mkdir(parents=True)
    (path_of(tmp_path) / "part-0.parquet").write_text("data")
    assert "not a Delta table: move it away" in refusal(tmp_path)


def test_a_file_in_the_place_of_a_table_is_refused(tmp_path: Path) -> None:
    path_of(tmp_path).write_text("no folder")
    assert "not a Delta table: move it away" in refusal(tmp_path)


def test_a_table_created_during_the_check_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process creates the table after the first attempt to open it."""
    url = f"file://{tmp_path}"
    is_occupied: Callable[..., bool] = delta._is_occupied

    def create_first(location: delta.TableLocation) -> bool:
        monkeypatch.undo()
        open_or_create_table(url, LOGS)
        return is_occupied(location)

    monkeypatch.setattr(delta, "_is_occupied", create_first)
    opened = find_table(url, LOGS)
    assert opened.version() == 0


def add_commit(root: Path, action: dict[str, object]) -> None:
    table = open_or_create_table(f"file://{root}", LOGS)
    commit = path_of(root) / "_delta_log" / f"{table.version() + 1:020d}.json"
    commit.write_text(json.dumps(action))


READER_FEATURES = {
    "columnMapping",
    "deletionVectors",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}


def add_feature(root: Path, *features: str, properties: dict[str, str] | None = None) -> None:
    reader = [feature for feature in features if feature in READER_FEATURES]
    protocol: dict[str, object] = {
        "minReaderVersion": 3 if reader else 1,
        "minWriterVersion": 7,
        "writerFeatures": ["appendOnly", "invariants", *features],
    }
    if reader:
        protocol["readerFeatures"] = reader
    add_commit(root, {"protocol": protocol})
    if properties:
        add_properties(root, properties)


def add_properties(root: Path, properties: dict[str, str]) -> None:
    first = path_of(root) / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    (metadata,) = (action for action in actions if "metaData" in action)
    metadata["metaData"]["configuration"] |= properties
    table = DeltaTable(path_of(root))
    commit = path_of(root) / "_delta_log" / f"{table.version() + 1:020d}.json"
    commit.write_text(json.dumps(metadata))


@pytest.mark.parametrize("for_writing", [False, True])
@pytest.mark.parametrize(
    "features",
    [
        ("deletionVectors",),
        ("columnMapping",),
        ("clustering", "domainMetadata"),
        ("domainMetadata", "rowTracking"),
        ("inCommitTimestamp",),
        ("typeWidening-preview",),
        ("v2Checkpoint",),
        ("vacuumProtocolCheck",),
        ("aFeatureOfTheFuture",),
    ],
)
def test_unsupported_features_are_refused_by_name(
    tmp_path: Path, features: tuple[str, ...], for_writing: bool
) -> None:
    """Both readers and writers refuse, also features of writers that this build does not know."""
    open_or_create_table(f"file://{tmp_path}", LOGS)
    add_feature(tmp_path, *features)
    found = refusal(tmp_path, for_writing=for_writing)
    assert f"its features {', '.join(features)} must be off" in found


@pytest.mark.parametrize(
    ("properties", "feature"),
    [
        ({"delta.appendOnly": "true"}, "appendOnly"),
        ({"delta.constraints.positive": "seq > 0"}, "checkConstraints"),
        ({"delta.enableRowTracking": "true"}, "rowTracking"),
    ],
)
def test_features_that_the_properties_turn_on_are_refused(
    tmp_path: Path, properties: dict[str, str], feature: str
) -> None:
    """A table of an old writer version does not list the features that it uses."""
    open_or_create_table(f"file://{tmp_path}", LOGS)
    add_properties(tmp_path, properties)
    assert f"its features {feature} must be off" in refusal(tmp_path)


def test_features_that_are_listed_and_not_used_are_accepted(tmp_path: Path) -> None:
    """A tool that turns on the change feed lists the features of the old versions."""
    url = f"file://{tmp_path}"
    open_or_create_table(url, LOGS)
    add_feature(
        tmp_path,
        "changeDataFeed",
        "checkConstraints",
        "generatedColumns",
        properties={"delta.enableChangeDataFeed": "true"},
    )
    assert find_table(url, LOGS, for_writing=True) is not None


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (
            CommitFailedError("Failed to commit transaction: Concurrent transaction failed."),
            CommitConflict,
        ),
        (CommitFailedError("Tried committing existing table version: 3"), CommitConflict),
        (CommitFailedError("Log storage error: Generic S3 error: timed out"), OutcomeUnknown),
        (CommitFailedError("Transaction failed: dispatch failure"), OutcomeUnknown),
        (OSError("Generic S3 error: connection reset"), OutcomeUnknown),
        (CommitFailedError("Unsupported table features required: [RowTracking]"), TableRefused),
        (
            CommitFailedError("The transaction includes Remove action with data change"),
            TableRefused,
        ),
        (DeltaError("Kernel error"), TableRefused),
    ],
)
def test_only_a_lost_race_is_a_conflict(raised: Exception, expected: type[SluiceError]) -> None:
    with (
        pytest.raises(SluiceError) as translated,
        delta_errors_translated(TableLocation(uri="/lake/v1/logs")),
    ):
        raise raised
    assert type(translated.value) is expected


def test_a_lost_race_is_recognized_by_the_error_of_delta_rs(tmp_path: Path) -> None:
    """The texts of the library, which the translation depends on."""
    url = f"file://{tmp_path}"
    first, second = open_or_create_table(url, LOGS), open_or_create_table(url, LOGS)

    def commit(opened: DeltaTable, retries: int) -> None:
        with delta_errors_translated(TableLocation(uri=opened.table_uri)):
            opened.create_write_transaction(
                [],
                "append",
                delta_schema(LOGS),
                [LOGS.partition_column],
                commit_properties=CommitProperties(
                    app_transactions=[Transaction("app", 1)], max_commit_retries=retries
                ),
            )

    commit(first, 3)
    with pytest.raises(CommitConflict):
        commit(second, 3)
    with pytest.raises(CommitConflict):
        commit(second, 0)


def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    """It is never read as an empty table."""
    open_or_create_table(f"file://{tmp_path}", LOGS)
    for commit in (path_of(tmp_path) / "_delta_log").glob("*.json"):
        commit.write_text("{ not json")
    assert "cannot use lake table: it cannot be opened" in refusal(tmp_path)


def test_every_wrong_column_is_named(tmp_path: Path) -> None:
    write_deltalake(path_of(tmp_path), pa.table({"agent_id": [1], "accepted_date": ["x"]}))
    for found in (refusal(tmp_path), refusal(tmp_path, for_writing=True)):
        assert "its schema is not that of this version" in found
        assert "column agent_id must be string, found long" in found
        assert "column boot_id must be string, found none" in found


def test_additional_columns_are_accepted_for_reading_only(tmp_path: Path) -> None:
    schema = arrow_schema(LOGS).append(pa.field("more", pa.string()))
    empty = schema.empty_table()
    write_deltalake(path_of(tmp_path), empty, partition_by=["accepted_date"])
    assert find_table(f"file://{tmp_path}", LOGS) is not None
    assert "see columns more" in refusal(tmp_path, for_writing=True)


def test_another_order_of_the_columns_is_accepted_for_reading_only(tmp_path: Path) -> None:
    names = arrow_schema(LOGS).names
    empty = arrow_schema(LOGS).empty_table().select([*names[1:-1], names[0], names[-1]])
    write_deltalake(path_of(tmp_path), empty, partition_by=["accepted_date"])
    assert find_table(f"file://{tmp_path}", LOGS) is not None
    assert "see the order of its columns" in refusal(tmp_path, for_writing=True)


def test_another_partition_column_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(
        path_of(tmp_path), Schema.from_json(schema_json(LOGS)), partition_by=["agent_id"]
    )
    assert "it must be partitioned by accepted_date" in refusal(tmp_path)


def test_check_tables_refuses_any_table_that_cannot_be_written(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    check_tables(url)
    for table in TABLES:
        open_or_create_table(url, table)
    check_tables(url)
    other = tmp_path / "other"
    path_of(other, BATCHES.name).write_text("no folder")
    with pytest.raises(TableRefused):
        check_tables(f"file://{other}")


def of_an_earlier_version(root: Path) -> Path:
    """Create a table without the columns that later versions add."""
    schema = arrow_schema(LOGS)
    for column in LOGS.addable_columns:
        schema = schema.remove(schema.get_field_index(column.name))
    write_deltalake(path_of(root), schema.empty_table(), partition_by=["accepted_date"])
    return path_of(root)


def test_a_writer_adds_the_columns_that_an_earlier_version_did_not_have(tmp_path: Path) -> None:
    """A reader leaves the table as it is; the second writer has nothing to add."""
    url, path = f"file://{tmp_path}", of_an_earlier_version(tmp_path)
    read = find_table(url, LOGS)
    assert read is not None
    assert is_extended(read, LOGS)
    assert DeltaTable(path).version() == 0
    for _ in range(2):
        written = find_table(url, LOGS, for_writing=True, extend=True)
        assert written is not None
        assert written.version() == 1
        assert {field.name for field in written.schema().fields} == set(arrow_schema(LOGS).names)
        assert is_extended(written, LOGS)


def test_a_table_of_this_version_is_not_extended(tmp_path: Path) -> None:
    assert not is_extended(open_or_create_table(f"file://{tmp_path}", LOGS), LOGS)


def test_two_writers_may_add_the_columns_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, path = f"file://{tmp_path}", of_an_earlier_version(tmp_path)
    check = delta._check_schema

    def other_first(location: TableLocation, *args: object, **more: object) -> None:
        check(location, *args, **more)  # type: ignore[arg-type]
        monkeypatch.setattr(delta, "_check_schema", check)
        assert find_table(url, LOGS, for_writing=True, extend=True) is not None

    monkeypatch.setattr(delta, "_check_schema", other_first)
    written = find_table(url, LOGS, for_writing=True, extend=True)
    assert written is not None
    assert (written.version(), DeltaTable(path).version()) == (1, 1)
