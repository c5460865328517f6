"""OTLP over gRPC: the services `LogsService` and `MetricsService`, on a separate port.

Bodies are decoded by the functions of the HTTP door, so a request that is repeated over the other
transport is a duplicate. gRPC decompresses gzip and bounds the message. Senders are known by the
token in the metadata field `authorization`, or by the SPIFFE id of their client certificate, before
their message is read into memory: the calls are unary, but the handler reads the message itself.
Source: OpenTelemetry protocol specification 1.x, "OTLP/gRPC".
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NoReturn

import grpc
import structlog
from grpc import aio

from sluice_door_http.otlp import PROTOBUF_TYPE, export_response
from sluice_door_http.routes import SERVER_ERRORS, Decode, DoorRequest
from sluice_door_http.sent_tokens import token_of
from sluice_doors.decoded import DecodedRecords
from sluice_doors.otlp import decode_otlp_logs, decode_otlp_metrics
from sluice_gateway.doors.grpc_messages import MessageReader
from sluice_gateway.doors.service import DoorService
from sluice_gateway.principals import VerifiedSender
from sluice_protocol.errors import BadUsage, Unauthenticated
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_web.listening import TlsFiles
from sluice_web.problems import Problem, describe_error

END_S: Final = 5.0
"""Time that running calls have to end when the server stops."""
_PACKAGE: Final = "/opentelemetry.proto.collector"
_STATUS_CODES: Final = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
}

_PEER_SPIFFE_ID: Final = "peer_spiffe_id"
"""The property of `grpc_security_constants.h`."""

log = structlog.get_logger()


def _logs(body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
    return decode_otlp_logs(body, PROTOBUF_TYPE, received_ns=received_ns)


def _metrics(body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
    return decode_otlp_metrics(body, PROTOBUF_TYPE, received_ns=received_ns)


_METHODS: Final[dict[str, Decode]] = {
    f"{_PACKAGE}.logs.v1.LogsService/Export": _logs,
    f"{_PACKAGE}.metrics.v1.MetricsService/Export": _metrics,
}


class OtlpMethods(grpc.GenericRpcHandler):
    """The methods that exporters call, with requests and responses as bytes."""

    def __init__(self, doors: DoorService, messages: MessageReader) -> None:
        """Bind the acceptance of this worker."""
        self._doors = doors
        self._messages = messages

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
            sender = self._sender(context)
            message = await self._messages.read(context)
            result = await self._doors.accept_message(message, sender, wanted)
        except Exception as error:  # noqa: BLE001 - every error becomes a status, as over HTTP
            problem = describe_error(error, path=method, peer=context.peer())
            self._doors.count_refused("otlp", problem)
            await _refuse(context, problem)
        self._doors.count_accepted("otlp", result)
        return export_response(result)

    def _sender(self, context: "aio.ServicerContext[bytes, bytes]") -> VerifiedSender:
        """Return the owner of the token; without one that of the client certificate.

        Raises:
            Unauthenticated: There is neither, or no principal has it.
        """
        uploads = self._doors.uploads
        token = _token(context)
        if token is not None:
            now_s = uploads.clock.now_ns() // NS_PER_S
            return uploads.principals.current.token_sender(token, now_s)
        return uploads.principals.current.spiffe_sender(_spiffe_id(context))


def _token(context: "aio.ServicerContext[bytes, bytes]") -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            return token_of(value if isinstance(value, str) else value.decode("latin-1"))
    return None


def _spiffe_id(context: "aio.ServicerContext[bytes, bytes]") -> str:
    """Return the SPIFFE id of a verified client certificate, by the rule of the HTTP door.

    gRPC reads it only where the certificate has exactly one URI SAN, and that is a SPIFFE id.

    Raises:
        Unauthenticated: There is no certificate, or it has no such id.
    """
    for found in context.auth_context().get(_PEER_SPIFFE_ID, ()):
        return found.decode(errors="replace")
    raise Unauthenticated("neither a token nor a client certificate with one SPIFFE URI SAN")


async def _refuse(context: "aio.ServicerContext[bytes, bytes]", problem: Problem) -> NoReturn:
    """End a call: trouble of the service is UNAVAILABLE, which exporters retry."""
    if problem.status >= SERVER_ERRORS:
        code = grpc.StatusCode.UNAVAILABLE
    else:
        code = _STATUS_CODES.get(problem.status, grpc.StatusCode.INVALID_ARGUMENT)
    await context.abort(code, problem.detail)


@asynccontextmanager
async def serving_otlp_grpc(
    doors: DoorService, address: str, messages: MessageReader, *, tls: TlsFiles | None
) -> AsyncIterator[int]:
    """Serve until the block ends; yield the port.

    Args:
        doors: Accepts the messages.
        address: Address and port; port 0 selects a free one.
        messages: Reads the messages; gRPC bounds them after decompression.
        tls: The certificate of the server. With authorities of client certificates every client
            needs one: gRPC for Python cannot ask for one without requiring it.

    Raises:
        BadUsage: The address cannot be bound, or the certificate cannot be read.
    """
    options = (
        ("grpc.max_receive_message_length", messages.message_bytes_max),
        ("grpc.so_reuseport", 1),
    )
    server = aio.server(options=options)
    server.add_generic_rpc_handlers((OtlpMethods(doors, messages),))
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
        await server.stop(END_S)


def _credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    if tls.client_ca is None:
        return grpc.ssl_server_credentials([pair])
    return grpc.ssl_server_credentials(
        [pair], root_certificates=tls.client_ca.read_bytes(), require_client_auth=True
    )
