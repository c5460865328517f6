"""Suggestions at the cursor of a LogQL text; `¦` marks it."""

import json

import pytest
from support.golden import GOLDEN

from sluice_query.logql.completion import SuggestionKind, Suggestions, complete
from sluice_query.logql.lexer import Token, TokenKind, next_token
from sluice_query.logql.mistakes import STAGE_WORDS

TEXTS = list(json.loads((GOLDEN / "logql/accepted.json").read_text(encoding="utf-8")))


def at(marked: str) -> Suggestions | None:
    return complete(marked.replace("¦", ""), marked.index("¦"))


@pytest.mark.parametrize(
    ("marked", "kind", "prefix", "label", "some"),
    [
        ("¦", "function", "", "", ("{", "rate", "sum")),
        ("ra¦", "function", "ra", "", ("rate",)),
        ("{¦", "label", "", "", ()),
        ("{¦}", "label", "", "", ()),
        ("{ap¦", "label", "ap", "", ()),
        ('{app="shop", lev¦', "label", "lev", "", ()),
        ("{app ¦", "operator", "", "", ("=", "!=", "=~", "!~")),
        ("{app=¦", "value", "", "app", ()),
        ('{app="sh¦', "value", '"sh', "app", ()),
        ('{app=~"sh¦"} |= "x"', "value", '"sh', "app", ()),
        ("{app=`sh¦", "value", "`sh", "app", ()),
        ('{app="shop"¦', "operator", "", "", (",", "}")),
        ('{app="shop"} ¦', "operator", "", "", ("|", "|=", "!=", "|~")),
        ('{app="shop"} | ¦', "stage", "", "", ("json", "logfmt", "drop")),
        ('{app="shop"} | js¦', "stage", "js", "", ("json",)),
        ('{app="shop"} | json ¦', "operator", "", "", ("|", "|=")),
        ('{app="shop"} | logfmt --s¦', "operator", "--s", "", ("--strict",)),
        ('{app="shop"} | json | status ¦', "operator", "", "", ("=", ">=", "=~")),
        ('{app="shop"} | json | level=¦', "value", "", "level", ()),
        ('{app="shop"} | level="e¦', "value", '"e', "level", ()),
        ('{app="shop"} | level="e" and ¦', "label", "", "", ()),
        ('{app="shop"} | level="e" ¦', "operator", "", "", ("and", "or", "|")),
        ('{app="shop"} | (level="e" or ¦', "label", "", "", ()),
        ('{app="shop"} | (level!="e¦', "value", '"e', "level", ()),
        ('{app="shop"} | drop ¦', "label", "", "", ()),
        ('{app="shop"} | drop a, b¦', "label", "b", "", ()),
        ('{app="shop"} | drop a ¦', "operator", "", "", (",", "|")),
        ('{app="shop"} |= "x" ¦', "operator", "", "", ("or", "|")),
        ('rate({app="shop"} ¦', "operator", "", "", ("[", "|", ")")),
        ('rate({app="shop"} |= "x" ¦', "operator", "", "", ("[", "|")),
        ('rate({app="shop"}[¦', "range", "", "", ("1m", "5m", "1h")),
        ('rate({app="shop"}[5¦', "range", "5", "", ("5m",)),
        ('rate({app="shop"}[5m ¦', "operator", "", "", ("]",)),
        ('rate({app="shop"}[5m] ¦', "operator", "", "", ("offset", ")")),
        ('rate({app="shop"}[5m] offset ¦', "range", "", "", ("1h",)),
        ('sum_over_time({app="shop"} | unw¦', "stage", "unw", "", ("unwrap",)),
        ('sum_over_time({app="shop"} | unwrap ¦', "label", "", "", ("duration(", "bytes(")),
        ('rate({app="shop"}[5m]) ¦', "operator", "", "", ("/", "*", ">")),
        ('rate({app="shop"}[5m]) / ¦', "function", "", "", ("{", "sum", "rate")),
        ("rate(¦", "function", "", "", ("{",)),
        ("sum(¦", "function", "", "", ("rate", "count_over_time")),
        ("sum ¦", "operator", "", "", ("(", "by", "without")),
        ("sum by ¦", "operator", "", "", ("(",)),
        ("sum by (¦", "label", "", "", ()),
        ("sum by (a, b¦", "label", "b", "", ()),
        ("sum by (a ¦", "operator", "", "", (",", ")")),
        ("sum by (a) ¦", "operator", "", "", ("(",)),
        ("sum by (a) (ra¦", "function", "ra", "", ("rate",)),
        ("topk(5, ¦", "function", "", "", ("rate", "sum")),
        ("sum(rate({}[5m])) ¦", "operator", "", "", ("by", "/")),
        ("sum(rate({}[5m])) by (¦", "label", "", "", ()),
    ],
)
def test_suggestions(
    marked: str, kind: str, prefix: str, label: str, some: tuple[str, ...]
) -> None:
    found = at(marked)
    assert found is not None
    assert (found.kind, found.prefix, found.label) == (kind, prefix, label)
    assert set(some) <= set(found.words)
    assert all(word.startswith(prefix) for word in found.words)


@pytest.mark.parametrize(
    "marked",
    [
        '{app="shop"} |= ¦',
        '{app="shop"} |= "err¦',
        '{app="shop"} | json a="b¦',
        '{app="shop"} | line_format ¦',
        "{} # comment ¦",
        "{app='sh¦",
        "{app=$¦",
        '{app="shop"} "a¦',
    ],
)
def test_nothing_is_suggested_where_nothing_is_known(marked: str) -> None:
    assert at(marked) is None


def starts(text: str) -> list[Token]:
    """Return the tokens of a text after the first one."""
    token = next_token(text, 0)
    found = []
    while (token := next_token(text, token.end)).kind is not TokenKind.END:
        found.append(token)
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_what_follows_in_a_question_is_suggested(text: str) -> None:
    """At the start of each operator and stage it is suggested; of each quoted value its label."""
    for token in starts(text):
        found = complete(f"{text[: token.start]} ", token.start + 1)
        is_free = token.text in {"(", ")", ",", "+", "-"} or token.kind is not TokenKind.SYMBOL
        if not is_free:
            assert found is not None, (text, token)
            assert token.text in found.words, (text, token, found)
        if found is not None and token.kind is TokenKind.STRING and found.kind != "operator":
            assert found.kind is SuggestionKind.VALUE, (text, token, found)
            assert found.label, (text, token)
        if token.kind is TokenKind.NAME and token.text in STAGE_WORDS and found is not None:
            assert found.kind is SuggestionKind.LABEL or token.text in found.words, (text, token)
