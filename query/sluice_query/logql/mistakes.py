"""Words of LogQL that sluice does not support, words of other languages, and what to write instead.

Everything here is only used for a text that is refused.
"""

import re
from collections.abc import Iterable
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_query.logql.expressions import RangeOperator, VectorOperator
from sluice_query.logql.lexer import (
    UNITS,
    Token,
    TokenKind,
    example,
    example_label,
    next_token,
    refuse_at,
    shortened,
)

REFUSED_STAGES: Final = {
    "unpack": "write `json`, which reads every member of a line",
    "decolorize": 'remove it, and search with a pattern such as `|~ "error"`',
    "distinct": "remove it, and count values with `sum by (label) (count_over_time({…} [5m]))`",
}
"""Stages of LogQL without a place in the tree."""
REFUSED_FUNCTIONS: Final = {
    "absent_over_time": "write `count_over_time`: a time without a point has no records",
    "rate_counter": "write `rate`, `min_over_time` or `max_over_time` of the unwrapped numbers",
    "stddev_over_time": "write `min_over_time`, `max_over_time` or `quantile_over_time`",
    "stdvar_over_time": "write `min_over_time`, `max_over_time` or `quantile_over_time`",
    "stddev": "write `min`, `max` or `avg`",
    "stdvar": "write `min`, `max` or `avg`",
    "approx_topk": "write `topk`, which is exact",
    "sort": "remove it, or write `topk(10, …)`",
    "sort_desc": "remove it, or write `topk(10, …)`",
    "label_replace": 'write `| label_format new="{{.old}}"` or `| regexp` before the range',
    "vector": "write `count_over_time({…} [5m])`, because a number alone has no records",
    "variants": "send each metric query alone",
    "count_values": "write `sum by (label) (count_over_time({…} [5m]))`",
}
"""Functions of LogQL without a place in the tree, and functions of PromQL."""
REFUSED_WORDS: Final = {
    "and": "write one metric query, with the condition as a stage in it",
    "or": "send each metric query alone",
    "unless": "write one metric query, with the condition as a stage in it",
    "bool": "remove it: a comparison keeps the values that meet it",
    "on": "write `sum by (label) (…)` on both sides, which gives them the same labels",
    "ignoring": "write `sum without (label) (…)` on both sides, which gives them the same labels",
    "group_left": "write `sum by (label) (…)` on both sides, which gives them the same labels",
    "group_right": "write `sum by (label) (…)` on both sides, which gives them the same labels",
}
"""Words between metric queries without a place in the tree."""
_MEANT_FUNCTIONS: Final = {
    "increase": "count_over_time",
    "irate": "rate",
    "delta": "count_over_time",
    "histogram_quantile": "quantile_over_time",
    "quantile": "quantile_over_time",
    "percentile": "quantile_over_time",
    "p99": "quantile_over_time",
    "mean": "avg",
    "average": "avg",
    "bytes": "bytes_over_time",
}
_MEANT_STAGES: Final = {
    "grep": '`|= "text"`',
    "search": '`|= "text"`',
    "filter": '`| label="value"`',
    "where": '`| label="value"`',
    "not": '`| label!="value"`',
    "parse": "`json`, `logfmt`, `pattern` or `regexp`",
    "fields": "`keep`",
    "regex": "`regexp`",
    "count": "`count_over_time({…} [5m])`",
    "stats": "`sum by (label) (count_over_time({…} [5m]))`",
}
"""Stages of other tools."""
_OPTIONS: Final = {
    "limit": "`--limit` as an option of the command",
    "head": "`--limit` as an option of the command",
    "tail": "`--follow` as an option of the command",
    "sort": "`--order` as an option of the command",
    "since": "`--since` as an option of the command",
}
"""Words of other tools for what is an option."""
STAGE_WORDS: Final = (
    "json",
    "logfmt",
    "pattern",
    "regexp",
    "line_format",
    "label_format",
    "drop",
    "keep",
)
RANGE_WORDS: Final = tuple(one.value for one in RangeOperator)
VECTOR_WORDS: Final = tuple(one.value for one in VectorOperator)
FUNCTION_WORDS: Final = (*RANGE_WORDS, *VECTOR_WORDS)
LINE_WORDS: Final = ("|=", "!=", "|~", "!~", "|>", "!>")
COMPARE_WORDS: Final = ("=", "==", "!=", "=~", "!~", ">", ">=", "<", "<=")
"""Operators after a label."""
_SQL: Final = re.compile(r"(?i:select|describe|explain|with|show|insert|delete|update)\s+[\w*\"`]")
_PAIR: Final = re.compile(r'([\w.-]+)\s*(:|==|=~|!~|!=|=)\s*(?:"([^"]*)"|([^\s"{|]+))')
_BARE: Final = re.compile(r"[^|{}\[\]\"`]*")
_WORD: Final = re.compile(r"[^\s{}()\[\],|\"`]+")
_KEY: Final = re.compile(r"[\w.:/-]*[\w]")

_AFTER_LOG_QUERY: Final = {
    "[": (
        "range of a log query",
        "write `count_over_time({…} [5m])`, or give the time with `--since 5m`",
    ),
    "and": ("second query", 'write one selector, with `label=~"a|b"` for several values'),
    "or": ("second query", 'write one selector, with `label=~"a|b"` for several values'),
    "unless": ("second query", 'write one selector, with `label=~"a|b"` for several values'),
    "{": ("second query", 'write one selector, with `label=~"a|b"` for several values'),
    "=": ("unknown operator", "write `|=`"),
    "==": ("unknown operator", "write `|=`"),
    "=~": ("unknown operator", "write `|~`"),
    "||": ("unknown operator", 'write `|= "a" or "b"`'),
    "&&": ("unknown operator", 'write one filter after another, `|= "a" |= "b"`'),
}
_AFTER_METRIC_QUERY: Final = {
    "[": ("range of a metric query", "write it after the selector, `({…} [5m])`"),
    "|": ("stage after a metric query", "write stages inside of the function, before the range"),
    **dict.fromkeys(
        LINE_WORDS,
        ("stage after a metric query", "write stages inside of the function, before the range"),
    ),
    "=": ("unknown operator", "write `==`"),
    **{word: ("unsupported word", advice) for word, advice in REFUSED_WORDS.items()},
}
_AFTER_ANY: Final = {
    **dict.fromkeys((")", "]", "}"), ("unexpected bracket", "remove it, or open it before")),
    "offset": ("misplaced word", "write it after the range, `({…} [5m] offset 1h)`"),
    "by": ("misplaced word", "write it after a function, `sum by (level) (…)`"),
    "without": ("misplaced word", "write it after a function, `sum without (level) (…)`"),
}


def refuse_token(token: Token, what: str, advice: str) -> BadUsage:
    """Return the error for a token, with its column and what to write instead."""
    return refuse_at(what, token.start, advice, token.text)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most similar to another; empty if none is."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for an error

    return next(iter(get_close_matches(word.lower(), list(known), 1, 0.6)), "")


def refuse_pattern(text: str, pattern: str, error: BadUsage) -> BadUsage:
    """Return the error for a pattern that RE2 refuses, with its column in a question."""
    token = next_token(text, 0)
    while token.kind is not TokenKind.END:
        if token.kind is TokenKind.STRING and token.string == pattern:
            literal = re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", pattern)
            return refuse_token(token, str(error), f"write {example(literal)} for the text itself")
        token = next_token(text, token.end)
    return error


def word_at(text: str, token: Token) -> str:
    """Return the text from a token to the next space or bracket."""
    word = _WORD.match(text, token.start)
    return word.group() if word else token.text


def refuse_beginning(text: str, token: Token) -> BadUsage | None:
    """Return the error for a text that begins as no question of LogQL does, with the form meant."""
    match token.kind:
        case TokenKind.END:
            return refuse_at("empty query", token.start, "write `{}` for all records")
        case TokenKind.STRING:
            return refuse_token(
                token, "missing selector", f"write `{{}} |= {example(token.string)}`"
            )
        case TokenKind.NAME:
            return _refuse_first_name(text, token)
        case TokenKind.SYMBOL if token.text in {"|", *LINE_WORDS}:
            advice = f"write `{{}} {shortened(text[token.start :].strip())}`"
            return refuse_token(token, "missing selector", advice)
        case _:
            return None


def _refuse_first_name(text: str, token: Token) -> BadUsage | None:
    rest = text[token.start :]
    if _SQL.match(rest):
        advice = 'write a selector and filters, such as `{level="error"} |= "text"`'
        return refuse_token(token, "SQL", advice)
    following = rest[len(token.text) :].lstrip()[:1]
    words = {*FUNCTION_WORDS, *REFUSED_FUNCTIONS}
    if following == "(" or token.text in words:
        return None
    if following == "{":
        advice = "remove it: a selector of records begins with `{`"
        return refuse_token(token, "name of a metric", advice)
    if pair := _PAIR.match(rest):
        name, operator, quoted, plain = pair.groups()
        operator = "=" if operator in {":", "=="} else operator
        value = example(plain if quoted is None else quoted)
        advice = f"write `{{{example_label(name)}{operator}{value}}}`"
        return refuse_at("missing selector", token.start, advice, pair.group())
    bare = _BARE.match(rest)
    words_meant = " ".join(bare.group().split()) if bare else token.text
    if shortened(words_meant) != words_meant:
        words_meant = token.text
    option = example(words_meant) if " " in words_meant else shortened(words_meant)
    advice = f"write `-q {option}` or `{{}} |= {example(words_meant)}`"
    return refuse_at("missing selector", token.start, advice, words_meant)


def refuse_function(text: str, token: Token) -> BadUsage:
    """Return the error for a name where an operand begins, which is no supported function."""
    name = token.text
    if name in REFUSED_FUNCTIONS:
        return refuse_token(token, "unsupported word", REFUSED_FUNCTIONS[name])
    if name in REFUSED_WORDS:
        return refuse_token(token, "unsupported word", REFUSED_WORDS[name])
    if name in {"by", "without", "offset"}:
        return refuse_token(
            token, "misplaced word", "write a function before it, `sum by (level) (…)`"
        )
    if text[token.end :].lstrip().startswith("{"):
        advice = "remove it: a selector of records begins with `{`"
        return refuse_token(token, "name of a metric", advice)
    if not text[token.end :].lstrip().startswith("("):
        advice = "write `count_over_time({…} [5m])`, or another function of a selector"
        return refuse_token(token, "missing selector", advice)
    meant = _MEANT_FUNCTIONS.get(name.lower()) or nearest(name, FUNCTION_WORDS)
    advice = f"write `{meant}`" if meant else f"use one of {', '.join(FUNCTION_WORDS)}"
    return refuse_token(token, "unknown function", advice)


def refuse_rest(text: str, token: Token, *, is_log_query: bool) -> BadUsage:
    """Return the error for a token after a whole query."""
    if token.text == "and" and next_token(text, token.end).kind is TokenKind.STRING:
        return refuse_token(
            token, "unknown operator", 'write one filter after another, `|= "a" |= "b"`'
        )
    after = _AFTER_LOG_QUERY if is_log_query else _AFTER_METRIC_QUERY
    found = after.get(token.text) or _AFTER_ANY.get(token.text)
    if found is not None and token.kind in {TokenKind.SYMBOL, TokenKind.NAME}:
        return refuse_token(token, *found)
    if not is_log_query:
        advice = "remove it, or write an operator such as `/` before it"
        return refuse_token(token, "unexpected word", advice)
    if token.kind is TokenKind.STRING:
        return refuse_token(token, "missing operator", f"write `|= {example(token.string)}`")
    if token.kind is TokenKind.NAME or token.kind in UNITS:
        word = word_at(text, token)
        meant = _OPTIONS.get(word.lower(), f"`|= {example(word)}`")
        return refuse_at("missing operator", token.start, f"write {meant}", word)
    return refuse_token(token, "unexpected word", 'write a stage such as `|= "text"` or `| json`')


def refuse_stage(text: str, token: Token) -> BadUsage | None:
    """Return the error for what follows `|`, if it is no stage and no label with an operator."""
    if token.kind is TokenKind.STRING:
        return refuse_token(token, "missing operator", f"write `|= {example(token.string)}`")
    if token.kind is TokenKind.END:
        return refuse_token(token, "missing stage", "write a stage such as `json`, or remove `|`")
    if token.text in {"=", ">", "==", "=~"} and token.kind is TokenKind.SYMBOL:
        advice = f"write `|{'~' if token.text == '=~' else token.text[0]}`"
        return refuse_token(token, "space in an operator", advice)
    if token.text in {*LINE_WORDS, "|"} and token.kind is TokenKind.SYMBOL:
        return refuse_token(token, "missing stage", "write one operator only")
    if token.kind is not TokenKind.NAME or refuse_key(text, token):
        return None
    return _refuse_stage_name(text, token)


def _refuse_stage_name(text: str, token: Token) -> BadUsage | None:
    word = token.text
    following = next_token(text, token.end)
    if following.kind is TokenKind.SYMBOL and following.text in {*COMPARE_WORDS, "|=", "|~"}:
        return None
    if word in REFUSED_STAGES:
        return refuse_token(token, "unsupported word", REFUSED_STAGES[word])
    if word == "unwrap":
        advice = "write it once, in a function: `sum_over_time({…} | unwrap label [5m])`"
        return refuse_token(token, "misplaced word", advice)
    meant = (_MEANT_STAGES | _OPTIONS).get(word.lower())
    if meant:
        return refuse_token(token, "unknown stage", f"write {meant}")
    near = nearest(word, STAGE_WORDS)
    advice = f'write `{shortened(word)}="…"` to compare a label, or `|= {example(word)}` for a text'
    return refuse_token(token, "unknown stage", f"write `{near}`" if near else advice)


def refuse_key(text: str, token: Token) -> BadUsage | None:
    """Return the error for a name that other characters follow, such as `http.status`."""
    run = _KEY.match(text, token.start)
    key = run.group() if run else ""
    if len(key) <= len(token.text):
        return None
    name, colon, value = key.partition(":")
    if colon:
        advice = f"write `{example_label(name)}={example(value)}`"
        return refuse_at("unknown operator", token.start, advice, key)
    return refuse_at("not a label", token.start, f"write `{example_label(key)}`", key)
