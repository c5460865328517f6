"""OTLP over gRPC: the service of each signal, on a separate port.

Bodies are decoded by the functions of the HTTP door, so a request that is repeated over the other
transport is a duplicate. gRPC decompresses gzip and bounds the message. Senders are known by the
token in the metadata field `authorization`, or by the SPIFFE id of their client certificate, before
their message is read into memory: the calls are unary, but the handler reads the message itself.

gRPC returns a message when it is complete. Until then its size and its pace are not known, and what
has arrived of it is in memory. Most messages arrive with their call. A message that does not is
counted in the budget of bodies as if it had the largest size. Such messages take half of the budget
at most, so that senders that stall do not keep out the others. ADR 21.
Source: OpenTelemetry protocol specification 1.x, "OTLP/gRPC".
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, NoReturn, Protocol, TypeVar

import grpc
import structlog
from grpc import aio

from sluice_doors.acceptance import MemoryBudget, MessageAcceptance
from sluice_doors.decoded import BodyUnreadable, DecodedRecords
from sluice_doors.otlp.http import (
    PROTOBUF_TYPE,
    SIGNALS,
    export_response,
)
from sluice_doors.requests import SERVER_ERRORS, Decode, DoorRequest, token_of
from sluice_protocol.errors import BadUsage, ErrorCode
from sluice_protocol.units import UnixNs
from sluice_web.connection_guard import BodyPace
from sluice_web.listening import TlsFiles
from sluice_web.problems import HttpRefusal, Problem, describe_error
from sluice_web.refused_clients import ClientRefusal

QUICK_S: Final = 2.0
"""Time within which most messages arrive; later ones are counted."""
PACED_BYTES: Final = 1024 * 1024
"""Size of the body whose time at the minimum rate is the time for any message."""


class Call(Protocol):
    """A call whose message has not been read."""

    async def read(self) -> object:
        """Return the message when it is complete; something else than bytes if there is none."""


class MessageReader:
    """Reads the messages of one process."""

    def __init__(
        self, budget: MemoryBudget, pace: BodyPace, *, message_bytes_max: int, slow_max: int
    ) -> None:
        """Bind the limits; at most `slow_max` messages may arrive slowly at the same time."""
        self._budget = budget
        self._quick_s = min(QUICK_S, pace.grace_s)
        self._rest_s = time_max_s(pace, message_bytes_max) - self._quick_s
        self._slow_max = slow_max
        self.message_bytes_max = message_bytes_max
        self.slow = 0

    async def read(self, call: Call) -> bytes:
        """Return the message of a call.

        Raises:
            BodyUnreadable: The client sent none, or gRPC has refused it as too large.
            HttpRefusal: It arrived too slowly, or too many arrive slowly; it may be sent again.
        """
        reading = asyncio.ensure_future(call.read())
        try:
            await asyncio.wait((reading,), timeout=self._quick_s)
            if not reading.done():
                with self._slowly():
                    await asyncio.wait((reading,), timeout=self._rest_s)
            if not reading.done():
                raise HttpRefusal(
                    ErrorCode.OVERLOADED,
                    "the message arrived too slowly: send it again on a new connection",
                )
            found = reading.result()
        finally:
            reading.cancel()
        if not isinstance(found, bytes):
            raise BodyUnreadable("the call contains no message")
        return found

    @contextmanager
    def _slowly(self) -> Iterator[None]:
        """Count an incomplete message; refuse it if there are too many, or no memory for it."""
        if self.slow >= self._slow_max:
            raise HttpRefusal(
                ErrorCode.OVERLOADED, "too many messages arrive slowly: send it again later"
            )
        with self._budget.take(self.message_bytes_max):
            self.slow += 1
            try:
                yield
            finally:
                self.slow -= 1


def time_max_s(pace: BodyPace, message_bytes_max: int) -> float:
    """Return the time for a message."""
    return pace.grace_s + min(PACED_BYTES, message_bytes_max) / pace.rate_min


def slow_max(cost_bytes: int, budget_bytes: int) -> int:
    """Return how many of the largest messages may arrive slowly: half the budget, at least one."""
    return max(1, budget_bytes // (2 * cost_bytes))


STREAMS_MAX: Final = 100
"""Calls of a connection at the same time; the client waits with further ones."""
IDLE_S: Final = 300.0
"""Time that a connection without a call stays open: a client connects again unnoticed."""
_PACKAGE: Final = "/opentelemetry.proto.collector"
_STATUS_CODES: Final = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
}

_PEER_SPIFFE_ID: Final = "peer_spiffe_id"
"""The property of `grpc_security_constants.h`."""

Sender = TypeVar("Sender")
Sender_co = TypeVar("Sender_co", covariant=True)

log = structlog.get_logger()


class CallSenders(Protocol[Sender_co]):
    """Who may send."""

    def of_call(self, token: str | None, spiffe: str | None) -> Sender_co:
        """Return the sender of a call, by its token or the SPIFFE id of its client certificate."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcRules:
    """How connections are treated.

    Further connections are closed. Handshakes are those of TLS and HTTP/2. Running calls have
    `end_s` to end when the server stops.
    """

    connections_max: int
    handshake_s: float
    end_s: float


def _decode(signal: str, body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
    return SIGNALS[signal](body, PROTOBUF_TYPE, received_ns=received_ns)


_METHODS: Final[dict[str, Decode]] = {
    f"{_PACKAGE}.{service}/Export": partial(_decode, signal)
    for service, signal in (
        ("logs.v1.LogsService", "logs"),
        ("metrics.v1.MetricsService", "metrics"),
        ("trace.v1.TraceService", "traces"),
    )
}


class OtlpMethods(grpc.GenericRpcHandler, Generic[Sender]):
    """The methods that exporters call, with requests and responses as bytes."""

    def __init__(
        self,
        doors: MessageAcceptance[Sender],
        senders: CallSenders[Sender],
        messages: MessageReader,
    ) -> None:
        """Bind the acceptance of this process; gRPC bounds messages after decompression."""
        self._doors = doors
        self._senders = senders
        self.messages = messages

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Return the handler of a method; None where it is unknown."""
        method = handler_call_details.method
        decode = _METHODS.get(method)
        if decode is None:
            return None
        return grpc.stream_unary_rpc_method_handler(partial(self._export, method, decode))

    async def _export(
        self,
        method: str,
        decode: Decode,
        _messages: object,
        context: "aio.ServicerContext[bytes, bytes]",
    ) -> bytes:
        wanted = DoorRequest(door="otlp", decode=decode, coding="identity")
        try:
            sender = self._senders.of_call(_token(context), _spiffe_id(context))
            message = await self.messages.read(context)
            result = await self._doors.accept_message(message, sender, wanted)
        except Exception as error:  # noqa: BLE001 - every error becomes a status, as over HTTP
            problem = describe_error(error, path=method, peer=context.peer())
            self._doors.count_refused("otlp", problem)
            if problem.code is ErrorCode.UNAUTHENTICATED:
                why = ClientRefusal.WRONG_KEY if _sent_key(context) else ClientRefusal.NO_KEY
                self._doors.refused.add("otlp", why, context.peer())
            await _refuse(context, problem)
        self._doors.count_accepted("otlp", result)
        return export_response(result)


def _token(context: "aio.ServicerContext[bytes, bytes]") -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            return token_of(value if isinstance(value, str) else value.decode("latin-1"))
    return None


def _sent_key(context: "aio.ServicerContext[bytes, bytes]") -> bool:
    fields = context.invocation_metadata() or ()
    return _spiffe_id(context) is not None or any(key == "authorization" for key, _ in fields)


def _spiffe_id(context: "aio.ServicerContext[bytes, bytes]") -> str | None:
    """Return the SPIFFE id of a verified client certificate, by the rule of the HTTP door.

    gRPC reads it only where the certificate has exactly one URI SAN, and that is a SPIFFE id.
    """
    for found in context.auth_context().get(_PEER_SPIFFE_ID, ()):
        return found.decode(errors="replace")
    return None


async def _refuse(context: "aio.ServicerContext[bytes, bytes]", problem: Problem) -> NoReturn:
    """End a call: trouble of the service is UNAVAILABLE, which exporters retry."""
    if problem.status >= SERVER_ERRORS:
        code = grpc.StatusCode.UNAVAILABLE
    else:
        code = _STATUS_CODES.get(problem.status, grpc.StatusCode.INVALID_ARGUMENT)
    await context.abort(code, problem.detail)


@asynccontextmanager
async def serving_otlp_grpc(
    methods: OtlpMethods[Sender],
    address: str,
    rules: GrpcRules,
    *,
    tls: TlsFiles | None,
    is_shared: bool = False,
) -> AsyncIterator[int]:
    """Serve until the block ends; yield the port.

    Port 0 selects a free one. With authorities of client certificates in `tls` every client needs
    one: gRPC for Python cannot ask for one without requiring it. With `is_shared` other processes
    may bind the same port.
    """
    options = (
        ("grpc.max_receive_message_length", methods.messages.message_bytes_max),
        ("grpc.so_reuseport", int(is_shared)),
        ("grpc.max_allowed_incoming_connections", rules.connections_max),
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.max_connection_idle_ms", round(IDLE_S * 1000)),
        ("grpc.server_handshake_timeout_ms", round(rules.handshake_s * 1000)),
    )
    server = aio.server(options=options)
    server.add_generic_rpc_handlers((methods,))
    try:
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, _credentials(tls))
    except (RuntimeError, OSError) as error:
        raise BadUsage(
            f"cannot listen: {error}; choose another address, otlp_grpc_listen=`{address}`"
        ) from error
    await server.start()
    log.info("otlp_grpc_listening", address=address, port=port)
    try:
        yield port
    finally:
        await server.stop(rules.end_s)


def _credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    if tls.client_ca is None:
        return grpc.ssl_server_credentials([pair])
    return grpc.ssl_server_credentials(
        [pair], root_certificates=tls.client_ca.read_bytes(), require_client_auth=True
    )
