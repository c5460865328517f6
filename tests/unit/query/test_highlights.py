"""Ranges of a record that match, in UTF-16 code units."""

import pytest

from sluice_protocol.units import UnixNs
from sluice_query.engine import open_engine
from sluice_query.logql.planning import plan_query
from sluice_query.request import Query
from sluice_query.result import Row
from sluice_query.search import RANGES_MAX, add_highlights, marked_ranges
from sluice_query.settings import QuerySettings


@pytest.mark.parametrize(
    ("text", "body", "wanted"),
    [
        ('{} |= "b"', "abcb", [(1, 2), (3, 4)]),
        ('{} |= "a.b"', "axb a.b", [(4, 7)]),
        ('{} |= "\\\\"', "a\\b", [(1, 2)]),
        ('{} |= "b"', "\U0001f600äb", [(3, 4)]),
        (r"{} |~ `\bcat\b`", "concat cat", [(7, 10)]),
        ('{} |~ "x*"', "axxb", [(1, 3)]),
        ('{} |~ "(?i)C."', "cat", [(0, 2)]),
        ('{} |= "a"', "", []),
        ('{} |= "a"', "a\ue0f5", []),
    ],
)
def test_every_match_of_the_engine_is_a_range(
    text: str, body: str, wanted: list[tuple[int, int]]
) -> None:
    query = plan_query(text, Query(from_ns=UnixNs(0), to_ns=UnixNs(1)))
    rows: list[Row] = [{"body": body}, {"body": "zzz"}]
    with open_engine(QuerySettings(threads=1)) as engine:
        add_highlights(engine, query, rows)
    # Adjacent matches are separate ranges.
    joined: list[tuple[int, int]] = []
    found = rows[0]["highlights"]
    assert isinstance(found, list)
    for start, end in found:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    assert (joined, rows[1]["highlights"]) == (wanted, [])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{} |= "b"', [(1, 2), (3, 4)]),
        ('{} |= "b" |~ "(?i)C"', [(1, 2), (2, 3), (3, 4)]),
        ('{} |= "x" or "a"', [(0, 1)]),
        ('{} != "b" !~ "c"', None),
        ('{} |= "."', []),
    ],
)
def test_what_filters_of_lines_found_is_marked(
    text: str, wanted: list[tuple[int, int]] | None
) -> None:
    query = plan_query(text, Query(from_ns=UnixNs(0), to_ns=UnixNs(1)))
    rows: list[Row] = [{"body": "abcb"}]
    with open_engine(QuerySettings(threads=1)) as engine:
        add_highlights(engine, query, rows)
    assert rows[0].get("highlights") == wanted


def test_the_number_of_ranges_is_bounded() -> None:
    assert len(marked_ranges("\ue0f5x\ue0f6" * (RANGES_MAX + 5))) == RANGES_MAX
