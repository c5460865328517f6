"""One connection to the doors: requests with a known head do not pass through the HTTP server.

    quiet --(a known head and its whole body)--> accepting --(accepted or not)--> quiet
          --(anything else)--> the HTTP server --(its response, and no further byte)--> quiet

Most of the time of a small request is spent in the HTTP server, on a head that is equal to the one
before. The server parses and checks every head that is new. It also has every request that is
refused before its records wait for a frame. So limits, checks and refusals exist once. ADR 0173.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from aiohttp import HttpVersion11, web

from sluice_door_http.routes import AcceptedRequest, DoorResult
from sluice_door_http.sent_tokens import sent_token
from sluice_gateway.doors.repeated_heads import HEAD_BYTES_MAX, RepeatedHead, head_of, repeated_head
from sluice_gateway.doors.service import INLINE_BYTES_MAX, DoorService
from sluice_protocol.errors import SluiceError
from sluice_protocol.units import NS_PER_S
from sluice_web.connection_guard import ConnectionGuard, ObservedProtocol, guard_of
from sluice_web.problems import describe_error
from sluice_web.response_bytes import response_bytes

MISSES_MAX: Final = 8
"""Requests in a row that were not like the known one, until a connection remembers no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A head that the server has parsed, the request with it, and the token in it."""

    head: RepeatedHead
    accepted: AcceptedRequest
    token: str


class DoorConnection(ObservedProtocol):
    """The protocol between the guard of a connection and the HTTP server."""

    def __init__(self, inner: asyncio.Protocol, service: DoorService) -> None:
        self._protocol = inner
        self._service = service
        self._transport: asyncio.Transport | None = None
        self._known: _Known | None = None
        self._candidate: _Known | None = None
        self._misses = 0
        self._is_quiet = True
        self._is_paused = False
        self._is_accepting = False
        self._pending = bytearray()
        self._head = self._begun = b""
        self._received_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the transport on."""
        self._transport = cast(asyncio.Transport, transport)
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Accept a request with a known head, or pass the bytes on to the server."""
        if self._is_accepting:
            self._pending += data
            if self._transport is not None:
                self._transport.pause_reading()  # until the response is written
            return
        if self._is_quiet:
            if self._known is not None and self._begin(self._known, data):
                return
            self._is_quiet = False
            self._head = self._begun = b""
            self._received_bytes = 0
        if not self._head and self._received_bytes < HEAD_BYTES_MAX:
            self._begun += data[:HEAD_BYTES_MAX]
            self._head = head_of(self._begun)
        self._received_bytes += len(data)
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass the end of the client's data on."""
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client; a request that waits for its frame is accepted nevertheless."""
        self._transport = self._known = self._candidate = None
        self._pending.clear()
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass flow control on; the server waits until the client reads its responses."""
        self._is_paused = True
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass flow control on."""
        self._is_paused = False
        self._protocol.resume_writing()

    def remember(self, accepted: AcceptedRequest) -> None:
        """Remember the head of the request that the server passes to its handler now."""
        request = accepted.request
        # A key and a digest are of one body. Only the server compares a digest with its body.
        differs = bool(accepted.wanted.key) or "Content-Digest" in request.headers
        if differs or self._misses >= MISSES_MAX or request.version != HttpVersion11:
            return
        token, head = sent_token(request.headers), repeated_head(self._head)
        if token is not None and head is not None:
            self._candidate = _Known(head=head, accepted=accepted, token=token)

    def finish(self, request: web.Request) -> None:
        """Note that the server writes its response next, without waiting.

        The connection is quiet if every byte that the server has received is part of this request.
        """
        length_bytes = request.content_length or 0
        whole_bytes = len(self._head) + length_bytes
        self._is_quiet = bool(
            self._head and self._received_bytes == whole_bytes and request.content.is_eof()
        )
        if self._is_quiet and self._candidate is not None:
            self._known = self._candidate
        self._candidate = None
        self._head = self._begun = b""

    def _begin(self, known: _Known, data: bytes) -> bool:
        """Begin to accept a request; return whether it is one with the known head."""
        body = None if self._is_paused else known.head.body_of(data)
        if body is None or len(body) > INLINE_BYTES_MAX:
            self._misses += 1
            if self._misses >= MISSES_MAX:
                self._known = None
            return False
        finish = partial(self._finish, known.accepted)
        if not self._service.begin_small(body, known.token, known.accepted.wanted, finish):
            self._known = None  # until the server has accepted one like it
            return False
        self._misses = 0
        self._is_accepting = True
        guard = self._guard()
        if guard is not None:
            guard.begin()
        return True

    def _finish(self, accepted: AcceptedRequest, found: DoorResult | SluiceError) -> None:
        """Respond, and pass on what arrived meanwhile."""
        self._is_accepting = False
        response = _response(accepted, found)
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(response_bytes(response, self._service.now_ns() // NS_PER_S))
        if response.keep_alive is False:
            transport.close()
            return
        guard = self._guard()
        if guard is None:
            return
        guard.end()
        if self._pending:
            data = bytes(self._pending)
            self._pending.clear()
            transport.resume_reading()
            guard.data_received(data)

    def _guard(self) -> ConnectionGuard | None:
        transport = self._transport
        found = None if transport is None else transport.get_protocol()
        return found if isinstance(found, ConnectionGuard) else None


def _response(accepted: AcceptedRequest, found: DoorResult | SluiceError) -> web.Response:
    if isinstance(found, DoorResult):
        return accepted.respond(found)
    request = accepted.request
    return accepted.refuse(describe_error(found, path=request.path, peer=request.remote))


def remember_head(accepted: AcceptedRequest) -> None:
    """Let the connection of a request remember its head."""
    guard = guard_of(accepted.request)
    connection = None if guard is None else guard.protocol
    if isinstance(connection, DoorConnection):
        connection.remember(accepted)
