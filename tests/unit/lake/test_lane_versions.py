"""The lanes' positions in a table are those of delta-rs, at a few reads of the log."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from sluice_lake import delta
from sluice_lake.delta import (
    delta_schema,
    open_log,
    open_or_create_table,
    read_lane_versions,
    search_transactions,
)
from sluice_lake.errors import TableRefused, read_transaction
from sluice_lake.locations import TableLocation, lake_location
from sluice_lake.tables import LOGS, ingest_app_id

LANES = range(4)


class CountedLog:
    """The log of a table, which counts the files that are read."""

    def __init__(self, location: TableLocation) -> None:
        self.inner = open_log(location)
        self.names: list[str] = []

    def read(self, name: str) -> bytes | None:
        self.names.append(name)
        return self.inner.read(name)

    def open(self, name: str) -> Any:
        self.names.append(name)
        return self.inner.open(name)


class Place:
    """One table of records."""

    def __init__(self, root: Path) -> None:
        self.url = f"file://{root}"
        self.location = lake_location(self.url, LOGS.name)
        self.log = Path(self.location.uri, "_delta_log")
        open_or_create_table(self.url, LOGS)

    def commit(self, versions: Mapping[int, int], app: str | None = None) -> None:
        named = [Transaction(app or ingest_app_id(lane), last) for lane, last in versions.items()]
        self.open().create_write_transaction(
            [],
            "append",
            delta_schema(LOGS),
            [LOGS.partition_column],
            commit_properties=CommitProperties(app_transactions=named),
        )

    def open(self, version: int | None = None) -> DeltaTable:
        return DeltaTable(self.location.uri, version=version)

    def read(self, version: int | None = None) -> dict[int, int]:
        return read_lane_versions(self.location, self.open(version), LANES)

    def expected(self, version: int | None = None) -> dict[int, int]:
        opened = self.open(version)
        return {lane: opened.transaction_version(ingest_app_id(lane)) or 0 for lane in LANES}

    def files_read(self, lanes: range = LANES) -> int:
        counted = CountedLog(self.location)
        apps = [ingest_app_id(lane) for lane in lanes]
        assert search_transactions(counted, self.open().version(), apps).complete
        return len(counted.names)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_lane_without_batches_is_at_zero(place: Place) -> None:
    assert place.read() == dict.fromkeys(LANES, 0)


def test_lanes_in_the_newest_entry_cost_one_read(place: Place) -> None:
    for number in range(12):
        place.commit(dict.fromkeys(LANES, number))
    assert place.files_read() == 1
    assert place.read() == dict.fromkeys(LANES, 11)


def test_an_idle_lane_is_found_in_the_checkpoint(place: Place) -> None:
    place.commit(dict.fromkeys(LANES, 7))
    place.open().create_checkpoint()
    for number in range(8, 11):
        place.commit({0: number})
    assert place.read() == {0: 10, 1: 7, 2: 7, 3: 7}
    assert place.files_read() == 3 + len(["_last_checkpoint", "checkpoint"])


def test_entries_before_the_checkpoint_are_not_read(place: Place) -> None:
    for number in range(1, 20):
        place.commit({0: number})
    place.open().create_checkpoint()
    place.commit({0: 20})
    for entry in range(20):
        (place.log / f"{entry:020d}.json").unlink()
    assert place.read() == {0: 20, 1: 0, 2: 0, 3: 0}


def test_an_older_state_does_not_contain_newer_entries(place: Place) -> None:
    for number in range(1, 6):
        place.commit({number % 4: number})
    assert [place.read(version) for version in range(6)] == [
        place.expected(version) for version in range(6)
    ]


def test_transactions_of_other_jobs_are_not_positions(place: Place) -> None:
    place.commit({0: 3})
    place.commit({0: 99}, app="sluice-maintenance")
    assert place.read() == {0: 3, 1: 0, 2: 0, 3: 0}


@pytest.mark.parametrize(
    "damage",
    ["no JSON", '{"version": 1e999}', '{"version": ' + "[" * 100_000, "checkpoint", "bound"],
    ids=["pointer", "infinite", "nested", "checkpoint", "bound"],
)
def test_what_this_search_cannot_find_is_read_by_delta(
    place: Place, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 5):
        place.commit({number % 2: number})
    place.open().create_checkpoint()
    place.commit({0: 9})
    if damage == "checkpoint":
        monkeypatch.setattr(delta, "_search_checkpoint", lambda *_: False)
    elif damage == "bound":
        monkeypatch.setattr(delta, "ENTRIES_MAX", 0)
        place.commit({2: 1})
    else:
        (place.log / "_last_checkpoint").write_text(damage)
        (place.log / f"{0:020d}.json").unlink()
    assert place.read() == place.expected()


@pytest.mark.daily(1)
@pytest.mark.parametrize("seed", range(2))
def test_any_history_is_read_as_delta_reads_it(place: Place, seed: int) -> None:
    rng = random.Random(seed)
    ends = dict.fromkeys(LANES, 0)
    for _ in range(16):
        for lane in rng.sample(LANES, rng.randint(0, 3)):
            ends[lane] += rng.randint(1, 3)
        place.commit({lane: end for lane, end in ends.items() if end and rng.random() < 0.5})
        if rng.random() < 0.1:
            place.open().create_checkpoint()
        assert place.read() == place.expected()


def txn_without_version(log: Path) -> None:
    entry = log / f"{5:020d}.json"
    entry.write_bytes(entry.read_bytes().replace(b'"version":5', b'"vers":5'))


def txn_without_text(log: Path) -> None:
    entry = log / f"{5:020d}.json"
    entry.write_bytes(b'{"txn"\n' + entry.read_bytes())


def txn_as_a_list(log: Path) -> None:
    (log / f"{4:020d}.json").write_bytes(b'["txn"]\n')


def checkpoint_cut(log: Path) -> None:
    checkpoint = log / f"{3:020d}.checkpoint.parquet"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-9])


DAMAGES = (txn_without_version, txn_without_text, txn_as_a_list, checkpoint_cut)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_log_is_refused_in_one_line(place: Place, damage: Callable[[Path], None]) -> None:
    """The table is open already, as when a job runs while its disk fails."""
    for number in range(1, 6):
        place.commit({number % 2: number})
        if number == 3:
            place.open().create_checkpoint()
    opened = place.open()
    damage(place.log)
    with pytest.raises(
        TableRefused, match=r"damaged: .*; restore its log from a backup"
    ) as refused:
        read_lane_versions(place.location, opened, LANES)
    assert "\n" not in str(refused.value)


def test_a_transaction_in_a_damaged_log_is_refused(place: Place) -> None:
    """delta-rs opens this table; the damage is found when the transaction is read."""
    for number in range(1, 6):
        place.commit({0: number})
    txn_without_version(place.log)
    opened = place.open()
    with pytest.raises(TableRefused, match="its log cannot be read"):
        read_transaction(opened, "sluice-rollup")
    with pytest.raises(TableRefused, match="is damaged"):
        place.read()
