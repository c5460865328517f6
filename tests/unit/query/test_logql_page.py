"""`docs/logql.md` shows questions that are accepted, and names each word that is refused."""

import re
from pathlib import Path

import pytest

from sluice_protocol.errors import BadUsage
from sluice_query.logql.expressions import RangeOperator, VectorOperator
from sluice_query.logql.grammar import parse_logql
from sluice_query.logql.mistakes import (
    LINE_WORDS,
    REFUSED_FUNCTIONS,
    REFUSED_STAGES,
    REFUSED_WORDS,
    STAGE_WORDS,
)

PAGE = (Path(__file__).parents[3] / "docs/logql.md").read_text(encoding="utf-8")
EXAMPLES = [
    line
    for block in re.findall(r"```logql\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line
]


@pytest.mark.parametrize("line", EXAMPLES)
def test_each_example_is_accepted(line: str) -> None:
    parse_logql(line)


def test_each_word_of_the_language_has_an_example() -> None:
    shown = "\n".join(line.partition("  #")[0] for line in EXAMPLES)
    others = {"min_over_time", "first_over_time", "last_over_time", "min", "max", "count"}
    functions = {*RangeOperator, *VectorOperator} - others
    for word in (*functions, *STAGE_WORDS, *LINE_WORDS, "unwrap", "by", "without", "offset"):
        assert re.search(rf"(?<!\w){re.escape(word)}(?!\w)", shown), word


def test_each_refused_word_is_in_the_table() -> None:
    table = PAGE[PAGE.index("## What is refused") :]
    named = {word for row in table.splitlines() for word in re.findall(r"`(\w+)`", row[:80])}
    assert {*REFUSED_STAGES, *REFUSED_FUNCTIONS, *REFUSED_WORDS} - named == set()


def test_the_message_at_the_top_is_real() -> None:
    shown = re.search(r"```\n(unsupported word.*)\n```", PAGE)
    assert shown is not None
    with pytest.raises(BadUsage) as refused:
        parse_logql("{} | distinct a")
    assert str(refused.value) == shown[1]
