"""On a directory, a commit is durable before anything relies on it."""

import os
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from sluice_lake.delta import delta_schema, open_or_create_table
from sluice_lake.durable_files import sync_commits, sync_state
from sluice_lake.tables import LOGS


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the paths that are synced, in this test from here on."""
    found: set[str] = set()
    monkeypatch.setattr(
        os, "fsync", lambda fd: found.add(str(Path(f"/proc/self/fd/{fd}").readlink()))
    )
    return found


def commit(table: Path) -> None:
    DeltaTable(table).create_write_transaction(
        [],
        "append",
        delta_schema(LOGS),
        [LOGS.partition_column],
        commit_properties=CommitProperties(app_transactions=[Transaction("any", 1)]),
    )


def test_a_new_table_is_durable_with_the_folders_above_it(tmp_path: Path, synced: set[str]) -> None:
    open_or_create_table(f"file://{tmp_path}", LOGS)
    table = tmp_path / "lake/v1/logs"
    assert synced == {
        str(place)
        for place in (
            table / f"_delta_log/{0:020d}.json",
            table / "_delta_log",
            table,
            *table.parents[:3],
        )
    }


def test_entries_and_checkpoints_after_a_version_are_synced(
    tmp_path: Path, synced: set[str]
) -> None:
    """Other writers may have committed in between, so the last version is not known."""
    open_or_create_table(f"file://{tmp_path}", LOGS)
    table = tmp_path / "lake/v1/logs"
    for _ in range(4):
        commit(table)
    DeltaTable(table).create_checkpoint()
    synced.clear()
    sync_commits(str(table), 2)
    names = {Path(place).name for place in synced}
    entries = {f"{version:020d}.json" for version in (3, 4)}
    checkpoint = {f"{4:020d}.checkpoint.parquet", "_last_checkpoint"}
    assert names == {"logs", "_delta_log", *entries, *checkpoint}


def test_a_state_is_synced_without_the_entries_that_delta_removed(
    tmp_path: Path, synced: set[str]
) -> None:
    open_or_create_table(f"file://{tmp_path}", LOGS)
    table = tmp_path / "lake/v1/logs"
    for _ in range(3):
        commit(table)
    DeltaTable(table).create_checkpoint()
    commit(table)
    for version in range(3):
        (table / f"_delta_log/{version:020d}.json").unlink()
    synced.clear()
    sync_state(DeltaTable(table))
    assert {Path(place).name[18:20] for place in synced if place.endswith(".json")} == {"03", "04"}


def test_nothing_is_synced_for_a_bucket(synced: set[str]) -> None:
    sync_commits("s3://bucket/lake/v1/logs", 0)
    assert not synced
