"""Byte ranges of RFC 9110 section 14, as far as the port uses them."""

import re
from typing import Final

_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")


def cut_range(text: str, size_bytes: int) -> range | None:
    """Gives the positions that a `Range` header asks for, or None when it begins past the end."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return range(size_bytes)
    first = int(found[1])
    end = min(int(found[2]) + 1, size_bytes) if found[2] else size_bytes
    return range(first, end) if first < end else None
