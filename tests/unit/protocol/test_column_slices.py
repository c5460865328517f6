"""Slices of columns are columns that pass every check, with the same records."""

from itertools import combinations

import pytest
from support.frames import all_kinds

from sluice_protocol.column_slices import slice_columns
from sluice_protocol.columns import Columns, check_columns
from sluice_protocol.ndjson import ndjson_from_columns


@pytest.mark.parametrize("columns", all_kinds(), ids=["logs", "metrics", "entries", "bare"])
def test_every_slice_has_the_records_of_its_range(columns: Columns) -> None:
    """Names that no record of the slice uses are left out: the check refuses unused names."""
    lines = list(ndjson_from_columns(columns))
    for start, stop in combinations(range(len(columns) + 1), 2):
        part = slice_columns(columns, start, stop)
        check_columns(part, stop - start)
        assert list(ndjson_from_columns(part)) == lines[start:stop]
