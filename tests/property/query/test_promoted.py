"""Promoted columns change how a question is answered, and never the answer."""

import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.repetitions import times

from sluice_lake.data_files import list_files
from sluice_lake.delta import find_table, open_or_create_table
from sluice_lake.locations import lake_location
from sluice_lake.promoted import add_promoted, table_of
from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import LOGS, Table
from sluice_protocol.promotions import PromotedType, Promotion, column_of
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.engine import LAKE, QueryEngine, open_engine
from sluice_query.logql.expressions import LogQuery, Matcher, MatchOperator
from sluice_query.promoted import register_runs
from sluice_query.pruning import SelectedFiles, newest_files, select_files
from sluice_query.request import Histogram, Query, RecordField, TopValues
from sluice_query.settings import QuerySettings
from sluice_query.statements import RecordSources, SqlStatement, counts_sql, records_sql
from sluice_query.views import histogram_sql, values_sql
from sluice_spark.commits import commit_files
from sluice_spark.compaction.rewrite import write_ordered

DAY_NS: Final = 1_760_000_000 * NS_PER_S
LONG: Final = "x" * 40
GREATEST: Final = "\U0010ffff"
TEXTS: Final = (
    *("", " ", "x", "y", "ä", f"{LONG}a", f"{LONG}b", LONG, f"{'x' * 32}{GREATEST}z"),
    *("0", "-0", "-0.0", "0.0", "500", "500.0", "0500", "+500", "5e2", "1_000", "500 "),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "9" * 40),
    *(
        "9007199254740992",
        "9007199254740993",
        "9007199254740993.5",
        "-9223372036854775807",
        "1",
        "-5",
    ),
    *("nan", "NaN", "inf", "1e999", "5e-324", "0.1", "0.10", "1.7976931348623157e308"),
    *("true", "false", "True", "null", "{}"),
)
KEYS: Final = {
    "text": PromotedType.TEXT,
    "long": PromotedType.INTEGER,
    "double": PromotedType.FLOAT,
    "flag": PromotedType.BOOLEAN,
}
RECORDS_MAX: Final = 7


def promotion(key: str, source: Any = "attributes") -> Promotion:
    return Promotion(
        kind="logs",
        source=source,
        key=key,
        column=column_of(source, key),
        type=KEYS[key],
        decided_by="operator:test",
        decided_at_unix_ns=1,
    )


PROMOTIONS: Final = (*(promotion(key) for key in KEYS), promotion("text", "resource"))
FIELDS: Final = (
    *(RecordField("attributes", key) for key in (*KEYS, "other")),
    RecordField("resource", "text"),
)


def random_rows(random: Random, count: int, number: int) -> pa.Table:
    few = random.sample(TEXTS, random.choice((1, 2, len(TEXTS))))

    def pairs() -> dict[str, str] | None:
        found = {key: random.choice(few) for key in (*KEYS, "other") if random.random() < 0.6}
        return found if found or random.random() < 0.5 else None

    rows = []
    for seq in range(count):
        at_ns = DAY_NS + random.randrange(60) * NS_PER_S
        moment = datetime.fromtimestamp(at_ns // NS_PER_S, UTC)
        rows.append(
            {
                "agent_id": "host-1",
                "boot_id": f"b{number}",
                "seq": seq,
                "ts_ns": at_ns,
                "ts": moment,
                "accepted_at": moment,
                "queue_sequence": number,
                "body": random.choice(("x", "y")),
                "attributes": [*one.items()] if (one := pairs()) is not None else None,
                "resource": [("text", random.choice(few))] if random.random() < 0.5 else [],
                "accepted_date": date(2025, 10, 9),
            }
        )
    return pa.Table.from_pylist(rows, schema=arrow_schema(LOGS))


def make_lake(url: str, random: Random) -> None:
    """Write files of writers that know no promotion, some of them, or all, in any order."""
    open_or_create_table(url, LOGS)
    for number in range(1, random.choice((2, 4, 12))):
        known = random.sample(PROMOTIONS, random.randint(0, len(PROMOTIONS)))
        if random.random() < 0.3:
            add_promoted(url, "logs", known)
        opened = find_table(url, LOGS, for_writing=True)
        assert opened is not None
        table = random.choice((LOGS, table_of(opened, LOGS)))
        rows = random_rows(random, random.choice((1, 3, 20)), number)
        files = list(write_ordered(url, table, rows.to_batches()))
        commit_files(opened, table, files, {0: number}, {})


def random_query(random: Random, view: Any = None) -> Query:
    matchers = []
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        operator = random.choice([*MatchOperator, *[MatchOperator.EQUAL] * 4])
        is_pattern = operator in {MatchOperator.MATCHES, MatchOperator.MATCHES_NOT}
        value = random.choice(("5.*", "x", "", ".*0") if is_pattern else TEXTS)
        matchers.append(Matcher(random.choice([*KEYS, "other"]), operator, value))
    pairs = [(random.choice([*KEYS]), random.choice(TEXTS))] if random.random() < 0.3 else []
    return Query(
        from_ns=UnixNs(DAY_NS),
        to_ns=UnixNs(DAY_NS + 60 * NS_PER_S),
        pipeline=LogQuery(tuple(matchers)),
        attributes=tuple(pairs),
        view=view,
    )


def in_maps(url: str) -> SelectedFiles:
    """Return every file of the table, without a promoted column."""
    opened = find_table(url, LOGS)
    assert opened is not None
    files = tuple(list_files(opened, LOGS))
    return SelectedFiles(location=lake_location(url, LOGS.name), read=files, lanes={})


def sources_of(engine: QueryEngine, query: Query, found: SelectedFiles) -> RecordSources:
    files = newest_files(found.read)
    if not files:
        return RecordSources(names=())
    if not found.promoted:
        engine.register_files(LAKE, files, found.location, found.extended)
        return RecordSources(names=(LAKE,))
    promoted = register_runs(engine, query, found, files)
    return RecordSources(names=tuple(promoted), promoted=promoted)


def answers(engine: QueryEngine, query: Query, found: SelectedFiles) -> list[object]:
    sources = sources_of(engine, query, found)

    def rows(statement: SqlStatement) -> Sequence[tuple[object, ...]]:
        return engine.rows(statement)

    view = query.view
    if not sources.names:
        return [[], []]
    if isinstance(view, TopValues):
        return [rows(values_sql(query, view, sources, records_max=RECORDS_MAX * 1000))]
    if isinstance(view, Histogram):
        return [sorted(rows(histogram_sql(query, view, sources)), key=str)]
    return [rows(counts_sql(query, sources)), rows(records_sql(query, sources))]


@pytest.fixture(scope="module")
def engine() -> Iterator[QueryEngine]:
    with open_engine(QuerySettings(threads=1)) as opened:
        yield opened


def is_nothing(found: list[object]) -> bool:
    return found in ([[], []], [[]]) or found == [[(0, None, None)], []]


@pytest.mark.parametrize("seeds", [1, pytest.param(times(40), marks=pytest.mark.long)])
def test_any_mix_of_files_gives_the_answers_of_the_maps(engine: QueryEngine, seeds: int) -> None:
    """Values that do not convert, beyond 64 bits, cut bounds and absent keys included."""
    for seed in range(seeds):
        compare_answers(engine, Random(seed))


def compare_answers(engine: QueryEngine, random: Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"file://{folder}"
        make_lake(url, random)
        for _ in range(12):
            field = random.choice(FIELDS)
            view = random.choice((None, TopValues(field=field, limit=1000)))
            if random.random() < 0.2:
                view = Histogram(step_ns=10 * NS_PER_S, by=field, top=20)
            query = random_query(random, view)
            by_map = answers(engine, query, in_maps(url))
            by_column = answers(engine, query, select_files(url, LOGS, query, ()))
            assert by_column == by_map or (is_nothing(by_column) and is_nothing(by_map)), query


def whole_table(url: str) -> Table:
    opened = find_table(url, LOGS)
    assert opened is not None
    return table_of(opened, LOGS)


def test_a_file_that_another_program_merged_is_searched_in_its_maps(
    engine: QueryEngine, tmp_path: Path
) -> None:
    """Such a file has the column, with nulls where the writer of the rows did not fill it."""
    url = f"file://{tmp_path}"
    opened = open_or_create_table(url, LOGS)
    rows = random_rows(Random(1), 1, 1)
    with_text = pa.array([[("text", "x")]], arrow_schema(LOGS).field("attributes").type)
    place = rows.schema.get_field_index("attributes")
    rows = rows.set_column(place, "attributes", with_text)
    commit_files(opened, LOGS, list(write_ordered(url, LOGS, rows.to_batches())), {0: 1}, {})
    add_promoted(url, "logs", PROMOTIONS)
    opened = find_table(url, LOGS, for_writing=True)
    assert opened is not None
    opened.optimize.compact()
    merged = find_table(url, LOGS)
    assert merged is not None
    whole = rows.append_column("attr_text", pa.nulls(1, pa.string()))
    merged.alter.set_table_properties({"delta.appendOnly": "false"})
    from deltalake import write_deltalake  # noqa: PLC0415 - the other program

    write_deltalake(
        merged.table_uri, whole, mode="overwrite", schema_mode="merge", partition_by=None
    )
    query = Query(
        from_ns=UnixNs(DAY_NS),
        to_ns=UnixNs(DAY_NS + 60 * NS_PER_S),
        pipeline=LogQuery((Matcher("text", MatchOperator.EQUAL, "x"),)),
    )
    found = select_files(url, LOGS, query, ())
    assert found.promoted
    assert [one.promoted for one in found.read] == [{}]
    assert answers(engine, query, found)[0][0][0] == 1  # type: ignore[index]


def write_texts(url: str, key: str, texts: Sequence[str]) -> None:
    """Write one file of records with these texts under a promoted key, in row groups of ten."""
    open_or_create_table(url, LOGS)
    add_promoted(url, "logs", [promotion(key)])
    opened = find_table(url, LOGS, for_writing=True)
    assert opened is not None
    rows = random_rows(Random(1), len(texts), 1)
    maps = pa.array([[(key, text)] for text in texts], rows.schema.field("attributes").type)
    rows = rows.set_column(rows.schema.get_field_index("attributes"), "attributes", maps)
    files = list(write_ordered(url, whole_table(url), rows.to_batches()))
    commit_files(opened, whole_table(url), files, {0: 1}, {})
    [path] = Path(url.removeprefix("file://")).rglob("*.parquet")
    pq.write_table(pq.read_table(path), path, row_group_size=10)


def with_label(key: str, value: str) -> Query:
    return Query(
        from_ns=UnixNs(DAY_NS),
        to_ns=UnixNs(DAY_NS + 60 * NS_PER_S),
        pipeline=LogQuery((Matcher(key, MatchOperator.EQUAL, value),)),
    )


@pytest.mark.parametrize(
    ("key", "other", "groups"),
    [("long", "+35", 2), ("double", "+35", 2), ("text", "", 2), ("text", "5", 1)],
)
def test_a_label_skips_row_groups_by_the_column(
    engine: QueryEngine, tmp_path: Path, key: str, other: str, groups: int
) -> None:
    """One of the ten row groups may have a text that the column does not decide about."""
    url = f"file://{tmp_path}"
    texts = [f"{number:02}" if key == "text" else str(number) for number in range(100)]
    write_texts(url, key, [*texts[:35], other, *texts[36:]])
    query = with_label(key, "98")
    found = select_files(url, LOGS, query, ())
    assert answers(engine, query, found)[0][0][0] == 1  # type: ignore[index]
    statement = counts_sql(query, sources_of(engine, query, found))
    explained = SqlStatement(f"EXPLAIN ANALYZE {statement.text}", statement.values)
    assert f"Row Groups Scanned: {groups} / 10" in str(engine.rows(explained))


@pytest.mark.parametrize(
    ("key", "last", "is_read"),
    [
        *(("long", "99", False), ("long", "+99", True), ("double", "99", False)),
        *(("text", "99", False), ("text", "", True), ("flag", "true", True)),
    ],
)
def test_a_label_leaves_out_files_by_the_column(
    tmp_path: Path, key: str, last: str, is_read: bool
) -> None:
    """Not a file with a record that may have the label elsewhere."""
    url = f"file://{tmp_path}"
    write_texts(url, key, [*(str(number) for number in range(10, 99)), last])
    found = select_files(url, LOGS, with_label(key, "a"), ())
    assert bool(found.read) == is_read
