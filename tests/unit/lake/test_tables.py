from sluice_lake.tables import (
    RECORD_TABLES,
    TABLES,
    accepted_date,
    accepted_hour,
)
from sluice_protocol.fields import KINDS


def test_the_partition_column_is_last_and_not_stored_in_the_files() -> None:
    for table in TABLES:
        assert table.columns[-1].name == table.partition_column
        assert table.partition_column not in {c.name for c in table.stored_columns}
        assert len({c.name for c in table.columns}) == len(table.columns)


def test_partitions_are_utc() -> None:
    at_ns = 1_700_000_000 * 10**9
    assert accepted_date(at_ns) == "2023-11-14"
    assert accepted_hour(at_ns) == "2023-11-14T22"


def test_each_kind_has_its_own_fields_in_this_order() -> None:
    names = {kind: [field.name for field in KINDS[kind].own_fields] for kind in RECORD_TABLES}
    assert names == {
        "logs": ["body", "severity"],
        "metrics": ["name", "value", "type"],
        "entries": ["key", "value"],
    }
