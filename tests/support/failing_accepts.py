"""A system that has no file descriptor for the first connection, and whose second one is reset."""

import asyncio
import errno
import socket

import pytest

from sluice_web import bounded_accepts


def fail_accepts(patch: pytest.MonkeyPatch) -> None:
    """Let the first two attempts to accept a connection fail."""
    patch.setattr(bounded_accepts, "ACCEPT_RETRY_S", 0.01)
    errors = [OSError(errno.EMFILE, "too many open files"), ConnectionAbortedError()]
    accept = asyncio.SelectorEventLoop.sock_accept

    async def failing(loop: asyncio.SelectorEventLoop, sock: socket.socket) -> object:
        if errors:
            raise errors.pop(0)
        return await accept(loop, sock)

    patch.setattr(asyncio.SelectorEventLoop, "sock_accept", failing)
