"""A search with index chunks returns what a plain scan of the lines finds, from few row groups."""

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pyarrow.parquet as pq
import pytest
from support.query_lake import bodies, deployment, log_batch, make_query, run_query
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_lake.data_files import list_files
from sluice_lake.delta import find_table
from sluice_lake.tables import LOGS
from sluice_protocol.fields import KINDS
from sluice_query.request import Query
from sluice_spark.index import make_chunk

ROWS_PER_GROUP: Final = 4
LINES_PER_FILE: Final = 60
FILES: Final = 3
_WORDS: Final = (
    *("timeout", "Connection", "RESET", "größer", "GRÖSSE", "naïve", "e\u0301te", "\u212aelvin"),
    *(
        "\u017feven",
        "\u0130stanbul",
        "日本語のログ",
        "a\0b\0c",
        "tab\there",
        "🚀launch",
        "x",
        "é",
        "\0",
    ),
)


def random_line(rng: Random) -> str:
    words = [rng.choice(_WORDS) for _ in range(rng.randrange(1, 6))]
    return rng.choice((" ", "", "=")).join([*words, f"{rng.getrandbits(40):x}"])


def index_every_file(place: Deployment) -> None:
    """Write each data file again in small row groups, and create its chunk."""
    opened = find_table(place.url, LOGS)
    assert opened is not None
    files = list_files(opened, LOGS)
    for file in files:
        path = place.root / "lake/v1/logs" / file.path
        pq.write_table(pq.read_table(path), path, row_group_size=ROWS_PER_GROUP)
    assert make_chunk(place.url, KINDS["logs"], files)


@pytest.fixture(scope="module")
def lake() -> Iterator[tuple[Deployment, list[str]]]:
    """Lines with attributes in three files of many row groups."""
    rng = Random(7)
    with tempfile.TemporaryDirectory() as folder:
        place = deployment(Path(folder), lanes=1)
        lines: list[str] = []
        for file in range(FILES):
            for start in range(0, LINES_PER_FILE, 20):
                number = file * LINES_PER_FILE + start
                some = [random_line(rng) for _ in range(20)]
                attributes = {"user": f"user {number}", "tag": "größe" if start else ""}
                attributes["path.name"] = f"/a/{number}"
                place.deliver(
                    [
                        log_batch(
                            some,
                            start=number,
                            from_ns=make_query().from_ns + number * 10**9,
                            attributes=attributes,
                        )
                    ]
                )
                lines += some
            ingest_locally(place.url)
        index_every_file(place)
        yield place, lines


def matching(pattern: str) -> str:
    """Return the question of LogQL for the lines that match a pattern."""
    return "{} |~ " + json.dumps(pattern, ensure_ascii=False).replace("\\u0000", "\\x00")


def answer(place: Deployment, query: Query) -> list[object]:
    return sorted(map(str, bodies(run_query(place, query))))


def needles(lines: list[str], rng: Random) -> Iterator[str]:
    """Yield parts of lines of 1 to 20 characters, some changed so that no line may have them."""
    while True:
        line = rng.choice(lines)
        start = rng.randrange(len(line))
        part = line[start : start + rng.randrange(1, 20)]
        yield part if rng.random() < 0.8 else part[:-1] + rng.choice("zq\0ü")


def test_a_text_is_found_in_every_line_that_contains_it(
    lake: tuple[Deployment, list[str]],
) -> None:
    """Also parts of characters that combine, NUL, and texts of one byte."""
    place, lines = lake
    rng = Random(1)
    for _, text in zip(range(8), needles(lines, rng), strict=False):
        expected = sorted(line for line in lines if text in line)
        assert answer(place, make_query(text=text)) == expected, text


def test_a_pattern_is_found_in_every_line_that_matches(
    lake: tuple[Deployment, list[str]],
) -> None:
    """Alternatives, repetitions and any case; what matches is decided without the index."""
    place, lines = lake
    rng = Random(2)
    parts = needles([line.replace("\0", " ") for line in lines], rng)
    forms: list[Callable[[str, str], str]] = [
        lambda a, b: f"{a}|{b}",
        lambda a, b: f"({a}|{b})",
        lambda a, b: f"(?:{a})+.*{b}?",
        lambda a, _: f"^.*{a}",
        lambda a, _: f"{a}[0-9a-f]{{2,}}",
    ]
    for number in range(len(forms)):
        a, b = re.escape(next(parts)), re.escape(next(parts))
        pattern = forms[number % len(forms)](a, b)
        expected = sorted(line for line in lines if re.search(pattern, line))
        assert answer(place, make_query(matching(pattern))) == expected, pattern


def test_a_search_without_case_returns_what_it_returns_without_chunks(
    lake: tuple[Deployment, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, lines = lake
    rng = Random(3)
    queries = [
        make_query(matching(f"(?i){re.escape(change(text))}"))
        for change in (str.upper, str.lower, str)
        for _, text in zip(range(2), needles(lines, rng), strict=False)
    ]
    with_chunks = [answer(place, query) for query in queries]
    monkeypatch.setattr("sluice_query.pruning.is_indexed", lambda _: False)
    assert with_chunks == [answer(place, query) for query in queries]
    assert sum(map(bool, with_chunks)) > len(queries) // 2


@pytest.mark.parametrize(
    ("question", "count", "read"),
    [
        ('{user="user 40"}', 20, 1),
        ('{user="user 41"}', 0, 0),
        ('{tag="größe"}', 120, 3),
        ('{tag="größe"} | user="user 0"', 0, 0),
        ('{tag=""}', 60, 3),
        ('{user=~"user 4."}', 20, 3),
        ('{service_name="web"}', 180, 3),
        ('{path_name="/a/40"}', 20, 1),
    ],
)
def test_a_label_is_found_by_its_value(
    lake: tuple[Deployment, list[str]], question: str, count: int, read: int
) -> None:
    place, _ = lake
    result = run_query(place, make_query(question))
    assert (len(result.records), result.summary.segments_read) == (count, read)


def test_an_attribute_is_searched_in_both_maps(lake: tuple[Deployment, list[str]]) -> None:
    place, _ = lake
    for pair, count, read in ((("user", "user 40"), 20, 1), (("service.name", "web"), 180, 3)):
        result = run_query(place, make_query(attributes=(pair,)))
        assert (len(result.records), result.summary.segments_read) == (count, read)


def test_only_row_groups_that_may_match_are_read(lake: tuple[Deployment, list[str]]) -> None:
    """The rest of the file has damaged pages; a file that may match often is read as a whole."""
    place, lines = lake
    needle = lines[LINES_PER_FILE + 9][-10:]
    assert sum(needle in line for line in lines) == 1
    [path] = [path for path in place.root.rglob("*.parquet") if _line_numbers(path, needle)]
    [row] = _line_numbers(path, needle)
    groups = LINES_PER_FILE // ROWS_PER_GROUP
    with damaged(path, group=(row // ROWS_PER_GROUP + 2) % groups):
        found = run_query(place, make_query(text=needle))
        assert (len(found.records), found.summary.reasons) == (1, ())
        assert found.summary.bytes_read < path.stat().st_size
        assert run_query(place, make_query(text=needle[:3])).summary.reasons != ()


def test_the_newest_records_are_read_from_the_newest_row_groups(
    lake: tuple[Deployment, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a text, and without chunks; the rest of the newest file has damaged pages."""
    monkeypatch.setattr("sluice_query.streaming.FIRST_PART_BYTES", 1)
    place, lines = lake
    for limit, is_whole in ((6, True), (LINES_PER_FILE - 1, False)):
        query = make_query(newest_first=True, limit=limit)
        [path] = [path for path in place.root.rglob("*.parquet") if _line_numbers(path, lines[-1])]
        with damaged(path, group=5):
            found = run_query(place, query)
        assert (found.summary.reasons == ()) == is_whole
        if is_whole:
            assert bodies(found) == lines[: -limit - 1 : -1]
            assert found.summary.bytes_read < path.stat().st_size


@contextmanager
def damaged(path: Path, *, group: int) -> Iterator[None]:
    """Overwrite the texts of a row group of a data file, and restore them at the end."""
    whole = path.read_bytes()
    columns = pq.read_metadata(path).row_group(group)
    names = [columns.column(n).path_in_schema for n in range(columns.num_columns)]
    body = columns.column(names.index("body"))
    end = body.data_page_offset + body.total_compressed_size
    path.write_bytes(
        whole[: body.data_page_offset] + bytes(body.total_compressed_size) + whole[end:]
    )
    try:
        yield
    finally:
        path.write_bytes(whole)


def _line_numbers(path: Path, text: str) -> list[int]:
    if "/logs/" not in str(path):
        return []
    lines = pq.read_table(path, columns=["body"]).column("body").to_pylist()
    return [number for number, line in enumerate(lines) if text in line]
