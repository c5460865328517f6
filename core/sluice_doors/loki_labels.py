"""The labels of a stream of Loki as text: `{name="value", …}`."""

import re
from typing import Final

_LABEL: Final = re.compile(
    r"""\s*([A-Za-z_:][\w:.]*)\s*=\s*("(?:[^"\\]|\\.)*"|`[^`]*`)\s*(,|$)""", re.ASCII
)
_ESCAPE: Final = re.compile(
    r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", re.DOTALL
)
_ESCAPES: Final = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
_UNICODE_END: Final = 0x110000
_SURROGATES: Final = range(0xD800, 0xE000)
_OCTAL_DIGITS: Final = 3


def parse_labels(text: str) -> dict[str, str] | None:
    """Return the labels of `{name="value", …}`; None if the text has another form."""
    stripped = text.strip()
    if not (stripped.startswith("{") and stripped.endswith("}")):
        return None
    inner = stripped[1:-1].strip()
    found: dict[str, str] = {}
    place = 0
    while place < len(inner):
        label = _LABEL.match(inner, place)
        if label is None or label[1] in found:
            return None
        found[label[1]] = _unquoted(label[2])
        place = label.end()
    return found


def _unquoted(quoted: str) -> str:
    """Return the text of a Go string literal."""
    if quoted[0] == "`":
        return quoted[1:-1]
    # Bytes that were escaped one by one may be one character together.
    text = _ESCAPE.sub(_unescaped, quoted[1:-1])
    return text.encode(errors="surrogateescape").decode(errors="surrogateescape")


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    if code[0] in "uU" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number < _UNICODE_END and number not in _SURROGATES else "\ufffd"
    if code[0] == "x" and len(code) > 1:
        return bytes([int(code[1:], 16)]).decode(errors="surrogateescape")
    if len(code) == _OCTAL_DIGITS:
        return bytes([int(code, 8) & 255]).decode(errors="surrogateescape")
    return _ESCAPES.get(code, code)
