"""The product files and functions that an upload, an OTLP request and a query run."""

import re
from pathlib import Path

from benchmarks.trips import trips

PAGE = (Path(__file__).parents[3] / "docs" / "architecture.md").read_text()
ROWS = re.findall(r"^\| [a-zA-Z ]+ \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
SLACK = 4
"""Functions that run in some runs only, for example of timers."""


def test_no_trip_is_longer_than_its_page_states(tmp_path: Path) -> None:
    found = trips(tmp_path, jobs=False)
    assert [*found] == ["upload", "otlp", "query"]
    for (name, trip), (files, functions) in zip(found.items(), ROWS, strict=False):
        assert len(trip) <= int(files), f"{name}: {sorted(trip)}"
        assert sum(map(len, trip.values())) <= int(functions) + SLACK, name
