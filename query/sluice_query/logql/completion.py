"""What can follow at the cursor in a LogQL text that is being written."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_query.logql.grammar import CONVERSIONS, GROUPED_RANGES, PRECEDENCE, TEXT_CHARS_MAX
from sluice_query.logql.lexer import Token, TokenKind, check_characters, next_token
from sluice_query.logql.mistakes import (
    COMPARE_WORDS,
    FUNCTION_WORDS,
    LINE_WORDS,
    RANGE_WORDS,
    STAGE_WORDS,
    VECTOR_WORDS,
)

_RANGES: Final = ("1m", "5m", "15m", "1h", "6h", "1d")
_MATCHES: Final = ("=", "!=", "=~", "!~")
_OF_LABELS: Final = ("json", "logfmt", "drop", "keep", "label_format", "unwrap")
"""Stages whose arguments are labels."""
_OF_TEXTS: Final = ("pattern", "regexp", "line_format")


class SuggestionKind(StrEnum):
    """What the suggested words are."""

    LABEL = "label"
    VALUE = "value"
    STAGE = "stage"
    OPERATOR = "operator"
    FUNCTION = "function"
    RANGE = "range"


@dataclass(frozen=True, slots=True)
class Suggestions:
    """Words for the cursor; a client replaces the prefix with one.

    Attributes:
        prefix: The part of a word before the cursor; that of a value has its opening quote.
        words: The words of the language that begin with the prefix. Labels and values depend on
            the records: a client adds them, at the start of a stage too.
    """

    kind: SuggestionKind
    prefix: str = ""
    label: str = ""
    words: tuple[str, ...] = ()


def complete(text: str, cursor: int) -> Suggestions | None:
    """Return what can follow before the cursor; None if nothing is known, as in a free text."""
    before = text[:cursor]
    if len(before) > TEXT_CHARS_MAX:
        return None
    try:
        check_characters(before)
    except BadUsage:
        return None
    tokens, prefix = _words_before(before)
    if tokens is None:
        return None
    found = _suggestions(tokens)
    if found is None or (prefix[:1] in {'"', "`"} and found.kind is not SuggestionKind.VALUE):
        return None
    words = tuple(word for word in found.words if word.startswith(prefix.lower()))
    return Suggestions(found.kind, prefix, found.label, words)


def _words_before(before: str) -> tuple[list[Token] | None, str]:
    """Return the whole words before the cursor, and the one that it touches."""
    tokens: list[Token] = []
    offset = 0
    while True:
        try:
            token = next_token(before, offset)
        except BadUsage:
            rest = before[offset:].lstrip()
            # Only a text without its end is a word that is being written.
            return (tokens, rest) if rest[:1] in {'"', "`"} else (None, "")
        if token.kind is TokenKind.END:
            # In a comment, nothing follows.
            return (None, "") if "#" in before[offset:].rpartition("\n")[2] else (tokens, "")
        is_word = token.kind in {
            TokenKind.NAME,
            TokenKind.FLAG,
            TokenKind.NUMBER,
            TokenKind.DURATION,
        }
        if is_word and token.end == len(before):
            return tokens, token.text
        tokens.append(token)
        offset = token.end


def _suggestions(tokens: list[Token]) -> Suggestions | None:
    """Return what can follow some tokens, without a prefix."""
    last = tokens[-1] if tokens else None
    if last is None:
        return Suggestions(SuggestionKind.FUNCTION, words=("{", *FUNCTION_WORDS))
    opened = _opened(tokens)
    bracket = tokens[opened].text if opened >= 0 else ""
    if bracket == "{":
        return _in_list(tokens, _MATCHES, "}")
    if bracket == "[":
        is_start = last.text == "["
        kind = SuggestionKind.RANGE if is_start else SuggestionKind.OPERATOR
        return Suggestions(kind, words=_RANGES if is_start else ("]",))
    if bracket == "(" and _is_grouping(tokens, opened):
        return _in_list(tokens, (), ")")
    is_range = _caller(tokens, opened) in RANGE_WORDS or _is_in_range(tokens, opened)
    pipe = _last_stage(tokens)
    if pipe is not None:
        return _in_stage(tokens, pipe, is_range=is_range)
    return _in_expression(tokens, is_range=is_range, is_open=bracket == "(")


def _opened(tokens: list[Token]) -> int:
    """Return the place of the innermost bracket that is still open, or -1."""
    depth = 0
    for at in range(len(tokens) - 1, -1, -1):
        if tokens[at].kind is not TokenKind.SYMBOL:
            continue
        depth += (tokens[at].text in ")]}") - (tokens[at].text in "([{")
        if depth < 0:
            return at
    return -1


def _is_grouping(tokens: list[Token], opened: int) -> bool:
    """Whether a parenthesis follows `by` or `without` of a function."""
    if opened < 1 or tokens[opened - 1].text not in {"by", "without"}:
        return False
    return opened >= 2 and tokens[opened - 2].text in {")", *VECTOR_WORDS}  # noqa: PLR2004 - two before


def _is_in_range(tokens: list[Token], opened: int) -> bool:
    """Whether a parenthesis around a query is in a range function."""
    before = tokens[: max(opened, 0)]
    return _caller(tokens, opened) == "(" and _caller(tokens, _opened(before)) in RANGE_WORDS


def _last_stage(tokens: list[Token]) -> int | None:
    """Return the place of the operator that begins the current stage."""
    at = len(tokens) - 1
    while at >= 0:
        token = tokens[at]
        if token.kind is not TokenKind.SYMBOL:
            pass
        elif token.text == ")":
            at = _opened(tokens[:at])
        elif token.text in "}]" or (token.text == "(" and _caller(tokens, at) in FUNCTION_WORDS):
            return None
        elif token.text == "|" or (token.text in LINE_WORDS and not _is_compare(tokens, at)):
            return at
        at -= 1
    return None


def _caller(tokens: list[Token], opened: int) -> str:
    """Return the word before a bracket."""
    return tokens[opened - 1].text if opened >= 1 else ""


def _is_compare(tokens: list[Token], at: int) -> bool:
    """Whether `!=` or `!~` compares the label before it."""
    is_after_label = at >= 1 and tokens[at - 1].kind is TokenKind.NAME
    return is_after_label and tokens[at - 1].text not in {"json", "logfmt"}


def _in_list(tokens: list[Token], operators: tuple[str, ...], end: str) -> Suggestions | None:
    """Return what follows in a selector or a grouping."""
    last = tokens[-1]
    if last.text in {"{", "(", ","}:
        return Suggestions(SuggestionKind.LABEL, words=() if last.text == "," else (end,))
    if last.kind is TokenKind.NAME and operators:
        return Suggestions(SuggestionKind.OPERATOR, words=operators)
    if last.text in operators:
        return Suggestions(SuggestionKind.VALUE, label=tokens[-2].text)
    return Suggestions(SuggestionKind.OPERATOR, words=(",", end))


def _in_stage(  # noqa: PLR0911 - a line for each place
    tokens: list[Token], begin: int, *, is_range: bool
) -> Suggestions | None:
    """Return what follows in a stage that begins at an operator."""
    last, inside = tokens[-1], tokens[begin + 1 :]
    after = ("|", *LINE_WORDS, *(("[",) if is_range else ()))
    if tokens[begin].text != "|":
        is_text = last.kind is TokenKind.STRING
        return Suggestions(SuggestionKind.OPERATOR, words=("or", *after)) if is_text else None
    if not inside:
        words = (*STAGE_WORDS, *(("unwrap",) if is_range else ()))
        return Suggestions(SuggestionKind.STAGE, words=words)
    word = inside[0].text
    if last.text in COMPARE_WORDS and last.kind is TokenKind.SYMBOL:
        if word in {"json", "logfmt", "label_format"}:
            return None
        return Suggestions(SuggestionKind.VALUE, label=tokens[-2].text)
    if last is inside[0] and word in {*_OF_LABELS, *_OF_TEXTS}:
        return _after_stage_word(word, after)
    if last.text in {",", "and", "or", "("}:
        return Suggestions(SuggestionKind.LABEL)
    if last.kind is TokenKind.NAME:
        return Suggestions(SuggestionKind.OPERATOR, words=_after_label(word, after))
    joins = () if word in {*_OF_LABELS, *_OF_TEXTS} else ("and", "or")
    return Suggestions(SuggestionKind.OPERATOR, words=(*joins, *after))


def _after_stage_word(word: str, after: tuple[str, ...]) -> Suggestions | None:
    if word in _OF_TEXTS:
        return None
    if word in {"json", "logfmt"}:
        flags = ("--strict", "--keep-empty") if word == "logfmt" else ()
        return Suggestions(SuggestionKind.OPERATOR, words=(*after, *flags))
    words = tuple(f"{name}(" for name in CONVERSIONS) if word == "unwrap" else ()
    return Suggestions(SuggestionKind.LABEL, words=words)


def _after_label(word: str, after: tuple[str, ...]) -> tuple[str, ...]:
    if word == "unwrap":
        return after
    if word in {"drop", "keep"}:
        return (",", *_MATCHES, *after)
    return (",", "=", *after) if word in _OF_LABELS else COMPARE_WORDS


def _in_expression(  # noqa: C901, PLR0911 - a line for each place
    tokens: list[Token], *, is_range: bool, is_open: bool
) -> Suggestions | None:
    """Return what follows between queries."""
    last = tokens[-1]
    closing = (")",) if is_open else ()
    if last.text in {"(", ",", *PRECEDENCE} and last.kind is TokenKind.SYMBOL:
        words = ("{",) if is_range else ("{", *FUNCTION_WORDS)
        return Suggestions(SuggestionKind.FUNCTION, words=words)
    if last.text in FUNCTION_WORDS and last.kind is TokenKind.NAME:
        grouping = ("by", "without") if last.text in VECTOR_WORDS else ()
        return Suggestions(SuggestionKind.OPERATOR, words=("(", *grouping))
    if last.text in {"by", "without"}:
        return Suggestions(SuggestionKind.OPERATOR, words=("(",))
    if last.text == "offset":
        return Suggestions(SuggestionKind.RANGE, words=_RANGES)
    if last.text == "]" or last.kind is TokenKind.DURATION:
        offset = ("offset",) if last.text == "]" else ()
        return Suggestions(SuggestionKind.OPERATOR, words=(*offset, "|", *LINE_WORDS, *closing))
    if last.text == "}":
        words = ("|", *LINE_WORDS, *(("[",) if is_range else ()), *closing)
        return Suggestions(SuggestionKind.OPERATOR, words=words)
    if last.text == ")":
        return _after_parenthesis(tokens, closing, is_range=is_range)
    if last.kind is TokenKind.NUMBER:
        words = (*PRECEDENCE, ",", *closing) if closing else tuple(PRECEDENCE)
        return Suggestions(SuggestionKind.OPERATOR, words=words)
    return None


def _after_parenthesis(
    tokens: list[Token], closing: tuple[str, ...], *, is_range: bool
) -> Suggestions:
    opening = _opened(tokens[:-1])
    called = _caller(tokens, opening)
    if _is_grouping(tokens, opening) and _caller(tokens, opening - 1) in VECTOR_WORDS:
        return Suggestions(SuggestionKind.OPERATOR, words=("(",))
    if is_range:
        return Suggestions(SuggestionKind.OPERATOR, words=("[", *closing))
    is_grouped = called in {*VECTOR_WORDS, *(one.value for one in GROUPED_RANGES)}
    words = (*PRECEDENCE, *(("by", "without") if is_grouped else ()), *closing)
    return Suggestions(SuggestionKind.OPERATOR, words=words)
