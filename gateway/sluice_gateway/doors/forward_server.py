"""Fluent's forward protocol on a separate TCP port.

A message with the option `chunk` is answered by `ack` only after every record is accepted. Several
chunks of a connection are accepted at the same time, and acks are sent in the order of acceptance.
Without `chunk` the client learns nothing: its messages are accepted together, after all messages
before them. While that fails the gateway tries again and reads nothing more, so that the client
waits.
Source: Fluent forward protocol specification 1 and 1.5.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from sluice_door_http.routes import SERVER_ERRORS, DoorRequest
from sluice_doors.decoded import BodyUnreadable, DecodedRecords
from sluice_doors.forward import decode_forward
from sluice_doors.forward_handshake import PING_BYTES_MAX, encode_ack, read_ping
from sluice_gateway.connection_guard import ConnectionLimits
from sluice_gateway.doors.forward_chunks import RunningChunks
from sluice_gateway.doors.forward_login import (
    ForwardIdentity,
    certificate_identity,
    decide_login,
    new_greeting,
)
from sluice_gateway.doors.forward_stream import Chunk, ForwardStream
from sluice_gateway.doors.service import DoorService
from sluice_gateway.frame_reader import BodyPace
from sluice_protocol.errors import SluiceError, Unauthenticated
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_web.listening import BACKLOG, TlsFiles, bind_shared_setting, server_tls
from sluice_web.problems import HttpRefusal, describe_error

RETRY_S_MAX: Final = 600.0
"""Time for which messages without a name are tried again; after it they are lost."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.2, 5.0
_PATH: Final = "forward"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardRules:
    """How connections are treated.

    Attributes:
        principal: Whose connections need no handshake; empty to require one.
        hostname: The name of this server in the handshake.
        message_bytes_max: Largest message, and largest entries of one after decompression.
        login_s: Time for the handshake.
        pace: How slowly a message may arrive.
    """

    principal: str
    hostname: str
    message_bytes_max: int
    login_s: float
    pace: BodyPace


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardServer:
    """Accepts the messages of all connections of one worker."""

    doors: DoorService
    rules: ForwardRules
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def new_stream(self) -> ForwardStream:
        """Return the stream of a new connection, and start to serve it."""
        uploads, rules = self.doors.uploads, self.rules
        stream = ForwardStream(rules.message_bytes_max, uploads.budget, rules.pace)
        task = asyncio.create_task(self._serve(stream))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return stream

    async def close(self) -> None:
        """End all connections."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _serve(self, stream: ForwardStream) -> None:
        try:
            async with asyncio.timeout(self.rules.login_s):
                await stream.connected.wait()
                identity = await self._log_in(stream)
            await self._accept_all(stream, identity)
        except TimeoutError:
            log.info("forward_connection_closed", reason="slow client", peer=stream.peer)
        except Exception as error:  # noqa: BLE001 - an error of one connection ends only that one
            problem = describe_error(error, path=_PATH, peer=stream.peer)
            self.doors.count_refused("forward", problem)
            log.info(
                "forward_connection_closed",
                reason=problem.detail,
                code=problem.code.value,
                peer=stream.peer,
            )
        finally:
            stream.close()

    async def _log_in(self, stream: ForwardStream) -> ForwardIdentity:
        """Return who connected.

        Raises:
            Unauthenticated: The client has not proved who it is.
            BodyUnreadable: It sent something else than a `PING`.
        """
        identity = certificate_identity(stream.certificate)
        if identity is None and self.rules.principal:
            identity = ForwardIdentity(name=self.rules.principal)
        if identity is None:
            identity = await self._shake_hands(stream)
        stream.message_bytes_max = self.rules.message_bytes_max
        return identity

    async def _shake_hands(self, stream: ForwardStream) -> ForwardIdentity:
        stream.message_bytes_max = PING_BYTES_MAX
        greeting = new_greeting()
        await stream.write(greeting.encode())
        received = await stream.next_group()
        if received is None:
            raise BodyUnreadable("the client closed the connection in the handshake")
        message, _, count = received
        if count != 1:
            raise BodyUnreadable("the client sent no PING: it needs a shared key")
        uploads = self.doors.uploads
        now_s = uploads.clock.now_ns() // NS_PER_S
        decided = decide_login(
            uploads.principals.current, greeting, read_ping(message), self.rules.hostname, now_s
        )
        await stream.write(decided.response)
        if decided.identity is None:
            raise Unauthenticated("no principal has this shared key, user and password")
        return decided.identity

    async def _accept_all(self, stream: ForwardStream, identity: ForwardIdentity) -> None:
        """Accept messages until the end of the stream.

        Raises:
            SluiceError: The stream is unreadable, or a message is not accepted.
            TimeoutError: The client does not read.
        """
        async with RunningChunks(stream) as running:
            while True:
                await running.room()
                group = await stream.next_group()
                if group is None:
                    return
                body, chunk, count = group
                if chunk is None:
                    try:
                        await running.finish()
                    except BaseException:
                        _log_lost(count, "a chunk before them was not accepted")
                        raise
                    await self._accept_unnamed(identity, body, count)
                else:
                    accept = partial(self._accept_chunk, stream, identity, body, chunk)
                    running.start(accept, len(body))

    async def _accept_chunk(
        self, stream: ForwardStream, identity: ForwardIdentity, body: bytes, chunk: Chunk
    ) -> None:
        key = chunk if isinstance(chunk, bytes) else chunk.encode(errors="surrogateescape")
        await self._accept_body(identity, body, key)
        await stream.write(encode_ack(chunk))

    async def _accept_unnamed(self, identity: ForwardIdentity, body: bytes, count: int) -> None:
        """Accept messages whose client does not wait; try again while that is possible.

        Raises:
            SluiceError: They are lost.
        """
        uploads = self.doors.uploads
        until_ns = uploads.clock.monotonic_ns() + int(RETRY_S_MAX * NS_PER_S)
        pause_s = PAUSE_S_MIN
        while True:
            try:
                await self._accept_body(identity, body, b"")
            except asyncio.CancelledError:
                _log_lost(count, "the gateway stopped")
                raise
            except SluiceError as error:
                problem = describe_error(error, path=_PATH, peer="")
                late = uploads.clock.monotonic_ns() > until_ns
                if problem.status < SERVER_ERRORS or uploads.running.draining or late:
                    _log_lost(count, problem.detail)
                    raise
                self.doors.count_refused("forward", problem)
            else:
                return
            try:
                with uploads.budget.take(len(body)):
                    await uploads.clock.sleep(pause_s * (0.5 + secrets.randbelow(1000) / 1000))
            except (HttpRefusal, asyncio.CancelledError):
                _log_lost(count, "the gateway stopped or is out of memory")
                raise
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _accept_body(self, identity: ForwardIdentity, body: bytes, key: bytes) -> None:
        uploads = self.doors.uploads
        now_s = uploads.clock.now_ns() // NS_PER_S
        sender = identity.sender(uploads.principals.current, now_s)
        wanted = DoorRequest(door="forward", decode=self._decode, coding="identity", key=key)
        result = await self.doors.accept_message(body, sender, wanted)
        self.doors.count_accepted("forward", result)

    def _decode(self, body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
        return decode_forward(body, received_ns=received_ns, bytes_max=self.rules.message_bytes_max)


def _log_lost(count: int, reason: str) -> None:
    log.warning("forward_messages_lost", messages=count, reason=reason)


@asynccontextmanager
async def serving_forward(
    doors: DoorService,
    listen: str,
    rules: ForwardRules,
    limits: ConnectionLimits,
    *,
    tls: TlsFiles | None,
) -> AsyncIterator[int]:
    """Serve until the block ends; yield the port.

    Args:
        doors: Accepts the messages.
        listen: Host and port; port 0 selects a free one.
        rules: How connections are treated.
        limits: How many there may be, and how long one may idle.
        tls: The certificate of the server, and the authorities of client certificates.

    Raises:
        BadUsage: The address cannot be bound, or the certificate cannot be read.
    """
    context = server_tls(tls)
    sock = bind_shared_setting("forward_listen", listen)
    host, port = sock.getsockname()[:2]
    forward = ForwardServer(doors=doors, rules=rules)
    server = await asyncio.get_running_loop().create_server(
        partial(_guarded, forward, limits),
        sock=sock,
        backlog=BACKLOG,
        ssl=context,
        ssl_handshake_timeout=None if context is None else rules.login_s,
    )
    log.info("forward_listening", address=host, port=port)
    try:
        yield port
    finally:
        server.close()
        with suppress(asyncio.CancelledError):
            await forward.close()


def _guarded(forward: ForwardServer, limits: ConnectionLimits) -> asyncio.Protocol:
    return forward.new_stream().guarded(limits)
