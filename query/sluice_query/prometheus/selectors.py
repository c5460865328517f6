"""Instant selectors of PromQL, `name{label="value"}`: all of PromQL that these routes answer.

A stock Prometheus with `remote_read` evaluates the rest.
"""

import re
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_query.logql.expressions import Matcher, MatchOperator
from sluice_query.logql.lexer import TokenKind, check_characters, next_token, refuse_at

NAME: Final = "__name__"
"""The label with the name of a metric."""
REMOTE_READ: Final = (
    "send it to a Prometheus with remote_read from this service, which evaluates all of PromQL"
)
TEXT_CHARS_MAX: Final = 10_000
_SPACE: Final = re.compile(r"\s*")
_METRIC: Final = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR: Final = re.compile(r"=~|!~|!=|=(?!=)")
_WORD: Final = re.compile(r"\w+|[^\w\s]+")
_SINGLE: Final = re.compile(r"'((?:[^'\\\n]|\\.)*)'")


def parse_selector(text: str) -> tuple[Matcher, ...]:
    """Return the matchers of an instant selector; all must be met.

    Raises:
        BadUsage: The text is another expression of PromQL, or none.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise BadUsage(f"query must have at most {TEXT_CHARS_MAX} characters")
    check_characters(text)
    at = _after_space(text, 0)
    matchers = []
    if metric := _METRIC.match(text, at):
        matchers.append(Matcher(NAME, MatchOperator.EQUAL, metric.group()))
        at = _after_space(text, metric.end())
    if text.startswith("{", at):
        found, at = _braces(text, at + 1)
        matchers += found
        at = _after_space(text, at)
    elif not matchers:
        raise _unsupported(text, at)
    if at < len(text):
        # Of `rate(up[5m])` and `sum by (job) (up)`, the first word is what is not supported.
        is_word = metric is not None and (text[at] == "(" or text[at].isalpha())
        raise _unsupported(text, metric.start() if metric and is_word else at)
    return tuple(matchers)


def _braces(text: str, start: int) -> tuple[list[Matcher], int]:
    """Return the matchers up to the brace that closes, and the place after it."""
    matchers: list[Matcher] = []
    at = _after_space(text, start)
    while not text.startswith("}", at):
        label = _LABEL.match(text, at)
        if label is None:
            raise _expected("a label", "write a label, such as `job`", text, at)
        at = _after_space(text, label.end())
        operator = _OPERATOR.match(text, at)
        if operator is None:
            raise _expected("an operator", "write =, !=, =~ or !~", text, at)
        value, at = _string(text, _after_space(text, operator.end()))
        matchers.append(Matcher(label.group(), MatchOperator(operator.group()), value))
        at = _after_space(text, at)
        if text.startswith(",", at):
            at = _after_space(text, at + 1)
        elif not text.startswith("}", at):
            raise _expected("a comma or a brace", "write `,` or `}`", text, at)
    return matchers, at + 1


def _string(text: str, at: int) -> tuple[str, int]:
    """Return a quoted text and the place after it. Single quotes are read as double quotes."""
    if single := _SINGLE.match(text, at):
        inner = re.sub(r'\\(\')|(")', lambda one: one[1] or '\\"', single[1])
        return next_token(f'"{inner}"', 0).string, single.end()
    if text[at : at + 1] in ('"', "`"):
        token = next_token(text, at)
        if token.kind is TokenKind.STRING:
            return token.string, token.end
    raise _expected("a quoted text", 'write the value in quotes, such as `"api"`', text, at)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _word_at(text: str, at: int) -> str:
    found = _WORD.search(text, at)
    return found.group() if found else ""


def _expected(what: str, advice: str, text: str, at: int) -> BadUsage:
    return refuse_at(f"{what} is missing", at, advice, _word_at(text, at))


def _unsupported(text: str, at: int) -> BadUsage:
    """Return the error for a word that is no part of an instant selector."""
    if at == len(text):
        return refuse_at("a selector is missing", at, 'write one, such as `up{job="api"}`')
    return refuse_at("only instant selectors are supported", at, REMOTE_READ, _word_at(text, at))
