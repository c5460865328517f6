"""Where to cut text in UTF-8, and text without characters that a terminal would execute."""

from typing import Final

_CONTINUATION: Final = 0x80
_CONTINUATION_MASK: Final = 0xC0


def character_end(data: bytes) -> int:
    """Return the length of `data` without a UTF-8 character that is cut off at its end."""
    for back in range(1, 5):
        octet = data[-back]
        if octet & _CONTINUATION_MASK != _CONTINUATION:
            wants = 1 if octet < _CONTINUATION else _width(octet)
            return len(data) if wants <= back else len(data) - back
    return len(data)


def printable_text(text: str, *, kept: str = "") -> str:
    """Return text with U+FFFD for characters that are not printed, except those of `kept`."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in kept else "\N{REPLACEMENT CHARACTER}" for one in text
    )


def _width(lead: int) -> int:
    return 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2  # noqa: PLR2004 - RFC 3629 section 3
