"""Request heads that occur again on a connection with another length of the body. Pure.

A client that keeps its connection sends the same head for each request, except for the length. The
HTTP server has parsed and checked the first one. Equal bytes have the same meaning, so the next
ones are compared instead of parsed.
"""

import re
from typing import Final

import msgspec

HEAD_BYTES_MAX: Final = 4096
"""Largest head that is remembered, since every connection may have another one."""
LENGTH_DIGITS_MAX: Final = 9

_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*(?=\r\n)", re.IGNORECASE)


class RepeatedHead(msgspec.Struct, frozen=True):
    """The bytes of a head around the length of the body.

    Attributes:
        before: The bytes before the length.
        after: The bytes after it, with the empty line.
    """

    before: bytes
    after: bytes

    def body_of(self, received: bytes) -> bytes | None:
        """Return the body if the bytes are this head and one whole body; None otherwise."""
        if not received.startswith(self.before):
            return None
        start = len(self.before)
        end = received.find(self.after, start, start + LENGTH_DIGITS_MAX + len(self.after))
        digits = received[start:end]
        if end < 0 or not digits.isdigit() or digits[0] == ord("0"):
            return None
        body = received[end + len(self.after) :]
        return body if len(body) == int(digits) else None


def head_of(received: bytes) -> bytes:
    """Return the head at the beginning of received bytes; empty if it is not whole or too large."""
    end = received.find(_END, 0, HEAD_BYTES_MAX)
    return received[: end + len(_END)] if end >= 0 else b""


def repeated_head(head: bytes) -> RepeatedHead | None:
    """Return what further heads are compared with; None where it has not exactly one length."""
    found = list(_LENGTH.finditer(head))
    if len(found) != 1:
        return None
    return RepeatedHead(head[: found[0].start(1)], head[found[0].end(1) :])
