"""The words of a LogQL text, and the languages inside of its quoted texts.

One token is read at a time, so the first mistake of a text is the one reported. A refusal contains
the column, counted in characters from 1, and what to write instead.

A quoted text can be a template, a path of JSON or a pattern of a line.
"""

import re
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import Enum, auto
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import label_of
from sluice_query.logql.expressions import Literal, Placeholder, Template, Unit

_NUMBER_CHARS_MAX: Final = 100
_SHOWN_CHARS_MAX: Final = 40
NUMBER_END: Final = Decimal("1e308")
"""Numbers are computed as doubles, which end here."""
EXACT: Final = Context(prec=_NUMBER_CHARS_MAX - 10)
"""Arithmetic with constants; the text of each result can be read again."""

DURATION_S: Final = {
    "y": Decimal(365 * 86_400),
    "w": Decimal(7 * 86_400),
    "d": Decimal(86_400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("1e-3"),
    "us": Decimal("1e-6"),
    "\N{MICRO SIGN}s": Decimal("1e-6"),
    "\N{GREEK SMALL LETTER MU}s": Decimal("1e-6"),
    "ns": Decimal("1e-9"),
}
"""Seconds of each unit."""
SIZE_BYTES: Final = {
    "B": Decimal(1),
    **{f"{letter}B": Decimal(1000**power) for power, letter in enumerate("KMGTPE", 1)},
    **{f"{letter}iB": Decimal(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}
_SIZES: Final = {unit.lower(): size for unit, size in SIZE_BYTES.items()}

LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPACE: Final = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SYMBOL: Final = re.compile(r"\|=|\|~|\|>|!=|!~|!>|=~|==|>=|<=|\|\||&&|[{}()\[\],=<>|+\-*/%^]")
_FLAG: Final = re.compile(r"--[a-z][a-z-]*")
_QUANTITY: Final = re.compile(r"[0-9.]+[eE][+-]?[0-9]+(?![\w.])|\.?[0-9][\w.]*")
_PLAIN: Final = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_NUMBER: Final = re.compile(rf"{_PLAIN}(?:[eE][+-]?[0-9]{{1,4}})?")
_PART: Final = re.compile(rf"({_PLAIN})({'|'.join(sorted(DURATION_S, key=len, reverse=True))})")
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})+")
_SIZE: Final = re.compile(rf"({_PLAIN})([kmgtpe]?i?b)", re.IGNORECASE)
_LONG_UNIT: Final = re.compile(rf"({_PLAIN})(sec|min|hour|day|week|year)[a-z]*")
_SHORT_SIZE: Final = re.compile(rf"({_PLAIN})([KMGTPE]i?|k)")
_HEXADECIMAL: Final = re.compile("0[xX][0-9a-fA-F]{1,16}")
_ESCAPE: Final = re.compile(
    r'\\(?:([abfnrtv\\"])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2}))'
)
_ESCAPED: Final = dict(zip('abfnrtv\\"', '\a\b\f\n\r\t\v\\"', strict=True))
_CODE_MAX: Final = 0x10FFFF
_QUOTES: Final = "'\u2018\u2019\u201c\u201d"
"""Quotes of other languages, and those that a word processor writes."""
_OTHER_QUOTED: Final = re.compile(rf"[{_QUOTES}]([^{_QUOTES}]*)[{_QUOTES}]")
_VARIABLE: Final = re.compile(r"\$\{?\w*\}?")
_MEANT: Final = {
    ":": ("unknown operator", "write `=`"),
    "~": ("unknown operator", "write `=~` for a label, or `|~` for a line"),
    "@": ("unsupported word", "write `offset 1h` after the range"),
    ";": ("unexpected character", "remove it: a query is one expression"),
}


class TokenKind(Enum):
    """What a word of the text is."""

    NAME = auto()
    STRING = auto()
    NUMBER = auto()
    DURATION = auto()
    BYTES = auto()
    FLAG = auto()
    SYMBOL = auto()
    END = auto()


UNITS: Final = {
    TokenKind.NUMBER: Unit.NUMBER,
    TokenKind.DURATION: Unit.DURATION,
    TokenKind.BYTES: Unit.BYTES,
}
"""The quantities."""


@dataclass(frozen=True, slots=True)
class Token:
    """One word of the text, and the value of a quoted text or of a quantity."""

    kind: TokenKind
    text: str
    start: int
    string: str = ""
    value: Decimal = Decimal(0)

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.start + len(self.text)


def refuse_at(what: str, start: int, advice: str, word: str = "") -> BadUsage:
    """Return the error for a word at an offset, with its column and what to write instead."""
    named = f", word=`{shortened(word)}`" if word else ""
    return BadUsage(f"{what}, column=`{start + 1}`{named}: {advice}")


def shortened(text: str) -> str:
    """Return a text for a message: one line of at most 40 characters."""
    line = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text[:41])
    return line if len(line) <= _SHOWN_CHARS_MAX else f"{line[:_SHOWN_CHARS_MAX]}…"


def quote(value: str) -> str:
    """Return a quoted text that is read as the value; backticks save escapes in patterns."""
    if "\\" in value and "`" not in value and value.isprintable():
        return f"`{value}`"
    named = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"{}"'.format(
        "".join(
            named.get(one) or (one if one.isprintable() else f"\\U{ord(one):08x}") for one in value
        )
    )


def example(value: str) -> str:
    """Return a quoted text for a message, or a place for it if it is long."""
    return quote(value) if len(value) <= _SHOWN_CHARS_MAX else '"…"'


def example_label(key: str) -> str:
    """Return the label for the begin of a key, for a message."""
    return label_of(key[:_SHOWN_CHARS_MAX])


def check_characters(text: str) -> None:
    """Refuse a text that UTF-8 cannot encode."""
    wrong = next((at for at, one in enumerate(text) if "\ud800" <= one <= "\udfff"), None)
    if wrong is not None:
        raise refuse_at("query is not valid UTF-8", wrong, "remove the character")


def next_token(text: str, offset: int) -> Token:
    """Return the token at an offset, after space and comments.

    Raises:
        BadUsage: No token begins there.
    """
    space = _SPACE.match(text, offset)
    start = space.end() if space else offset
    if start == len(text):
        return Token(TokenKind.END, "", start)
    if text[start] == '"':
        return _quoted(text, start)
    if text[start] == "`":
        return _raw(text, start)
    if quantity := _QUANTITY.match(text, start):
        return _quantity(quantity.group(), start)
    patterns = (TokenKind.NAME, LABEL), (TokenKind.FLAG, _FLAG), (TokenKind.SYMBOL, _SYMBOL)
    for kind, pattern in patterns:
        if word := pattern.match(text, start):
            return Token(kind, word.group(), start)
    raise _unknown_character(text, start)


def _unknown_character(text: str, start: int) -> BadUsage:
    first = text[start]
    if first in _QUOTES:
        closed = _OTHER_QUOTED.match(text, start)
        advice = f"write `{example(closed[1])}`" if closed else 'write `"`'
        return refuse_at("unsupported quote", start, advice, first)
    if variable := _VARIABLE.match(text, start):
        advice = "write its value, such as `5m`"
        return refuse_at("variable of a dashboard", start, advice, variable.group())
    if first in _MEANT:
        what, advice = _MEANT[first]
        return refuse_at(what, start, advice, first)
    advice = "remove it, or put the text in quotes"
    if first.isspace():
        advice = "write a plain space"
    elif first.isalpha():
        advice = "write a label with the characters A-Z, a-z, 0-9 and _, and put text in quotes"
    return refuse_at("unexpected character", start, advice, first)


def _raw(text: str, start: int) -> Token:
    end = text.find("`", start + 1)
    if end < 0:
        raise refuse_at("text does not end", start, "write a backtick after it", text[start:])
    value = text[start + 1 : end].replace("\r", "")  # as in Go
    return Token(TokenKind.STRING, text[start : end + 1], start, string=value)


def _quoted(text: str, start: int) -> Token:
    value_bytes = bytearray()
    at = start + 1
    while at < len(text) and text[at] not in '"\n':
        if text[at] != "\\":
            value_bytes += text[at].encode()
            at += 1
            continue
        escape = _ESCAPE.match(text, at)
        if escape is None:
            advice = "write two backslashes, or put the text in backticks"
            raise refuse_at("unknown escape", at, advice, text[at : at + 2])
        value_bytes += _escaped(escape)
        at = escape.end()
    if at == len(text):
        raise refuse_at("text does not end", start, 'write `"` after it', text[start:])
    if text[at] == "\n":
        advice = "write `\\n`, or put the text in backticks"
        raise refuse_at("text contains a line break", at, advice)
    word = text[start : at + 1]
    try:
        return Token(TokenKind.STRING, word, start, string=value_bytes.decode())
    except UnicodeDecodeError:
        advice = "write `\\u` and the four digits of a character"
        raise refuse_at("text is not valid UTF-8", start, advice, word) from None


def _escaped(escape: re.Match[str]) -> bytes:
    """Return the bytes of an escape; what is no character makes the whole text invalid."""
    letter, byte, short, long, octal = escape.groups()
    if letter:
        return _ESCAPED[letter].encode()
    if byte or octal:
        return bytes([int(byte, 16) if byte else int(octal, 8)])
    code = int(short or long, 16)
    return chr(code).encode(errors="surrogatepass") if code <= _CODE_MAX else b"\xff"


def _quantity(word: str, start: int) -> Token:
    if len(word) > _NUMBER_CHARS_MAX:
        advice = f"write at most {_NUMBER_CHARS_MAX} characters"
        raise refuse_at("number is too long", start, advice, word)
    if _NUMBER.fullmatch(word):
        number = Decimal(word)
        if number >= NUMBER_END:
            raise refuse_at("number is too large", start, "write a number below 1e308", word)
        return Token(TokenKind.NUMBER, word, start, value=number)
    if _DURATION.fullmatch(word):
        seconds = Decimal(0)
        for part in _PART.finditer(word):
            seconds = EXACT.add(seconds, EXACT.multiply(Decimal(part[1]), DURATION_S[part[2]]))
        return Token(TokenKind.DURATION, word, start, value=seconds)
    if size := _SIZE.fullmatch(word):
        number = EXACT.multiply(Decimal(size[1]), _SIZES[size[2].lower()])
        return Token(TokenKind.BYTES, word, start, value=number)
    raise _unknown_quantity(word, start)


def _unknown_quantity(word: str, start: int) -> BadUsage:
    advice = "write a number, a duration such as `1h30m`, a size such as `5MB`, or quotes around it"
    if meant := _LONG_UNIT.fullmatch(word):
        advice = f"write `{meant[1]}{meant[2][0]}`"
    elif meant := _SHORT_SIZE.fullmatch(word):
        advice = f"write `{meant[1]}{meant[2].replace('k', 'K')}B`"
    elif _HEXADECIMAL.fullmatch(word):
        advice = f"write `{int(word, 16)}`"
    return refuse_at("not a number", start, advice, word)


TEMPLATE_FUNCTIONS: Final = ("lower", "trim", "upper")
_OTHER_NAMES: Final = {"ToLower": "lower", "ToUpper": "upper", "TrimSpace": "trim"}
_ACTION: Final = re.compile(
    r"\{\{\s*(?:\.([A-Za-z_][A-Za-z0-9_]*)|(__line__|__timestamp__))\s*((?:\|\s*[A-Za-z]+\s*)*)\}\}"
)
_CALLED: Final = re.compile(r"([A-Za-z]+)\s+(\.[A-Za-z_][A-Za-z0-9_]*|__line__)")
_CAPTURE: Final = re.compile(r"<([A-Za-z_][A-Za-z0-9_]*)>")
_PATH_PART: Final = re.compile(
    r"(\.?)([A-Za-z_][A-Za-z0-9_-]*)|\[([0-9]{1,9})\]|\[\"((?:[^\"\\]|\\.)+)\"\]", re.DOTALL
)


def parse_template(text: str) -> Template:
    """Return the parts of a template such as `{{.method | lower}} {{__line__}}`.

    Raises:
        ValueError: With the action that has no place in the tree, and what to write instead.
    """
    parts: list[Literal | Placeholder] = []
    at = 0
    while at < len(text):
        start = text.find("{{", at)
        literal = text[at:start] if start >= 0 else text[at:]
        if literal:
            parts.append(Literal(literal))
        if start < 0:
            break
        action = _ACTION.match(text, start)
        if action is None:
            raise _unknown_action(text[start:])
        parts.append(_placeholder(action))
        at = action.end()
    return tuple(parts)


def _placeholder(action: re.Match[str]) -> Placeholder:
    label, variable, piped = action.groups()
    if label in {"__line__", "__timestamp__"}:
        raise ValueError(action.group(), f"write `{{{{{label}}}}}`")
    names = [one.strip() for one in piped.split("|")[1:]]
    functions = tuple(_OTHER_NAMES.get(name, name) for name in names)
    for name, function in zip(names, functions, strict=True):
        if function not in TEMPLATE_FUNCTIONS:
            raise ValueError(name, f"use one of {', '.join(TEMPLATE_FUNCTIONS)}")
    return Placeholder(label or variable, functions)


def _unknown_action(text: str) -> ValueError:
    end = text.find("}}")
    if end < 0:
        return ValueError(text, "write `}}` after it")
    action = text[: end + 2]
    inner = action[2:-2].strip("- \t\n")
    called = _CALLED.fullmatch(inner)
    name = _OTHER_NAMES.get(called[1], called[1]) if called else ""
    if called and name in TEMPLATE_FUNCTIONS:
        return ValueError(action, f"write `{{{{{shortened(called[2])} | {name}}}}}`")
    if LABEL.fullmatch(inner):
        return ValueError(action, f"write `{{{{.{shortened(inner)}}}}}`")
    return ValueError(action, "write `{{.label}}`, `{{__line__}}` or `{{.label | lower}}`")


def parse_path(text: str) -> tuple[str | int, ...]:
    """Return the members and positions of a path such as `a.b[0]["c d"]`.

    Raises:
        ValueError: It is not a path.
    """
    parts: list[str | int] = []
    at = 0
    while at < len(text) or not parts:
        part = _PATH_PART.match(text, at)
        # A name has a dot before it, except the first one.
        if part is None or (part[2] and (part[1] == ".") != bool(parts)):
            raise ValueError(text[at:])
        _, name, position, quoted = part.groups()
        parts.append(int(position) if position else name or re.sub(r"\\(.)", r"\1", quoted))
        at = part.end()
    return tuple(parts)


def parse_line_pattern(text: str) -> tuple[str | Placeholder, ...]:
    """Return the texts and the captures of a pattern such as `<ip> - <_> <path>`.

    `_` is the name of a part that becomes no label.

    Raises:
        ValueError: Two captures have no text between them.
    """
    parts: list[str | Placeholder] = []
    at = 0
    for capture in _CAPTURE.finditer(text):
        if capture.start() > at:
            parts.append(text[at : capture.start()])
        elif parts:
            raise ValueError(capture.group())
        parts.append(Placeholder(capture[1]))
        at = capture.end()
    if at < len(text):
        parts.append(text[at:])
    return tuple(parts)
