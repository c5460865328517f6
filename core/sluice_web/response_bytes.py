"""A response as bytes, for a connection whose requests do not pass through the HTTP server."""

from email.utils import formatdate
from functools import lru_cache
from typing import Final

from aiohttp import web
from aiohttp.http import SERVER_SOFTWARE

_NO_CONTENT: Final = 204


def response_bytes(response: web.Response, now_s: int) -> bytes:
    """Return a response with all its fields, as aiohttp writes it.

    Args:
        response: A response to a request of HTTP/1.1; its body is in memory.
        now_s: The time, Unix seconds.

    Raises:
        TypeError: The body is not in memory.
        ValueError: A field contains a line break.
    """
    body = response.body or b""
    if not isinstance(body, bytes):
        raise TypeError("the body is not in memory")
    lines = [f"HTTP/1.1 {response.status} {response.reason}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    if response.status != _NO_CONTENT:
        lines.append(f"Content-Length: {len(body)}")
    lines.append(_last_lines(now_s))
    if response.keep_alive is False:
        lines.append("Connection: close")
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines):  # the last lines are two
        raise ValueError("a field contains a line break")
    return f"{head}\r\n\r\n".encode() + body


@lru_cache(maxsize=2)
def _last_lines(now_s: int) -> str:
    return f"Date: {formatdate(now_s, usegmt=True)}\r\nServer: {SERVER_SOFTWARE}"
