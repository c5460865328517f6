from sluice_protocol import lake


def test_lake_tables_partition_column_is_their_last() -> None:
    """The partition column stands last and is not stored in the files."""
    for table in lake.TABLES:
        assert table.columns[-1].name == table.partition_column
        assert table.partition_column not in {c.name for c in table.stored_columns}
        assert len({c.name for c in table.columns}) == len(table.columns)


def test_lake_partitions_are_utc() -> None:
    """Partitions are the UTC date and hour of acceptance."""
    at_ns = 1_700_000_000 * 10**9
    assert lake.accepted_date(at_ns) == "2023-11-14"
    assert lake.accepted_hour(at_ns) == "2023-11-14T22"
