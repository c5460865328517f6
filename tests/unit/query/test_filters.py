"""Names of fields, and conditions on texts, literals and numbers."""

import math
import operator
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.query_lake import make_query

from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import Kind
from sluice_query.engine import QueryEngine, open_engine
from sluice_query.pruning import literals_of, required_texts
from sluice_query.request import (
    FilterOperator,
    RecordField,
    RecordFilter,
    agents_of,
    parse_field,
    parse_filter,
)
from sluice_query.settings import QuerySettings
from sluice_query.sql import SqlStatement, filter_conditions


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        ("body=x", "logs", RecordFilter(RecordField("body"), FilterOperator.EQUAL, "x")),
        ("body==", "logs", RecordFilter(RecordField("body"), FilterOperator.EQUAL, "=")),
        ("body=", "logs", RecordFilter(RecordField("body"), FilterOperator.EQUAL, "")),
        ("body!=a\nb", "logs", RecordFilter(RecordField("body"), FilterOperator.UNEQUAL, "a\nb")),
        ("body=~ x$", "logs", RecordFilter(RecordField("body"), FilterOperator.MATCHES, " x$")),
        (
            "name!~^a",
            "metrics",
            RecordFilter(RecordField("name"), FilterOperator.MATCHES_NOT, "^a"),
        ),
        (
            "severity>=17",
            "logs",
            RecordFilter(RecordField("severity"), FilterOperator.AT_LEAST, 17),
        ),
        ("value<-1.5e3", "metrics", RecordFilter(RecordField("value"), FilterOperator.LESS, -1500)),
        ("severity", "logs", RecordFilter(RecordField("severity"), FilterOperator.EXISTS)),
        (
            "!attributes.a.b c",
            "logs",
            RecordFilter(RecordField("attributes", "a.b c"), FilterOperator.ABSENT),
        ),
        (
            'resource."a=\\"b"=x=y',
            "entries",
            RecordFilter(RecordField("resource", 'a="b'), FilterOperator.EQUAL, "x=y"),
        ),
    ],
)
def test_a_filter_is_a_field_an_operator_and_a_value(
    text: str, kind: Kind, wanted: RecordFilter
) -> None:
    assert parse_filter(text, kind) == wanted


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("", "logs", "unknown field"),
        ("=x", "logs", "unknown field"),
        ("colour=red", "logs", "use one of agent_id, boot_id, level, service, host, instance"),
        ("value=1", "logs", "unknown field"),
        ("body=x", "entries", "unknown field"),
        ("attributes=x", "logs", "unknown field"),
        ("attributes.=x", "logs", "unknown field"),
        ("agent_id.x=1", "logs", "unknown field"),
        ('attributes."a\\x"=1', "logs", "key is not a JSON string"),
        ("severity=high", "logs", "must be a number"),
        ("severity=1_0", "logs", "must be a number"),
        ("severity=\u0661", "logs", "must be a number"),
        ("severity=~1", "logs", "a number does not match a pattern"),
        ("value>=NaN", "metrics", "NaN has no order"),
        ("body<x", "logs", "only severity, value and duration_ns have an order"),
        ("!body=x", "logs", "a filter with `!` has no value"),
        ("body=\ud800", "logs", "not valid UTF-8"),
    ],
)
def test_another_text_is_refused(text: str, kind: Kind, message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        parse_filter(text, kind)


@pytest.mark.parametrize("key", ["a", "a.b", "a=b", 'a"b', "", "ä !", "a\\b", "<>", "~"])
def test_the_name_of_a_field_means_the_field(key: str) -> None:
    field = RecordField("attributes", key)
    assert parse_field(field.name, "logs") == field
    assert parse_filter(f"{field.name}=x", "logs").field == field


def test_filters_of_agents_select_files() -> None:
    filters = [parse_filter(text, "logs") for text in ("agent_id=a", "agent_id!=b", "agent_id=c")]
    assert agents_of(filters) == ("a", "c")


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("connection reset", ("connection reset",)),
        ("^GET /api/v2$", ("GET /api/v2",)),
        (r"user=\d+ took 99\d ms", ("user=", " took 99", " ms")),
        (r"a\.b\[c\]", ("a.b[c]",)),
        ("colou?r", ("colo", "r")),
        ("ab{2,3}c", ("a", "c")),
        ("ab*c+d", ("a", "d")),
        ("(abc)def", ("def",)),
        ("[abc]def", ("def",)),
        ("[]x]def", ("def",)),
        ("[[:alpha:]]def", ("def",)),
        ("[[:^alpha:]]def", ("def",)),
        ("[^x[:^digit:]]def", ("def",)),
        ("x[a(b]y", ("x", "y")),
        ("abc|def", ()),
        ("(?i)abc", ()),
        (r"\Qa.b\E", ()),
        (r"\x41bc", ()),
        (".*", ()),
    ],
)
def test_literals_of_patterns(pattern: str, literals: tuple[str, ...]) -> None:
    """They are outside of groups, sets and repetition counts."""
    assert literals_of(pattern) == literals


def test_required_texts_of_a_query() -> None:
    """A plain text is required unchanged; without regard to case nothing is."""
    assert required_texts(make_query(text="a|b")) == ("a|b",)
    assert required_texts(make_query(text="abc", ignore_case=True)) == ()
    assert required_texts(make_query(text="ab+", regex=True)) == ("a",)
    assert required_texts(make_query()) == ()


_PIECES = st.sampled_from(
    ["a", "bc", "d", r"\d", r"\.", ".", "[ab]", "[^c]", "(ab)", "(a(b)c)", "a+", "b*", "c?", "d{2}"]
)


@given(pieces=st.lists(_PIECES, min_size=1, max_size=8), data=st.data())
@settings(max_examples=400, deadline=None)
def test_every_match_contains_the_literals(pieces: list[str], data: st.DataObject) -> None:
    pattern = "".join(pieces)
    compiled = re.compile(pattern)
    text = data.draw(st.from_regex(compiled))
    assert compiled.search(text)
    assert all(literal in text for literal in literals_of(pattern)), (pattern, text)


FILES: Final = (
    [1.0, 3.0, math.nan],
    [3.0, math.nan],
    [-math.inf, 0.0, math.inf],
    [math.nan],
    [5e-324],
)
COMPARED: Final[dict[FilterOperator, Callable[[float, float], bool]]] = {
    FilterOperator.EQUAL: operator.eq,
    FilterOperator.UNEQUAL: operator.ne,
    FilterOperator.LESS: operator.lt,
    FilterOperator.AT_MOST: operator.le,
    FilterOperator.GREATER: operator.gt,
    FilterOperator.AT_LEAST: operator.ge,
}


@pytest.fixture(scope="module")
def engine() -> Iterator[QueryEngine]:
    with open_engine(QuerySettings(threads=1)) as opened:
        yield opened


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder: Path = tmp_path_factory.mktemp("values")
    for number, values in enumerate(FILES):
        pq.write_table(table_of(values), folder / f"{number}.parquet")
    return [str(folder / f"{number}.parquet") for number in range(len(FILES))]


@pytest.mark.parametrize("number", ["3", "5", "0", "-1", "inf", "-inf", "nan"])
def test_a_value_matches_alike_in_files_and_in_memory(
    engine: QueryEngine, paths: list[str], number: str
) -> None:
    for one, compare in COMPARED.items():
        if number == "nan" and one not in {FilterOperator.EQUAL, FilterOperator.UNEQUAL}:
            continue
        (condition,) = filter_conditions([parse_filter(f"value{one}{number}", "metrics")])
        for path, values in zip(paths, FILES, strict=True):
            engine.register_table("memory", table_of(values))
            wanted = [value for value in values if matches(value, float(number), one, compare)]
            for source, before in (("memory", ()), ("read_parquet(?)", (path,))):
                found = engine.rows(
                    SqlStatement(
                        f"SELECT value FROM {source} WHERE {condition.text}",  # noqa: S608 - constants
                        (*before, *condition.values),
                    )
                )
                shown = [str(row[0]) for row in found]
                assert shown == list(map(str, wanted)), (one, number, source, values)


def table_of(values: list[float]) -> pa.Table:
    """Return samples of several agents, so that two of them have the same number."""
    return pa.table({"value": values, "seq": pa.array([7] * len(values), pa.int64())})


def matches(
    value: float, number: float, one: FilterOperator, compare: Callable[[float, float], bool]
) -> bool:
    """Compare as IEEE 754 does, except that NaN is equal to NaN."""
    if math.isnan(number) and math.isnan(value):
        return one is FilterOperator.EQUAL
    return compare(value, number)
