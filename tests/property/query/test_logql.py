"""Trees and texts of LogQL are each other's inverse, and no text breaks the parser."""

import ast
import os
import time
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.logql_trees import EXPRESSIONS
from support.repetitions import examples

from sluice_protocol.errors import BadUsage
from sluice_query.logql.completion import complete
from sluice_query.logql.expressions import BinaryOperation, Expression
from sluice_query.logql.formatting import format_logql
from sluice_query.logql.grammar import TEXT_CHARS_MAX, parse_logql

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
SEED = int(os.environ.get("SLUICE_FUZZ_SEED", "1"))
PIECES = (
    *('{app="shop"}', "{}", "{", "}", "(", ")", "[5m]", "[", "]", '|= "error"', "!=", "|~", "|>"),
    *(
        "| json",
        "| logfmt --strict",
        '| json a="b.c[0]"',
        '| pattern "<a> <b>"',
        "| regexp `(?P<a>x)`",
    ),
    *(
        "| a > 5",
        "| a >= 1.5s and b < 2KiB",
        "| drop a, b",
        "| keep",
        '| line_format "{{.a}}"',
        "unwrap",
    ),
    *(
        "| label_format a=b",
        "rate(",
        "sum by (a) (",
        "topk(3,",
        "quantile_over_time(0.9,",
        "by (a)",
    ),
    *(
        "offset 1h",
        "+ 2",
        "^ -1",
        "* 1e3",
        " or ",
        " and ",
        ",",
        "#",
        "'",
        '"',
        "`",
        "\\",
        "\n",
        " ",
    ),
    *(
        "count_over_time({}[1m])",
        "| unwrap duration(a)",
        "--x",
        "$__auto",
        "1h",
        "5MB",
        "é",
        "\x00",
    ),
    *(
        "hello world",
        "select *",
        "level:error",
        "a=b",
        "1" * 120,
        "9^9^9",
        "0/0",
        "{{",
        "\ud800",
        "@",
    ),
)
"""Parts of texts, right and wrong."""


@given(EXPRESSIONS)
@settings(max_examples=examples(200), deadline=None, suppress_health_check=SLOW)
def test_a_tree_is_read_from_its_text(expression: Expression) -> None:
    text = format_logql(expression)
    assert parse_logql(text) == expression


SYMBOLS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Mod: "%",
    ast.Pow: "^",
}
OPERATORS = st.sampled_from(list("+-*/%^^"))
SIDES = st.just("x") | st.builds("(x {} x {} x)".format, OPERATORS, OPERATORS)
SUMS = st.lists(st.tuples(OPERATORS, SIDES), min_size=2, max_size=8).map(
    lambda pairs: "x" + "".join(f" {operator} {side}" for operator, side in pairs)
)


def grouped_by_python(node: ast.expr) -> object:
    if isinstance(node, ast.BinOp):
        left, right = grouped_by_python(node.left), grouped_by_python(node.right)
        return (left, SYMBOLS[type(node.op)], right)
    return "x"


def grouped(query: object) -> object:
    if isinstance(query, BinaryOperation):
        return (grouped(query.left), query.operator.value, grouped(query.right))
    return "x"


@given(SUMS)
@settings(deadline=None)
def test_arithmetic_groups_as_in_python(text: str) -> None:
    found = parse_logql(text.replace("x", "rate({}[1m])"))
    expected = ast.parse(text.replace("^", "**"), mode="eval").body
    assert grouped(found) == grouped_by_python(expected)


WHOLE = (
    '{app="shop", level=~"err.*"} |= "a" or "b" != `c` | json | status >= 500 and path != "/"',
    '{} | logfmt --strict a, b="c" | (x > 1h30m or y < 5MB) | drop a, b="c" | line_format "{{.a}}"',
    'sum by (path) (rate({app="shop"} | pattern "<_> <path>" [5m] offset 1h)) / 2 ^ 3 > 0.5',
    'topk(5, quantile_over_time(0.99, {} | json | unwrap duration(t) | __error__="" [1m]) by (a))',
    "count_over_time({}[1m])-bytes_rate({} |> `<_> a` | label_format a=b,c=`{{.d|lower}}` [1d])",
)


def damaged(random: Random) -> str:
    """Return a question, or some pieces of LogQL in a row, with a few characters changed."""
    text = random.choice(WHOLE)
    if random.random() < 0.5:
        text = "".join(random.choice(PIECES) for _ in range(random.choice((1, 3, 6, 12))))
    for _ in range(random.choice((1, 1, 3))):
        at = random.randrange(len(text) + 1)
        text = text[:at] + random.choice((*PIECES, "", "")) + text[at + random.randrange(4) :]
    return text


def accepted(text: str) -> Expression | None:
    """Return the tree of a text, or None if it is refused in one line with a column."""
    try:
        return parse_logql(text)
    except BadUsage as error:
        message = str(error)
        assert message.isprintable(), text
        assert len(message) < 400, text
        assert ", column=`" in message, text
        return None


def test_damaged_texts_are_accepted_or_refused() -> None:
    """What is accepted keeps its tree in canonical form. The seed is 1 or `SLUICE_FUZZ_SEED`."""
    random = Random(SEED)
    trees = 0
    started = time.monotonic()
    for _ in range(10_000):
        expression = accepted(damaged(random))
        if expression is not None:
            trees += 1
            assert parse_logql(format_logql(expression)) == expression
    assert trees > 300
    assert time.monotonic() - started < 30


def test_a_damaged_text_can_be_completed() -> None:
    """Suggestions are known at many places, and a prefix is what the cursor touches."""
    random = Random(SEED)
    known = 0
    for _ in range(2_000):
        text = damaged(random)
        cursor = random.randrange(len(text) + 1)
        found = complete(text, cursor)
        if found is not None:
            known += 1
            assert text[:cursor].endswith(found.prefix)
    assert known > 500


@pytest.mark.daily(20)
@pytest.mark.parametrize("piece", PIECES)
def test_long_texts_are_refused_quickly(piece: str) -> None:
    """The time grows linearly, whatever is repeated."""
    started = time.monotonic()
    complete(piece * (TEXT_CHARS_MAX // len(piece)), TEXT_CHARS_MAX)
    for text in (piece * (TEXT_CHARS_MAX // len(piece)), "{}" + piece * (9_990 // len(piece))):
        accepted(text)
    assert time.monotonic() - started < 5
