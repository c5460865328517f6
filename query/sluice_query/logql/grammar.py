r"""The grammar of LogQL: `parse_logql` turns the text of a question into its tree.

The language is the part of Grafana Loki's LogQL that `docs/logql.md` lists. Every other word of
LogQL, and what other languages use in its place, is refused with its column and what to write
instead. `lexer.py` has the words and what is inside of quoted texts, `mistakes.py` what is
refused.

    expression   = comparison ;
    comparison   = sum     { ( "==" | "!=" | ">" | ">=" | "<" | "<=" ) sum } ;
    sum          = product { ( "+" | "-" ) product } ;
    product      = power   { ( "*" | "/" | "%" ) power } ;
    power        = operand [ "^" power ] ;
    operand      = [ "+" | "-" ] NUMBER | "(" expression ")" | query | range | vector ;

    query        = selector { stage } ;
    selector     = "{" [ matcher { "," matcher } ] "}" ;
    matcher      = NAME ( "=" | "!=" | "=~" | "!~" ) STRING ;

    stage        = line filter | "|" ( parser | "drop" labels | "keep" labels | line format
                 | label format | condition ) ;
    line filter  = ( "|=" | "!=" | "|~" | "!~" | "|>" | "!>" ) STRING { "or" STRING } ;
    parser       = "json" [ extractions ]
                 | "logfmt" { "--strict" | "--keep-empty" } [ extractions ]
                 | "pattern" STRING | "regexp" STRING ;
    extractions  = NAME [ "=" STRING ] { "," NAME [ "=" STRING ] } ;
    labels       = ( NAME | matcher ) { "," ( NAME | matcher ) } ;
    line format  = "line_format" STRING ;
    label format = "label_format" change { "," change } ;
    change       = NAME "=" ( NAME | STRING ) ;
    condition    = both { "or" both } ;
    both         = term { [ "and" | "," ] term } ;
    term         = "(" condition ")" | matcher
                 | NAME ( "=" | "==" | "!=" | ">" | ">=" | "<" | "<=" ) quantity ;
    quantity     = [ "+" | "-" ] ( NUMBER | DURATION | BYTES ) ;

    range        = RANGE FUNCTION "(" [ NUMBER "," ] ranged ")" [ grouping ] ;
    ranged       = ( selector | "(" query ")" ) { stage } [ unwrap ], with one interval after the
                   selector, the last stage or unwrap ;
    interval     = "[" DURATION "]" [ "offset" DURATION ] ;
    unwrap       = "|" "unwrap" ( NAME | conversion "(" NAME ")" ) { "|" condition } ;
    conversion   = "duration" | "duration_seconds" | "bytes" ;
    vector       = VECTOR FUNCTION [ grouping ] "(" [ NUMBER "," ] expression ")" [ grouping ] ;
    grouping     = ( "by" | "without" ) "(" [ NAME { "," NAME } ] ")" ;

`#` begins a comment, which ends with its line. A name of the language, such as `json` or `by`, is a
label wherever only a label can be; a condition that begins with one is written in parentheses.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal, DecimalException
from functools import lru_cache
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.units import NS_PER_S
from sluice_query.logql.expressions import (
    NUMBER_OPERATORS,
    BinaryOperation,
    BinaryOperator,
    Both,
    CompareOperator,
    Comparison,
    Conversion,
    Drop,
    Either,
    Expression,
    Extraction,
    Grouping,
    JsonParser,
    Keep,
    LabelCondition,
    LabelFilter,
    LabelFormat,
    LabelRename,
    LabelTemplate,
    LineFilter,
    LineFormat,
    LineOperator,
    LogfmtParser,
    LogQuery,
    Matcher,
    MatchOperator,
    MetricQuery,
    PatternParser,
    Placeholder,
    RangeAggregation,
    RangeOperator,
    RegexpParser,
    Stage,
    Template,
    Unwrap,
    VectorAggregation,
    VectorOperator,
)
from sluice_query.logql.lexer import (
    EXACT,
    LABEL,
    NUMBER_END,
    UNITS,
    Token,
    TokenKind,
    check_characters,
    example,
    example_label,
    next_token,
    parse_line_pattern,
    parse_path,
    parse_template,
    refuse_at,
    shortened,
)
from sluice_query.logql.mistakes import (
    COMPARE_WORDS,
    LINE_WORDS,
    RANGE_WORDS,
    REFUSED_WORDS,
    STAGE_WORDS,
    VECTOR_WORDS,
    refuse_beginning,
    refuse_function,
    refuse_key,
    refuse_rest,
    refuse_stage,
    refuse_token,
    word_at,
)

TEXT_CHARS_MAX: Final = 10_000
NESTING_MAX: Final = 50
"""Parentheses within each other; also operators of a query, and terms of a condition."""
STAGES_MAX: Final = 50
_SERIES_MAX: Final = 1_000_000
_LONG_END: Final = 2**63
GROUPED_RANGES: Final = NUMBER_OPERATORS - {RangeOperator.SUM}
"""Range functions that LogQL groups by themselves; others need `sum by (…)` around them."""
PRECEDENCE: Final = {
    **dict.fromkeys(("==", "!=", ">", ">=", "<", "<="), 1),
    **dict.fromkeys(("+", "-"), 2),
    **dict.fromkeys(("*", "/", "%"), 3),
    "^": 4,
}
"""Binary operators; `^` groups to the right, the others to the left."""
CONVERSIONS: Final = {
    "duration": Conversion.DURATION,
    "duration_seconds": Conversion.DURATION,
    "bytes": Conversion.BYTES,
}
"""Functions of `unwrap`."""
_ARITHMETIC: Final[dict[str, Callable[[Decimal, Decimal], Decimal]]] = {
    "+": EXACT.add,
    "-": EXACT.subtract,
    "*": EXACT.multiply,
    "/": EXACT.divide,
    "%": EXACT.remainder,
    "^": EXACT.power,
}
_MATCHES: Final = {one.value: one for one in MatchOperator}
_COMPARES: Final = {"=": CompareOperator.EQUAL} | {one.value: one for one in CompareOperator}
_GROUP: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P?<([^=!>][^>]*)>", re.DOTALL)
"""A named group of a pattern, after all that only looks like one."""


@lru_cache(maxsize=16)
def parse_logql(text: str) -> Expression:
    """Return the tree of a LogQL question, or refuse the text in one line.

    The tree of a text is kept: several parts of one command or request need it.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise BadUsage(
            f"query is too long: write at most {TEXT_CHARS_MAX:,} characters, "
            f"characters=`{len(text)}`"
        )
    check_characters(text)
    return _Parser(text).question()


def read_labels(text: str) -> dict[str, int]:
    """Return where an accepted question first names each label, without those that it makes."""
    parser = _Parser(text)
    parser.question()
    return {
        name: start
        for name, start in reversed(parser.named)
        if not {name, name.removesuffix("_extracted")} & parser.made
    }


@dataclass(slots=True)
class _Ranged:
    """The query of a range function, while it is read."""

    matchers: tuple[Matcher, ...]
    stages: list[Stage] = field(default_factory=list)
    unwrap: Unwrap | None = None
    unwrap_token: Token | None = None
    range_ns: int | None = None
    offset_ns: int = 0


class _Parser:
    """Recursive descent with one token ahead; each method reads one rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._token = next_token(text, 0)
        self._depth = 0
        self._operators = 0
        self.named: list[tuple[str, int]] = []
        """Each label that the text names, and where."""
        self.made: set[str] = set()
        """The labels that its stages make."""
        self._parsers: dict[str, Callable[[], Stage]] = {
            "json": lambda: JsonParser(self._extractions(parse_path, 'a path, `a.b[0]["c"]`')),
            "logfmt": self._logfmt,
            "pattern": self._pattern,
            "regexp": self._regexp,
            "line_format": lambda: LineFormat(self._template()),
            "label_format": self._label_format,
            "drop": lambda: Drop(*self._labels()),
            "keep": lambda: Keep(*self._labels()),
        }

    def _advance(self) -> Token:
        passed = self._token
        self._token = next_token(self._text, passed.end)
        return passed

    def _following(self) -> Token:
        """Return the token after the current one."""
        return next_token(self._text, self._token.end)

    def _is(self, *words: str) -> bool:
        return self._token.kind in {TokenKind.SYMBOL, TokenKind.NAME} and self._token.text in words

    def _accept(self, *words: str) -> bool:
        """Pass the token if it is one of the words."""
        if self._is(*words):
            self._advance()
            return True
        return False

    def _wrong(self, what: str, advice: str) -> BadUsage:
        return refuse_token(self._token, what, advice)

    def _expect(self, symbol: str, advice: str = "") -> None:
        if not self._accept(symbol):
            raise self._wrong(f"missing `{symbol}`", advice or f"write `{symbol}` here")

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > NESTING_MAX:
            advice = f"use at most {NESTING_MAX} parentheses or functions within each other"
            raise self._wrong("query is nested too deeply", advice)

    def _is_flag(self) -> bool:
        return self._token.kind is TokenKind.FLAG

    def _is_stage(self) -> bool:
        return self._is("|", *LINE_WORDS)

    def _string(self, what: str) -> Token:
        """Pass a quoted text."""
        if self._token.kind is TokenKind.STRING:
            return self._advance()
        if self._token.kind is TokenKind.NAME or self._token.kind in UNITS:
            word = word_at(self._text, self._token)
            advice = f"write {what} as `{example(word)}`"
            raise refuse_at("missing quotes", self._token.start, advice, word)
        raise self._wrong(f"missing {what.removeprefix('the ')}", f"write {what} in quotes here")

    def _label(self) -> str:
        """Pass the name of a label."""
        token = self._token
        if token.kind is TokenKind.NAME:
            if wrong := refuse_key(self._text, token):
                raise wrong
            self.named.append((token.text, token.start))
            return self._advance().text
        if token.kind is TokenKind.STRING:
            raise self._wrong("quoted label", f"write `{example_label(token.string)}`")
        if token.kind in UNITS:
            raise self._wrong("not a label", "write a label, which begins with a letter or `_`")
        raise self._wrong("missing label", 'write a label, such as `level="error"`')

    def question(self) -> Expression:
        """Read the whole text."""
        first = self._token
        if wrong := refuse_beginning(self._text, first):
            raise wrong
        found = self._expression()
        is_log_query = isinstance(found, LogQuery)
        if self._token.kind is not TokenKind.END:
            raise refuse_rest(self._text, self._token, is_log_query=is_log_query)
        if isinstance(found, Decimal):
            advice = "write a metric query such as `rate({…} [5m])`"
            raise refuse_token(first, "number alone", advice)
        return found

    # Metric queries

    def _expression(self, precedence: int = 1) -> LogQuery | MetricQuery | Decimal:
        """Read operators of at least a precedence."""
        self._enter()
        first = self._token
        left = self._operand()
        while self._is(*PRECEDENCE) and PRECEDENCE[self._token.text] >= precedence:
            operator = self._advance()
            self._operators += 1
            if self._operators > NESTING_MAX:
                advice = f"use at most {NESTING_MAX} operators"
                raise refuse_token(operator, "too many operators", advice)
            if self._token.text in REFUSED_WORDS:
                raise self._wrong("unsupported word", REFUSED_WORDS[self._token.text])
            if operator.text == "^" and first.text == "-" and isinstance(left, Decimal):
                advice = "write `(-2) ^ …` or `-1 * 2 ^ …`"
                raise refuse_token(first, "unclear sign", advice)
            right = self._expression(PRECEDENCE[operator.text] + (operator.text != "^"))
            left = _combined(left, operator, right)
        self._depth -= 1
        return left

    def _operand(self) -> LogQuery | MetricQuery | Decimal:
        token = self._token
        if self._is("{"):
            return self._query()
        if self._accept("("):
            found = self._expression()
            self._expect(")")
            if isinstance(found, LogQuery) and self._is_stage():
                raise refuse_token(token, "stage after parentheses", "remove the parentheses")
            return found
        if self._is("+", "-") or token.kind is TokenKind.NUMBER:
            return self._signed_number()
        if token.kind is TokenKind.NAME:
            return self._call()
        if token.kind in UNITS:
            raise self._wrong("not a number", "write a number without a unit")
        raise self._wrong("missing selector", "write a selector such as `{}` here")

    def _signed_number(self) -> Decimal:
        sign = self._advance() if self._is("+", "-") else None
        if self._token.kind is not TokenKind.NUMBER:
            advice = "write a number after the sign, or `-1 * …`"
            raise refuse_token(sign or self._token, "misplaced sign", advice)
        value = self._advance().value
        return -value if sign is not None and sign.text == "-" else value

    def _call(self) -> MetricQuery:
        name = self._token.text
        if name in RANGE_WORDS:
            return self._range_aggregation(RangeOperator(name))
        if name in VECTOR_WORDS:
            return self._vector_aggregation(VectorOperator(name))
        raise refuse_function(self._text, self._token)

    def _range_aggregation(self, operator: RangeOperator) -> RangeAggregation:
        name = self._advance()
        example = f"`{name.text}({{…}} [5m])`"
        if self._is("by", "without"):
            word = self._token.text
            meant = f"{name.text}(…) {word} (level)"
            if operator not in GROUPED_RANGES:
                meant = f"sum {word} (level) ({name.text}(…))"
            raise self._wrong("misplaced word", f"write `{meant}`")
        self._expect("(", f"write {example}")
        self._enter()
        parameter = self._quantile(operator)
        if self._token.kind is TokenKind.NAME:
            raise self._wrong("missing selector", f"write {example}, with a selector")
        ranged = self._ranged()
        if ranged.range_ns is None:
            raise self._wrong("missing range", "write `[5m]` here")
        self._expect(")", "write stages before the range" if self._is("|") else "")
        self._depth -= 1
        _check_unwrap(operator, ranged, name)
        grouping = None
        if self._is("by", "without"):
            if operator not in GROUPED_RANGES:
                advice = f"write `sum {self._token.text} (level) ({name.text}(…))`"
                raise self._wrong("misplaced word", advice)
            grouping = self._grouping()
        return RangeAggregation(
            operator=operator,
            query=LogQuery(ranged.matchers, tuple(ranged.stages)),
            range_ns=ranged.range_ns,
            offset_ns=ranged.offset_ns,
            unwrap=ranged.unwrap,
            parameter=parameter,
            grouping=grouping,
        )

    def _quantile(self, operator: RangeOperator) -> Decimal | None:
        token = self._token
        is_number = token.kind is TokenKind.NUMBER or self._is("-", "+")
        if operator is not RangeOperator.QUANTILE:
            if is_number:
                advice = "remove it: of these functions, only `quantile_over_time` has one"
                raise self._wrong("unexpected number", advice)
            return None
        if not is_number:
            advice = "write `quantile_over_time(0.99, {…} | unwrap label [5m])`"
            raise self._wrong("missing quantile", advice)
        value = self._signed_number()
        if not 0 <= value <= 1:
            raise refuse_token(token, "quantile out of range", "write a number from 0 to 1")
        self._expect(",")
        return value

    def _ranged(self) -> _Ranged:
        """Read the query of a range function, and its range at either place."""
        opening = self._token
        if self._accept("("):
            self._enter()
            ranged = self._ranged()
            self._expect(")")
            self._depth -= 1
        else:
            ranged = _Ranged(self._selector())
        self._interval(ranged)
        while self._is_stage():
            if opening.text == "(":
                raise refuse_token(opening, "stage after parentheses", "remove the parentheses")
            if self._is("|") and self._following().text == "unwrap":
                self._unwrap(ranged)
            elif ranged.unwrap is not None:
                raise self._wrong("stage after unwrap", "write it before `| unwrap`")
            else:
                self._stage(ranged.stages)
        self._interval(ranged)
        if self._token.kind in {TokenKind.STRING, TokenKind.NAME}:
            raise refuse_rest(self._text, self._token, is_log_query=True)
        return ranged

    def _interval(self, ranged: _Ranged) -> None:
        """Read a range, if there is one."""
        if not self._is("["):
            return
        if ranged.range_ns is not None:
            raise self._wrong("second range", "remove one of the two")
        self._advance()
        token = self._token
        ranged.range_ns = self._duration_ns("5m")
        if ranged.range_ns == 0:
            raise refuse_token(token, "range is empty", "write a duration such as `5m`")
        colon = re.compile(r"\s*:").match(self._text, token.end)
        if colon:
            raise refuse_at("subquery", colon.end() - 1, "write one duration, `[5m]`", ":")
        self._advance()
        self._expect("]")
        if self._accept("offset"):
            ranged.offset_ns = self._duration_ns("1h")
            self._advance()

    def _duration_ns(self, example: str) -> int:
        """Return the duration of the token, which the caller passes."""
        token = self._token
        if token.kind is TokenKind.NUMBER:
            raise self._wrong("missing unit", f"write `{token.text}s` or another duration")
        if self._is("-"):
            raise self._wrong("negative duration", f"write a duration such as `{example}`")
        if token.kind is not TokenKind.DURATION:
            raise self._wrong("missing duration", f"write a duration such as `{example}`")
        value = EXACT.multiply(token.value, Decimal(NS_PER_S))
        if value != int(value) or value >= _LONG_END:
            advice = "write whole nanoseconds, at most 292 years"
            raise self._wrong("duration out of range", advice)
        return int(value)

    def _vector_aggregation(self, operator: VectorOperator) -> VectorAggregation:
        name = self._advance()
        grouping = self._grouping() if self._is("by", "without") else None
        is_limited = operator in {VectorOperator.TOPK, VectorOperator.BOTTOMK}
        example = f"`{name.text}({'10, ' if is_limited else ''}count_over_time({{…}} [5m]))`"
        self._expect("(", f"write {example}")
        parameter = self._series_count(example) if is_limited else None
        first = self._token
        inner = self._expression()
        if isinstance(inner, LogQuery):
            raise refuse_token(first, "log query instead of a metric query", f"write {example}")
        if isinstance(inner, Decimal):
            advice = f"remove it, because `{name.text}` has no number: write {example}"
            raise refuse_token(first, "unexpected number", advice)
        self._expect(")")
        if self._is("by", "without"):
            if grouping is not None:
                raise self._wrong("second grouping", "remove one of the two")
            grouping = self._grouping()
        return VectorAggregation(
            operator=operator, inner=inner, parameter=parameter, grouping=grouping
        )

    def _series_count(self, example: str) -> int:
        token = self._token
        if token.kind is not TokenKind.NUMBER:
            raise self._wrong("missing number", f"write {example}")
        value = self._advance().value
        if not 1 <= value <= _SERIES_MAX or value != int(value):
            advice = f"write a whole number from 1 to {_SERIES_MAX:,}"
            raise refuse_token(token, "number out of range", advice)
        self._expect(",", f"write {example}")
        return int(value)

    def _grouping(self) -> Grouping:
        word = self._advance()
        label = shortened(self._token.text) if self._token.kind is TokenKind.NAME else "label"
        self._expect("(", f"write `{word.text} ({label})`")
        names: list[str] = []
        while not self._is(")"):
            if names:
                self._expect(",", "write `,` between labels, and `)` after the last")
            names.append(self._label())
        self._advance()
        return Grouping(tuple(names), is_without=word.text == "without")

    # Log queries

    def _query(self) -> LogQuery:
        matchers = self._selector()
        stages: list[Stage] = []
        while self._is_stage():
            self._stage(stages)
        return LogQuery(matchers, tuple(stages))

    def _selector(self) -> tuple[Matcher, ...]:
        self._expect("{", "write a selector such as `{}` here")
        matchers: list[Matcher] = []
        while not self._is("}"):
            if matchers:
                self._comma_of_selector()
            name = self._label()
            if self._is(">", ">=", "<", "<="):
                word = word_at(self._text, self._following())
                number = word if word.lstrip("-")[:1].isdigit() else "5"
                comparison = f"{shortened(name)} {self._token.text} {shortened(number)}"
                advice = f"write it after the selector, `{{…}} | {comparison}`"
                raise self._wrong("comparison in a selector", advice)
            matchers.append(self._matcher(name))
        self._advance()
        return tuple(matchers)

    def _comma_of_selector(self) -> None:
        comma = self._token
        if self._is("or", "||"):
            raise self._wrong("unsupported word", 'write one matcher, `label=~"a|b"`')
        if self._is("and", "&&"):
            raise self._wrong("unsupported word", "write `,` between matchers")
        if comma.kind is TokenKind.NAME:
            raise self._wrong("missing `,`", "write `,` between matchers")
        if not self._accept(","):
            raise self._wrong("missing `}`", "write `}` after the last matcher")
        if self._is("}"):
            raise refuse_token(comma, "unexpected `,`", "remove it")

    def _matcher(self, name: str) -> Matcher:
        """Read the operator and the value of a matcher."""
        operator = _MATCHES.get(self._token.text)
        if operator is None:
            if self._is("==", "|=", ">", ">=", "<", "<="):
                raise self._wrong("unknown operator", f'write `{shortened(name)}="…"`')
            advice = f'write one of `=`, `!=`, `=~` and `!~`, such as `{shortened(name)}="…"`'
            raise self._wrong("missing operator", advice)
        self._advance()
        return Matcher(name, operator, self._string("the value").string)

    # Stages

    def _stage(self, stages: list[Stage]) -> None:
        if len(stages) == STAGES_MAX:
            raise self._wrong("too many stages", f"use at most {STAGES_MAX}")
        if not self._accept("|"):
            stages.append(self._line_filter())
            return
        token = self._token
        read = self._parsers.get(token.text)
        if read is None:
            if wrong := refuse_stage(self._text, token):
                raise wrong
            stages.append(LabelFilter(self._condition()))
            return
        self._advance()
        if self._is("=", "==", "=~", ">", ">=", "<", "<="):
            advice = f"write parentheses for a label, `| ({token.text}{self._token.text}…)`"
            raise refuse_token(token, "name of a stage", advice)
        stages.append(read())

    def _line_filter(self) -> LineFilter:
        operator = LineOperator(self._advance().text)
        values: list[str] = []
        while not values or self._accept("or"):
            if self._is("ip") and self._following().text == "(":
                advice = 'write a pattern, such as `|~ "10[.]0[.]"`'
                raise self._wrong("unsupported word", advice)
            if self._is(*LINE_WORDS):
                raise self._wrong("second operator", 'write only the text, `|= "a" or "b"`')
            token = self._string("the text")
            if operator in {LineOperator.PATTERN, LineOperator.PATTERN_NOT} and (
                set(_captures(token)) - {"_"}
            ):
                advice = "write `<_>`, or use `| pattern` to make labels"
                raise refuse_token(token, "capture with a name in a filter", advice)
            values.append(token.string)
        return LineFilter(operator, tuple(values))

    def _logfmt(self) -> LogfmtParser:
        flags: set[str] = set()
        while self._is_flag():
            if self._token.text not in {"--strict", "--keep-empty"}:
                raise self._wrong("unknown flag", "use `--strict` or `--keep-empty`")
            flags.add(self._advance().text)
        found = self._extractions(_check_key, "the key of a pair, without spaces and `=`")
        if self._is_flag():
            raise self._wrong("misplaced flag", "write it after `logfmt`")
        return LogfmtParser(found, "--strict" in flags, "--keep-empty" in flags)

    def _extractions(self, check: Callable[[str], object], what: str) -> tuple[Extraction, ...]:
        found: list[Extraction] = []
        if self._token.kind is not TokenKind.NAME:
            return ()
        while not found or self._accept(","):
            word = word_at(self._text, self._token)
            if "." in word and self._token.kind is TokenKind.NAME and "=" not in word:
                meant = f"{example_label(word)}={example(word)}"
                raise refuse_at("not a label", self._token.start, f"write `{meant}`", word)
            label = self._label()
            path = label
            if self._accept("="):
                token = self._string("the path")
                path = token.string
                try:
                    check(path)
                except ValueError:
                    raise refuse_token(token, "not a path", f"write {what}") from None
            elif self._is("=~", "==", ">", ">=", "<", "<="):
                advice = (
                    f"write `| {shortened(label)} {self._token.text} …` as a stage after the parser"
                )
                raise self._wrong("comparison in a parser", advice)
            found.append(Extraction(label, path))
            self.made.add(label)
        return tuple(found)

    def _pattern(self) -> PatternParser:
        token = self._string("the pattern")
        names = [name for name in _captures(token) if name != "_"]
        _check_names(names, token, "<path>")
        self.made.update(names)
        return PatternParser(token.string)

    def _regexp(self) -> RegexpParser:
        token = self._string("the pattern")
        names = [one[1] for one in _GROUP.finditer(token.string) if one[1]]
        wrong = next((one for one in names if LABEL.fullmatch(one) is None), None)
        if wrong is not None:
            advice = f"write `(?P<{example_label(wrong)}>…)`"
            raise refuse_at("group without a label", token.start, advice, wrong)
        _check_names(names, token, "(?P<path>…)")
        self.made.update(names)
        return RegexpParser(token.string)

    def _template(self) -> Template:
        token = self._string("the template")
        try:
            found = parse_template(token.string)
        except ValueError as error:
            action, advice = error.args
            raise refuse_at("unsupported action", token.start, advice, action) from None
        for one in found:
            if isinstance(one, Placeholder):
                dot = self._text.find(f".{one.name}", token.start, token.end)
                self.named.append((one.name, dot + 1 if dot >= 0 else token.start))
        return found

    def _label_format(self) -> LabelFormat:
        changes: list[LabelRename | LabelTemplate] = []
        while not changes or self._accept(","):
            token = self._token
            target = self._label()
            if target in {one.target for one in changes}:
                raise refuse_token(token, "second change of a label", "write it as a second stage")
            if target in {"__error__", "__error_details__"}:
                advice = "remove it, or write `| drop __error__`"
                raise refuse_token(token, "label cannot be changed", advice)
            self.made.add(target)
            self._expect(
                "=", f'write `{shortened(target)}=other` or `{shortened(target)}="{{{{.other}}}}"`'
            )
            if self._token.kind is TokenKind.STRING:
                changes.append(LabelTemplate(target, self._template()))
            else:
                changes.append(LabelRename(target, self._label()))
        return LabelFormat(tuple(changes))

    def _labels(self) -> tuple[tuple[str, ...], tuple[Matcher, ...]]:
        names: list[str] = []
        matchers: list[Matcher] = []
        while not (names or matchers) or self._accept(","):
            name = self._label()
            if self._is("==", *_MATCHES):
                matchers.append(self._matcher(name))
            else:
                names.append(name)
        return tuple(names), tuple(matchers)

    def _unwrap(self, ranged: _Ranged) -> None:
        self._advance()
        if ranged.unwrap is not None:
            raise self._wrong("second unwrap", "remove one of the two")
        ranged.unwrap_token = self._advance()
        conversion = Conversion.NUMBER
        if self._token.kind is TokenKind.NAME and self._following().text == "(":
            if self._token.text not in CONVERSIONS:
                raise self._wrong("unknown conversion", f"use one of {', '.join(CONVERSIONS)}")
            conversion = CONVERSIONS[self._advance().text]
            self._advance()
            name = self._label()
            self._expect(")")
        else:
            name = self._label()
        conditions: list[LabelCondition] = []
        while self._is("|") and self._following().text not in {*STAGE_WORDS, "unwrap"}:
            self._advance()
            if wrong := refuse_stage(self._text, self._token):
                raise wrong
            if len(conditions) == STAGES_MAX:
                raise self._wrong("too many stages", f"use at most {STAGES_MAX}")
            conditions.append(self._condition())
        ranged.unwrap = Unwrap(name, conversion, tuple(conditions))

    # Conditions on labels

    def _condition(self) -> LabelCondition:
        """Read terms and the words between them; `and` groups before `or`.

        LogQL's documentation and its implementations differ in how a comma or a space groups next
        to `or`, so it is refused.
        """
        self._enter()
        alternatives: list[LabelCondition] = [self._term()]
        used: set[str] = set()
        terms = 1
        while word := self._conjunction():
            token = self._token
            used.add(word)
            if used >= {"or", ","}:
                advice = 'write `and` with parentheses, `(a="1" or b="2") and c="3"`'
                raise refuse_token(token, "unclear order of conditions", advice)
            terms += 1
            if terms > NESTING_MAX:
                raise self._wrong("too many conditions", f"use at most {NESTING_MAX}")
            term = self._term()
            if word == "or":
                alternatives.append(term)
            else:
                alternatives[-1] = Both(alternatives[-1], term)
        self._depth -= 1
        found = alternatives[0]
        for alternative in alternatives[1:]:
            found = Either(found, alternative)
        return found

    def _conjunction(self) -> str:
        """Pass what joins two terms; a space is returned as a comma."""
        if self._is("||", "&&"):
            advice = f"write `{'or' if self._is('||') else 'and'}`"
            raise self._wrong("unknown operator", advice)
        if self._is("and", "or"):
            return self._advance().text
        if self._accept(",") or self._is("(") or self._token.kind is TokenKind.NAME:
            return ","
        return ""

    def _term(self) -> LabelCondition:
        if self._accept("("):
            found = self._condition()
            self._expect(")")
            return found
        if self._is("not") and self._following().text not in COMPARE_WORDS:
            raise self._wrong("unsupported word", 'write the opposite operator, `label!="value"`')
        name = self._label()
        operator = self._token
        if self._is("|=", "|~"):
            advice = f'write `{shortened(name)}=~".*text.*"`, or the line filter alone'
            raise self._wrong("line filter of a label", advice)
        if not self._is(*COMPARE_WORDS):
            raise self._wrong(
                "missing operator", f'write `{shortened(name)}="…"` or `{shortened(name)} > 5`'
            )
        self._advance()
        if self._token.kind is TokenKind.STRING:
            return self._text_term(name, operator)
        return self._number_term(name, operator)

    def _text_term(self, name: str, operator: Token) -> Matcher:
        if operator.text in _MATCHES:
            return Matcher(name, _MATCHES[operator.text], self._advance().string)
        text = self._token.string
        meant = f"{shortened(name)}={example(text)}"
        if operator.text != "==":
            number = text if re.fullmatch(r"[0-9]{1,20}", text) else "5"
            meant = f"{shortened(name)} {operator.text} {number}"
        raise refuse_token(operator, "operator of numbers with a text", f"write `{meant}`")

    def _number_term(self, name: str, operator: Token) -> Comparison:
        if self._is("ip") and self._following().text == "(":
            advice = f'write a pattern, such as `{shortened(name)}=~"10[.]0[.].*"`'
            raise self._wrong("unsupported word", advice)
        is_negative = self._is("-")
        self._accept("+", "-")
        token = self._token
        compare = _COMPARES.get(operator.text)
        if token.kind not in UNITS or compare is None:
            if operator.text not in _MATCHES and token.kind is not TokenKind.NAME:
                raise self._wrong("missing number", "write a number, a duration or a size here")
            self._string("the value")
            raise self._wrong("not a number", "write a number after the sign")
        self._advance()
        value = -token.value if is_negative else token.value
        return Comparison(name, compare, value, UNITS[token.kind])


def _combined(
    left: LogQuery | MetricQuery | Decimal,
    operator: Token,
    right: LogQuery | MetricQuery | Decimal,
) -> MetricQuery | Decimal:
    if isinstance(left, LogQuery) or isinstance(right, LogQuery):
        advice = "write `count_over_time({…} [5m])`, because a log query has no numbers"
        raise refuse_token(operator, "operator of a log query", advice)
    if not (isinstance(left, Decimal) and isinstance(right, Decimal)):
        return BinaryOperation(operator=BinaryOperator(operator.text), left=left, right=right)
    compute = _ARITHMETIC.get(operator.text)
    if compute is None:
        advice = "compare a metric query with a number"
        raise refuse_token(operator, "comparison of two numbers", advice)
    try:
        value = compute(left, right)
    except DecimalException:
        value = NUMBER_END
    if not abs(value) < NUMBER_END:
        raise refuse_token(operator, "operation without a result", "write other numbers")
    return value


def _check_unwrap(operator: RangeOperator, ranged: _Ranged, name: Token) -> None:
    if operator in NUMBER_OPERATORS and ranged.unwrap is None:
        advice = "write `| unwrap label` before the range, or `count_over_time`"
        raise refuse_token(name, "missing unwrap", advice)
    is_of_lines = operator not in NUMBER_OPERATORS and operator is not RangeOperator.RATE
    if is_of_lines and ranged.unwrap_token is not None:
        advice = f"remove it, or write `sum_over_time` for `{name.text}`"
        raise refuse_token(ranged.unwrap_token, "misplaced word", advice)


def _captures(token: Token) -> list[str]:
    """Return the names of the captures of a line pattern."""
    try:
        parts = parse_line_pattern(token.string)
    except ValueError:
        advice = "write text between them"
        raise refuse_token(token, "captures without text between them", advice) from None
    return [one.name for one in parts if isinstance(one, Placeholder)]


def _check_names(names: list[str], token: Token, example: str) -> None:
    if not names:
        advice = f"write a name, such as `{example}`"
        raise refuse_token(token, "pattern without a name", advice)
    twice = next((one for at, one in enumerate(names) if one in names[:at]), None)
    if twice is not None:
        raise refuse_at("name is used twice", token.start, "write another name", twice)


def _check_key(path: str) -> None:
    if re.fullmatch(r'[^\s="]+', path) is None:
        raise ValueError(path)
