"""Names of fields, and conditions on texts, literals and numbers."""

import math
import operator
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from time import process_time
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice_lake.tables import Column, ColumnType
from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import Kind
from sluice_query.engine import QueryEngine, open_engine
from sluice_query.request import (
    ORDER_OPERATORS,
    FilterOperator,
    RecordField,
    RecordFilter,
    agents_of,
    parse_field,
    parse_filter,
)
from sluice_query.settings import QuerySettings
from sluice_query.statements import SqlStatement, filter_conditions

EXISTS: Final = FilterOperator.EXISTS


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
            "severity < 17 ",
            "logs",
            RecordFilter(RecordField("severity"), FilterOperator.LESS, 17),
        ),
        (
            "attributes.status >= 500",
            "logs",
            RecordFilter(
                RecordField("attributes", "status"), FilterOperator.AT_LEAST, Decimal(500)
            ),
        ),
        (
            'resource."a b "<1.50e3',
            "metrics",
            RecordFilter(RecordField("resource", "a b "), FilterOperator.LESS, Decimal("1.50e3")),
        ),
        (
            "attributes.a b  =  x y ",
            "logs",
            RecordFilter(RecordField("attributes", "a b"), FilterOperator.EQUAL, "x y "),
        ),
        ("body =~ x$", "logs", RecordFilter(RecordField("body"), FilterOperator.MATCHES, "x$")),
        ("attributes.a ", "logs", RecordFilter(RecordField("attributes", "a"), EXISTS)),
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
        ("body<x", "logs", "only severity, value, duration_ns, attributes.KEY and resource.KEY"),
        ("attributes.a>=x", "logs", "must be a number, field=`attributes.a`, value=`x`"),
        ("attributes.a>= ", "logs", "must be a number"),
        ("attributes.a>1_000", "logs", "must be a number"),
        ("attributes.a>0x10", "logs", "must be a number"),
        ("attributes.a>NaN", "logs", "NaN has no order"),
        ("!body=x", "logs", "a filter with `!` has no value"),
        ("body=\ud800", "logs", "not valid UTF-8"),
    ],
)
def test_another_text_is_refused(text: str, kind: Kind, message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        parse_filter(text, kind)


@pytest.mark.parametrize(
    "key", ["a", "a.b", "a=b", 'a"b', "", "ä !", "a\\b", "<>", "~", " a", "a ", " "]
)
def test_the_name_of_a_field_means_the_field(key: str) -> None:
    field = RecordField("attributes", key)
    assert parse_field(field.name, "logs") == field
    assert parse_filter(f"{field.name}=x", "logs").field == field


def test_filters_of_agents_select_files() -> None:
    filters = [parse_filter(text, "logs") for text in ("agent_id=a", "agent_id!=b", "agent_id=c")]
    assert agents_of(filters) == ("a", "c")


FILES: Final = (
    [1.0, 3.0, math.nan],
    [3.0, math.nan],
    [-math.inf, 0.0, math.inf],
    [math.nan],
    [5e-324],
)
COMPARED: Final[dict[FilterOperator, Callable[[Any, Any], bool]]] = {
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


ORDER: Final = {one: compare for one, compare in COMPARED.items() if one in ORDER_OPERATORS}
TEXTS: Final = (
    *("", " ", ".", "+", "-", "e5", "5 ", " 5", "5\n", "5\0", "0x10", "1_000", "1,000", "500ms"),
    *(
        "\uff15\uff10\uff10",
        "\u0665",
        "NaN",
        "nan",
        "-NaN",
        "true",
        "1e",
        "1e5 ",
        "--5",
        "1.5.2",
        "1e9999",
    ),
    *(
        "0",
        "-0",
        "+0",
        "0.0",
        "0e999",
        ".0",
        "+1",
        "1e5",
        "100000",
        ".5",
        "5.",
        "-.5",
        "1E+5",
        "1e-05",
    ),
    *(
        "500",
        "500.0",
        "5e2",
        "0500",
        "499.99999999999999999999",
        "500.00000000000000000001",
        "-500",
    ),
    *(
        "9007199254740992",
        "9007199254740993",
        "-9007199254740993",
        "0.1",
        "0.10000000000000000000001",
    ),
    *("1" * 40, "1" * 39 + "2", "1" * 400, "-" + "1" * 400, "0." + "0" * 400 + "1", "0" * 50 + "7"),
    *(
        "5e-324",
        "2e-324",
        "1e-400",
        "-1e-400",
        "1e400",
        "1.0e400",
        "1e401",
        "-1e400",
        "1e999",
        "1e-999",
    ),
    *("inf", "+Inf", "-inf", "Infinity", "-INFINITY", "infinit"),
)


def number_of(text: str | None) -> Decimal | None:
    """Return the number of a text by the rule of the documentation."""
    plain = r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?|[+-]?inf(inity)?"
    if text is None or re.fullmatch(plain, text, re.ASCII | re.IGNORECASE) is None:
        return None
    return Decimal(text)


def found_in_order(engine: QueryEngine, texts: list[str | None], text: str) -> list[str | None]:
    """Return the texts of an attribute that a condition on it selects."""
    maps = [None if one is None else [("k", one)] for one in texts]
    kind = pa.map_(pa.string(), pa.string())
    engine.register_table("texts", pa.table({"attributes": pa.array(maps, kind)}))
    (condition,) = filter_conditions([parse_filter(text, "logs")])
    statement = f"SELECT attributes['k'] FROM texts WHERE {condition.text}"  # noqa: S608 - constants
    return [row[0] for row in engine.rows(SqlStatement(statement, condition.values))]


@pytest.mark.parametrize("limit", [one for one in TEXTS if number_of(one) is not None])
def test_texts_are_compared_as_exact_numbers(engine: QueryEngine, limit: str) -> None:
    """Whatever their length and spelling; a text that is no number is on neither side."""
    texts = [None, *TEXTS]
    for one, compare in ORDER.items():
        numbers = [(text, number_of(text)) for text in texts]
        wanted = [
            text for text, found in numbers if found is not None and compare(found, Decimal(limit))
        ]
        assert found_in_order(engine, texts, f"attributes.k {one} {limit}") == wanted, one


_DIGITS = st.text("0159", min_size=0, max_size=45)
_NUMBERS = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(["", "", "", "+", "-"]),
    _DIGITS,
    st.sampled_from(["", "", "."]),
    _DIGITS,
    st.sampled_from(["", "", "", "e1", "E-2", "e+3", "e308", "e-320", "e-45", "e44"]),
)


@given(
    texts=st.lists(_NUMBERS | st.text(max_size=5), max_size=20), limit=_NUMBERS.filter(number_of)
)
@settings(max_examples=100, deadline=None)
def test_random_texts_are_compared_as_python_compares_them(
    engine: QueryEngine, texts: list[str], limit: str
) -> None:
    """Also neighbours of the limit that have the same double."""
    digits = limit.partition("e")[0].partition("E")[0]
    near = [limit.replace(digits, digits + end) for end in ("0", ".0", "1") if "." not in digits]
    given_texts = [*texts, limit, *near, *(f"{one}0" for one in near)]
    for one, compare in ORDER.items():
        numbers = [(text, number_of(text)) for text in given_texts]
        wanted = [t for t, found in numbers if found is not None and compare(found, Decimal(limit))]
        assert found_in_order(engine, list(given_texts), f"attributes.k{one}{limit}") == wanted, one


def test_equality_is_that_of_the_text(engine: QueryEngine) -> None:
    """So an id such as 007 is found by what was sent, and a value of a list by a click."""
    texts: list[str | None] = ["500", "500.0", "5e2", "0500"]
    assert found_in_order(engine, texts, "attributes.k = 500") == ["500"]
    assert found_in_order(engine, texts, "attributes.k != 500") == texts[1:]


def test_the_statement_of_an_order_has_no_value_of_the_query() -> None:
    (condition,) = filter_conditions([parse_filter("attributes.status >= 500", "logs")])
    number = "TRY_CAST(attributes[?] AS DOUBLE)"
    assert condition.text.startswith("(regexp_full_match(attributes[?], '[+-]?(?:[0-9]")
    assert (
        f"AND ({number} > ? OR ({number} = ? AND CASE WHEN length(attributes[?]) <= 15"
        in condition.text
    )
    assert condition.text.count("?]") + 4 == len(condition.values)
    assert (condition.values[2], condition.values[-2:]) == (500.0, (3, "5"))
    status = RecordField("attributes", "status")
    column = Column(name="promoted", type=ColumnType.STRING, meaning="", skippable=True)
    (of_column,) = filter_conditions(
        [parse_filter("attributes.status >= 500", "logs")], {status: column}
    )
    assert of_column.text == condition.text.replace("attributes[?]", "promoted")
    assert of_column.values == (500.0, 500.0, 3, "5")
    (zero,) = filter_conditions([parse_filter("resource.a <= 0", "logs")])
    assert zero.text.endswith(
        "AND (TRY_CAST(resource[?] AS DOUBLE) < ? OR (TRY_CAST(resource[?] AS DOUBLE) = ?"
        " AND NOT regexp_matches(resource[?], '^[+]?[0.]*[1-9iI]'))))"
    )


def test_a_long_text_that_is_no_number_is_refused_in_linear_time() -> None:
    before_s = process_time()
    with pytest.raises(BadUsage, match="must be a number"):
        parse_filter(f"attributes.k>{'1' * 30_000}x", "logs")
    assert process_time() - before_s < 2
