"""Fluent's forward protocol on a separate TCP port.

A message with the option `chunk` is answered by `ack` only after every record is accepted. Several
chunks of a connection are accepted at the same time, and acks are sent in the order of acceptance.
Their number and size are limited; beyond the limits the stream is not read, and TCP stops the
client. The first error ends the stream: no further message is read, the other chunks are still
accepted and acknowledged.
Without `chunk` the client learns nothing: its messages are accepted together, after all messages
before them. While that fails the server tries again and reads nothing more, so that the client
waits.
Source: Fluent forward protocol specification 1 and 1.5.

A connection is a stream of messages with limits of memory and time, and back pressure. Bytes are
read ahead up to a limit while a message is accepted; then the socket is not read until the server
continues, and TCP stops the client. A message that is not complete has to arrive at a minimum rate,
and its bytes are counted in the budget of bodies.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final, Generic, Self, TypeVar, cast

import structlog

from sluice_doors.acceptance import MemoryBudget, MessageAcceptance
from sluice_doors.decoded import BodyTooLarge, BodyUnreadable, DecodedRecords
from sluice_doors.forward.handshake import (
    PING_BYTES_MAX,
    ForwardIdentity,
    ForwardSenders,
    Ping,
    decide_login,
    encode_ack,
    new_greeting,
    read_ping,
)
from sluice_doors.forward.messages import MessageSplitter, decode_forward, read_message
from sluice_doors.requests import SERVER_ERRORS, DoorRequest
from sluice_protocol.errors import ErrorCode, SluiceError, TooLarge, Unauthenticated
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_web.connection_guard import BodyPace, ConnectionGuard, ConnectionLimits, serving_guarded
from sluice_web.listening import TlsFiles, bind_setting, server_tls
from sluice_web.problems import HttpRefusal, describe_error
from sluice_web.refused_clients import ClientRefusal

READ_AHEAD_BYTES: Final = 1024 * 1024
"""Complete messages beyond this wait in the socket. Messages without a name are accepted together
up to this size.
"""
GROUP_MESSAGES_MAX: Final = 1000
"""Messages without a name that are accepted together."""
FREE_BYTES: Final = 64 * 1024
"""Incomplete messages up to this size are not counted in the budget."""

Chunk = str | bytes


class ForwardStream(asyncio.Protocol):
    """The messages of a connection, and the responses to them."""

    def __init__(self, message_bytes_max: int, budget: MemoryBudget, pace: BodyPace) -> None:
        """Start without a connection; `guarded` makes the protocol that a server needs."""
        self._splitter = MessageSplitter(message_bytes_max)
        self._budget = budget
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._guard: ConnectionGuard | None = None
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._queue: deque[tuple[bytes, Chunk | None]] = deque()
        self._reserved = ExitStack()
        self._reserved_bytes = 0
        self._partial_since_s = 0.0
        self._paused = False
        self._waiting = False
        self._busy = False
        self.failure: Exception | None = None
        self.message_bytes_max = message_bytes_max
        self.ended = False
        self.connected = asyncio.Event()
        self.peer = ""
        self.certificate: dict[str, object] | None = None

    def guarded(self, limits: ConnectionLimits) -> ConnectionGuard:
        """Return this protocol behind the limits of connections."""
        self._guard = ConnectionGuard(self, limits)
        return self._guard

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note who connected."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self.certificate = transport.get_extra_info("peercert")
        self.connected.set()

    def data_received(self, data: bytes) -> None:
        """Keep bytes; stop reading where enough wait."""
        self._splitter.feed(data)
        self._arrived.set()
        if not self._waiting and self._splitter.pending_bytes >= READ_AHEAD_BYTES:
            self._pause()

    def eof_received(self) -> bool | None:
        """End the stream after the bytes that have arrived."""
        self._end()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """End the stream; what has arrived is still accepted."""
        del exc
        self._transport = None
        self._writable.set()
        self._end()

    def pause_writing(self) -> None:
        """Stop writing until the client reads."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Continue writing."""
        self._writable.set()

    def close(self) -> None:
        """Close the connection after what was written, and release the budget."""
        if self._transport is not None:
            self._transport.close()
        self._reserved.close()

    def end(self) -> None:
        """End the stream after the bytes that have arrived, and read no more."""
        self._pause()
        self._end()

    def set_busy(self, *, busy: bool) -> None:
        """Note whether messages are being accepted: until their end the connection is not idle."""
        self._busy = busy
        if not busy and self._waiting and not self._splitter.pending_bytes:
            self._idle()

    def fail(self, error: Exception) -> None:
        """Make `next_group` raise an error; the first one counts."""
        if self.failure is None:
            self.failure = error
        self._arrived.set()

    async def write(self, data: bytes) -> None:
        """Send a response; raise `TimeoutError` if the client does not read."""
        async with asyncio.timeout(self._pace.grace_s):
            await self._writable.wait()
        if self._transport is not None:
            self._transport.write(data)

    async def next_group(self) -> tuple[list[bytes], Chunk | None] | None:
        """Return messages to accept together, and the name of the only one.

        A message with a name is returned alone; so is a message that would make the group too
        large. None is returned at the end of the stream.
        """
        self._check()
        if not self._queue and not await self._fill():
            return None
        self._begin()
        message, chunk = self._queue.popleft()
        group, size = [message], len(message)
        while chunk is None and self._queue and len(group) < GROUP_MESSAGES_MAX:
            message, name = self._queue[0]
            size += len(message)
            if name is not None or size > min(READ_AHEAD_BYTES, self.message_bytes_max):
                break
            group.append(message)
            self._queue.popleft()
        return group, chunk

    async def _fill(self) -> bool:
        """Wait for a complete message; return False at the end."""
        self._partial_since_s = self._loop.time()
        while True:
            found = self._splitter.take()
            for message in found:
                parts = read_message(message)
                self._queue.append((message, parts.chunk if parts is not None else None))
            if found:
                self._release()
                return True
            if self.ended:
                return False
            await self._wait()
            self._check()

    async def _wait(self) -> None:
        """Wait for bytes: inside a message at the pace of a body, else for the idle time."""
        pending_bytes = self._splitter.pending_bytes
        self._waiting = True
        self._resume()
        limit: float | None = None
        if pending_bytes > self.message_bytes_max:
            raise TooLarge("message", pending_bytes, self.message_bytes_max)
        if pending_bytes:
            self._reserve(pending_bytes)
            allowed_s = self._pace.grace_s + pending_bytes / self._pace.rate_min
            limit = self._partial_since_s + allowed_s
        elif not self._busy:
            self._idle()
        try:
            async with asyncio.timeout_at(limit):
                await self._arrived.wait()
        except TimeoutError as error:
            raise HttpRefusal(ErrorCode.OVERLOADED, "a message arrived too slowly") from error
        finally:
            self._waiting = False
        self._arrived.clear()
        if not pending_bytes:
            self._partial_since_s = self._loop.time()
        self._begin()

    def _begin(self) -> None:
        if self._guard is not None and self._transport is not None:
            self._guard.begin()

    def _idle(self) -> None:
        if self._guard is not None:
            self._guard.end()

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _reserve(self, size_bytes: int) -> None:
        """Count the bytes of an incomplete message, in steps that double."""
        if size_bytes <= max(self._reserved_bytes, FREE_BYTES):
            return
        wanted = 1 << size_bytes.bit_length()
        self._reserved.enter_context(self._budget.take(wanted - self._reserved_bytes))
        self._reserved_bytes = wanted

    def _release(self) -> None:
        self._reserved.close()
        self._reserved_bytes = 0

    def _pause(self) -> None:
        if self._transport is not None and not self._paused:
            self._transport.pause_reading()
            self._paused = True

    def _resume(self) -> None:
        if self._transport is not None and self._paused:
            self._transport.resume_reading()
            self._paused = False

    def _end(self) -> None:
        self.ended = True
        self._arrived.set()


CHUNKS_MAX: Final = 16


class RunningChunks:
    """Runs the acceptance of chunks until the block ends, and then waits for all of them."""

    def __init__(self, stream: ForwardStream) -> None:
        self._stream = stream
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the chunks; cancel them if the block was cancelled."""
        if isinstance(error, asyncio.CancelledError):
            await self._cancel()
        elif error is None:
            await self.finish()
        else:
            with suppress(Exception):  # the error of the block is raised
                await self.finish()

    async def room(self) -> None:
        """Wait until another chunk may start."""
        while len(self._tasks) >= CHUNKS_MAX or self._bytes >= READ_AHEAD_BYTES:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def start(self, accept: Callable[[], Awaitable[None]], size_bytes: int) -> None:
        """Start to accept a chunk."""
        self._bytes += size_bytes
        self._stream.set_busy(busy=True)
        task = asyncio.create_task(self._run(accept))
        self._tasks.add(task)

        def end(ended: asyncio.Task[None]) -> None:
            self._tasks.discard(ended)
            self._bytes -= size_bytes
            if not self._tasks:
                self._stream.set_busy(busy=False)

        task.add_done_callback(end)

    async def finish(self) -> None:
        """Wait until every chunk has ended."""
        try:
            while self._tasks:
                await asyncio.wait(self._tasks)
        except asyncio.CancelledError:
            await self._cancel()
            raise
        if self._stream.failure is not None:
            raise self._stream.failure

    async def _run(self, accept: Callable[[], Awaitable[None]]) -> None:
        try:
            await accept()
        except Exception as error:  # noqa: BLE001 - raised where the stream is read
            self._stream.fail(error)

    async def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


PAUSE_S_MIN, PAUSE_S_MAX = 0.2, 5.0
KEY_BYTES: Final = 16
_PATH: Final = "forward"

Sender = TypeVar("Sender")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardRules:
    """How connections are treated.

    `message_bytes_max` also limits the entries of a message after decompression. Messages without a
    name are tried again for `retry_s_max`, and are then lost. When the server stops, it has `end_s`
    to accept what was read.
    """

    hostname: str
    message_bytes_max: int
    login_s: float
    pace: BodyPace
    retry_s_max: float
    end_s: float = 0.0


class _HandshakeFailed(Unauthenticated):
    """The client has not proved who it is."""

    def __init__(self, why: ClientRefusal, reason: str) -> None:
        super().__init__(reason)
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardServer(Generic[Sender]):
    """Accepts the messages of all connections of one process."""

    doors: MessageAcceptance[Sender]
    senders: ForwardSenders[Sender]
    rules: ForwardRules
    running: dict[asyncio.Task[None], ForwardStream] = field(default_factory=dict)

    def new_stream(self) -> ForwardStream:
        """Return the stream of a new connection, and start to serve it."""
        rules = self.rules
        stream = ForwardStream(rules.message_bytes_max, self.doors.budget, rules.pace)
        task = asyncio.create_task(self._serve(stream))
        self.running[task] = stream
        task.add_done_callback(self.running.pop)
        return stream

    async def close(self) -> None:
        """Read no more, accept what was read while there is time, and end all connections."""
        if self.running and self.rules.end_s:
            for stream in self.running.values():
                stream.end()
            await asyncio.wait(tuple(self.running), timeout=self.rules.end_s)
        left = tuple(self.running)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _serve(self, stream: ForwardStream) -> None:
        try:
            identity = await self._log_in(stream)
            await self._accept_all(stream, identity)
        except Unauthenticated as error:
            # Clients such as fluent-logger do not notice it: they write, and read no response.
            problem = describe_error(error, path=_PATH, peer=stream.peer)
            self.doors.count_refused("forward", problem)
            why = error.why if isinstance(error, _HandshakeFailed) else ClientRefusal.WRONG_KEY
            self.doors.refused.add("forward", why, stream.peer)
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
        """Return who connected, once the client has proved it."""
        login_s = self.rules.login_s
        try:
            async with asyncio.timeout(login_s):
                await stream.connected.wait()
                identity = self.senders.of_connection(stream.certificate)
                if identity is None:
                    identity = await self._shake_hands(stream)
        except TimeoutError as error:
            reason = f"the client completed no handshake within {login_s:g} s"
            raise _HandshakeFailed(ClientRefusal.NO_HANDSHAKE, reason) from error
        stream.message_bytes_max = self.rules.message_bytes_max
        return identity

    async def _shake_hands(self, stream: ForwardStream) -> ForwardIdentity:
        stream.message_bytes_max = PING_BYTES_MAX
        greeting = new_greeting()
        await stream.write(greeting.encode())
        ping = await self._next_ping(stream)
        keys = self.senders.shared_keys()
        decided = decide_login(keys, greeting, ping, self.rules.hostname)
        await stream.write(decided.response)
        if decided.identity is None:
            reason = "no sender has this shared key, user and password"
            raise _HandshakeFailed(ClientRefusal.WRONG_KEY, reason)
        return decided.identity

    async def _next_ping(self, stream: ForwardStream) -> Ping:
        """Return the first message of a client, which proves its key."""
        try:
            received = await stream.next_group()
            if received is not None and len(received[0]) == 1:
                return read_ping(received[0][0])
        except (BodyUnreadable, TooLarge) as error:  # a larger message is none either
            raise _HandshakeFailed(ClientRefusal.NO_KEY, str(error)) from error
        except HttpRefusal as error:
            raise _HandshakeFailed(ClientRefusal.NO_HANDSHAKE, str(error)) from error
        if received is None:
            raise BodyUnreadable("the client closed the connection in the handshake")
        reason = "the client sent no PING: it needs a shared key"
        raise _HandshakeFailed(ClientRefusal.NO_KEY, reason)

    async def _accept_all(self, stream: ForwardStream, identity: ForwardIdentity) -> None:
        async with RunningChunks(stream) as running:
            while True:
                await running.room()
                group = await stream.next_group()
                if group is None:
                    return
                messages, chunk = group
                if chunk is None:
                    try:
                        await running.finish()
                    except BaseException:
                        _log_lost(len(messages), "a chunk before them was not accepted")
                        raise
                    await self._accept_unnamed(identity, messages)
                else:
                    accept = partial(self._accept_chunk, stream, identity, messages[0], chunk)
                    running.start(accept, len(messages[0]))

    async def _accept_chunk(
        self, stream: ForwardStream, identity: ForwardIdentity, body: bytes, chunk: Chunk
    ) -> None:
        key = chunk if isinstance(chunk, bytes) else chunk.encode(errors="surrogateescape")
        await self._accept_body(identity, body, key)
        await stream.write(encode_ack(chunk))

    async def _accept_unnamed(self, identity: ForwardIdentity, messages: list[bytes]) -> None:
        """Accept messages whose client does not wait; try again while that is possible.

        Messages that are refused together, because they expand to more than a limit, are accepted
        in two halves: one that is good alone is never lost because of its neighbours.

        Raises:
            SluiceError: All messages from this one on are lost.
        """
        groups = [messages]
        while groups:
            group = groups.pop()
            try:
                await self._accept_group(identity, group)
            except (BodyUnreadable, BodyTooLarge, TooLarge) as error:
                if len(group) > 1:
                    middle = len(group) // 2
                    groups += [group[middle:], group[:middle]]
                else:
                    problem = describe_error(error, path=_PATH, peer="")
                    self.doors.count_refused("forward", problem)
                    _log_lost(1, problem.detail)
            except (SluiceError, asyncio.CancelledError) as error:
                _log_lost(len(group) + sum(map(len, groups)), _reason(error))
                raise

    async def _accept_group(self, identity: ForwardIdentity, messages: list[bytes]) -> None:
        """Accept messages together; try again while that is possible.

        Their client sends nothing again, so equal messages are meant twice. The key is for the
        attempts of this server.

        Raises:
            SluiceError: They are not accepted, and no further attempt is possible.
        """
        body = b"".join(messages)
        key = secrets.token_bytes(KEY_BYTES)
        clock, doors = self.doors.clock, self.doors
        until_s = clock.monotonic_ns() / NS_PER_S + self.rules.retry_s_max
        pause_s = PAUSE_S_MIN
        while True:
            try:
                await self._accept_body(identity, body, key)
            except SluiceError as error:
                problem = describe_error(error, path=_PATH, peer="")
                is_late = clock.monotonic_ns() / NS_PER_S > until_s
                if problem.status < SERVER_ERRORS or doors.is_stopping() or is_late:
                    raise
                doors.count_refused("forward", problem)
            else:
                return
            with doors.budget.take(len(body)):
                await clock.sleep(pause_s * (0.5 + secrets.randbelow(1000) / 1000))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _accept_body(self, identity: ForwardIdentity, body: bytes, key: bytes) -> None:
        sender = self.senders.of_identity(identity)
        wanted = DoorRequest(door="forward", decode=self._decode, coding="identity", key=key)
        result = await self.doors.accept_message(body, sender, wanted)
        self.doors.count_accepted("forward", result)

    def _decode(self, body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
        return decode_forward(body, received_ns=received_ns, bytes_max=self.rules.message_bytes_max)


def _reason(error: SluiceError | asyncio.CancelledError) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "the server stopped"
    return describe_error(error, path=_PATH, peer="").detail


def _log_lost(count: int, reason: str) -> None:
    log.warning("forward_messages_lost", messages=count, reason=reason)


@asynccontextmanager
async def serving_forward(
    server: ForwardServer[Sender],
    listen: str,
    limits: ConnectionLimits,
    *,
    tls: TlsFiles | None,
    is_shared: bool = False,
) -> AsyncIterator[int]:
    """Serve until the block ends; yield the port."""
    context = server_tls(tls)
    sock = bind_setting("forward_listen", listen, is_shared=is_shared)
    host, port = sock.getsockname()[:2]

    async def end() -> None:
        with suppress(asyncio.CancelledError):
            await server.close()

    new_guard = partial(_guarded, server, limits)
    async with serving_guarded(sock, new_guard, limits, tls=context, end=end):
        log.info("forward_listening", address=host, port=port)
        yield port


def _guarded(forward: ForwardServer[Sender], limits: ConnectionLimits) -> ConnectionGuard:
    return forward.new_stream().guarded(limits)
