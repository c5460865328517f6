"""Upload frames over HTTP, one or several in a request: sign it, send it, parse the response.

Redirects are not followed. Only the status, the code and the digest of a response are used.
"""

import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final, Protocol

import aiohttp
import msgspec
from yarl import URL

from sluice_agent.sending.gateway_choice import GatewayTarget
from sluice_agent.sending.signing_key import SigningKey
from sluice_agent.sending.upload_decisions import (
    ConnectionFailure,
    GatewayResponse,
    NoGatewayResponse,
)
from sluice_protocol.clock import Clock
from sluice_protocol.errors import UNREADABLE_JSON, BadUsage
from sluice_protocol.keys import digest_of
from sluice_protocol.signatures import content_digest_field, sign_request
from sluice_protocol.units import NS_PER_S, Digest, UnixNs
from sluice_protocol.upload_http import (
    FRAME_LIST_MEDIA_TYPE,
    FRAME_MEDIA_TYPE,
    HIGH_WATER_HEADER,
    RETRY_HEADER,
    SHED_HEADER,
    UPLOAD_LIST_PATH,
    UPLOAD_PATH,
    ListedFrame,
    encode_frame_list,
)
from sluice_web.response_bodies import read_up_to

RESPONSE_BYTES_MAX: Final = 64 * 1024
LIST_RESPONSE_BYTES_MAX: Final = 1024 * 1024
"""A result of a list has at most 2 KiB, a conflict with long ids included."""
_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
"""OpenSSL's errors for a response to a handshake that is not TLS."""
PIECE_BYTES: Final = 256 * 1024
MEDIA_TYPE_CHARS_MAX: Final = 64
_OK: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadRequest:
    """One attempt to upload a batch.

    Attributes:
        retry: These bytes were, or may have been, sent before.
        high_water: The highest sequence number that the batch's boot has sealed, if known.
    """

    frame: bytes
    digest: Digest
    retry: bool = False
    high_water: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadResult:
    """The result of one upload.

    Attributes:
        body: At most 64 KiB, for operators.
    """

    response: GatewayResponse | NoGatewayResponse
    body: bytes = b""


class UploadTransport(Protocol):
    """Uploads a frame to a gateway."""

    async def send(self, target: GatewayTarget, upload: UploadRequest) -> UploadResult:
        """Upload once and return the result; network errors are results, not exceptions."""
        ...

    async def send_list(
        self, target: GatewayTarget, uploads: Sequence[UploadRequest]
    ) -> tuple[UploadResult, ...] | UploadResult:
        """Upload several frames in one request.

        Return one result for each frame, or a single result if the request was refused as a whole
        or got no valid response.
        """
        ...


class HttpTransport:
    """Uploads frames with aiohttp."""

    def __init__(
        self, session: aiohttp.ClientSession, *, key: SigningKey | None, clock: Clock
    ) -> None:
        """Use a session from `open_session`; without a key, mTLS must authenticate the agent."""
        self._session = session
        self._key = key
        self._clock = clock

    async def send(self, target: GatewayTarget, upload: UploadRequest) -> UploadResult:
        """Send the frame with POST to the address of the target, under the name of its URL."""
        return await self._post(
            target, UPLOAD_PATH, upload.frame, _frame_fields(upload), RESPONSE_BYTES_MAX
        )

    async def send_list(
        self, target: GatewayTarget, uploads: Sequence[UploadRequest]
    ) -> tuple[UploadResult, ...] | UploadResult:
        """Send the frames with one POST, as `send` does."""
        body = encode_frame_list(
            [
                ListedFrame(frame=one.frame, sent_before=one.retry, high_water=one.high_water)
                for one in uploads
            ]
        )
        fields = {
            "content-digest": content_digest_field(digest_of(body)),
            "content-length": str(len(body)),
            "content-type": FRAME_LIST_MEDIA_TYPE,
        }
        sent = await self._post(target, UPLOAD_LIST_PATH, body, fields, LIST_RESPONSE_BYTES_MAX)
        return parse_results(sent, len(uploads))

    async def _post(
        self,
        target: GatewayTarget,
        path: str,
        body: bytes,
        fields: Mapping[str, str],
        response_bytes_max: int,
    ) -> UploadResult:
        url = URL(target.url.rstrip("/") + path)
        try:
            async with self._session.post(
                url.with_host(target.address) if target.address else url,
                data=_pieces(body),  # aiohttp reads a file object in threads, 64 KiB at a time
                headers=self._headers(url, fields),
                allow_redirects=False,
                server_hostname=url.host if target.address else None,
            ) as http:
                found = await read_up_to(http, response_bytes_max)
                response = parse_response(http.status, http.headers, found)
                return UploadResult(response=response, body=found)
        except TimeoutError:
            return UploadResult(response=NoGatewayResponse(failure=ConnectionFailure.TIMEOUT))
        except (aiohttp.ClientError, OSError) as error:
            return UploadResult(response=_no_response(error))

    def _headers(self, target: URL, fields: Mapping[str, str]) -> dict[str, str]:
        authority = _authority(target)
        headers = dict(fields)
        if self._key is not None:
            headers |= sign_request(
                key=self._key,
                key_id=self._key.key_id,
                method="POST",
                authority=authority,
                path=target.raw_path,
                headers=headers,
                created_s=self._clock.now_ns() // NS_PER_S,
            )
        return {**headers, "host": authority}


def _no_response(error: aiohttp.ClientError | OSError) -> NoGatewayResponse:
    """Return why there was no response, and what to check where the cause is known."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            reason = getattr(error.certificate_error, "verify_message", "")
            detail = f"the certificate is not trusted ({reason}): set --tls-ca, or check the name"
            return NoGatewayResponse(failure=ConnectionFailure.TLS, detail=detail)
        case aiohttp.ClientSSLError():
            cause = getattr(error.os_error, "reason", "") or str(error.os_error)
            detail = f"the handshake failed ({cause})"
            if cause in _NOT_TLS:
                detail = f"the server does not use TLS at this port ({cause}): use http://, or"
                detail += " check the port"
            return NoGatewayResponse(failure=ConnectionFailure.TLS, detail=detail)
        case aiohttp.ClientConnectorDNSError():
            detail = f"the name cannot be resolved ({error.os_error}): check --gateway"
            return NoGatewayResponse(failure=ConnectionFailure.NAME, detail=detail)
        case aiohttp.ClientConnectorError():
            detail = f"cannot connect ({error.os_error}): check that a gateway listens there"
            return NoGatewayResponse(failure=ConnectionFailure.REFUSED, detail=detail)
        case _:
            detail = "the connection ended before a response"
            if isinstance(error, aiohttp.ServerDisconnectedError):
                detail += ": a port with TLS does this to http://; check the scheme of --gateway"
            return NoGatewayResponse(failure=ConnectionFailure.RESET, detail=detail)


async def _pieces(body: bytes) -> AsyncIterator[memoryview]:
    """Yield a body in pieces, so that other uploads run while one is sent."""
    view = memoryview(body)
    for start in range(0, len(view), PIECE_BYTES):
        yield view[start : start + PIECE_BYTES]


def _frame_fields(upload: UploadRequest) -> dict[str, str]:
    fields = {
        "content-digest": content_digest_field(upload.digest),
        "content-length": str(len(upload.frame)),
        "content-type": FRAME_MEDIA_TYPE,
    }
    if upload.retry:
        fields[RETRY_HEADER] = "1"
    if upload.high_water is not None:
        fields[HIGH_WATER_HEADER] = str(upload.high_water)
    return fields


def client_tls(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS settings of an agent; None uses the system's defaults.

    All files are PEM: `ca` has the authorities of the gateways' certificates, and `key` may be in
    the file `cert`.
    """
    if ca is None and cert is None:
        return None
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        if cert is not None:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise BadUsage(f"cannot use certificate or key: {error}") from error
    return context


def open_upload_session(
    *, tls: ssl.SSLContext | None, connections_max: int, total_s: float, connect_s: float
) -> aiohttp.ClientSession:
    """Open a session, which the caller must close."""
    timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=connect_s)
    connector = aiohttp.TCPConnector(limit=connections_max, ssl=tls if tls is not None else True)
    return aiohttp.ClientSession(connector=connector, timeout=timeout)


def parse_response(status: int, headers: Mapping[str, str], body: bytes) -> GatewayResponse:
    """Parse the parts of a response that a decision needs; invalid parts count as absent."""
    try:
        parsed = msgspec.json.decode(body, type=_ResponseBody)
    except UNREADABLE_JSON:
        parsed = _ResponseBody()
    return _response_of(
        status,
        parsed,
        media_type=headers.get("Content-Type", "").partition(";")[0].strip(),
        retry_after_s=parse_retry_after(headers.get("Retry-After"), headers.get("Date")),
        sheds=headers.get(SHED_HEADER) == "1",
    )


def parse_results(sent: UploadResult, count: int) -> tuple[UploadResult, ...] | UploadResult:
    """Return the results of a list, or the response itself if it has not exactly `count` of them.

    A 200 with another number of results, or of another server, accepts nothing.
    """
    whole = sent.response
    if not isinstance(whole, GatewayResponse) or whole.status != _OK:
        return sent
    try:
        results = msgspec.json.decode(sent.body, type=_ResultsBody).results
    except UNREADABLE_JSON:
        return sent
    return tuple(_result_of(one, whole) for one in results) if len(results) == count else sent


def _result_of(one: "_ResultBody", whole: GatewayResponse) -> UploadResult:
    parsed = one.accepted or one.conflict or one.problem or _ResponseBody()
    response = _response_of(one.status, parsed, retry_after_s=None, sheds=whole.sheds)
    return UploadResult(response=response, body=msgspec.json.encode(one))


def _response_of(
    status: int,
    parsed: "_ResponseBody",
    *,
    media_type: str = "",
    retry_after_s: float | None,
    sheds: bool,
) -> GatewayResponse:
    if parsed.status == "accepted":
        return GatewayResponse(
            status=status,
            frame_sha256=Digest(parsed.frame_sha256),
            retry_after_s=retry_after_s,
            sheds=sheds,
        )
    if not parsed.is_problem(status):
        return GatewayResponse(
            status=status,
            media_type=media_type[:MEDIA_TYPE_CHARS_MAX],
            retry_after_s=retry_after_s,
            sheds=sheds,
        )
    return GatewayResponse(
        status=status,
        code=parsed.code,
        retryable=parsed.retryable is True,
        retry_after_s=retry_after_s,
        sheds=sheds,
        resolution=parsed.resolution or "",
        submitted_sha256=Digest(parsed.submitted_frame_sha256) or None,
    )


class _ResponseBody(msgspec.Struct, frozen=True):
    code: str = ""
    status: str | int = ""  # RFC 9457 has a number under the same name
    retryable: bool | None = None
    effect: str = ""
    frame_sha256: str = ""
    duplicate: bool | None = None
    submitted_frame_sha256: str = ""
    resolution: str | None = None

    def is_problem(self, status: int) -> bool:
        """Return True if this is a problem document of sluice with the status of its response.

        Other programs send RFC 9457 too; none of them has `retryable` and `effect`.
        """
        return (
            bool(self.code)
            and self.status == status
            and self.retryable is not None
            and bool(self.effect)
        )


class _ResultBody(msgspec.Struct, frozen=True):
    status: int = 0
    accepted: _ResponseBody | None = None
    conflict: _ResponseBody | None = None
    problem: _ResponseBody | None = None


class _ResultsBody(msgspec.Struct, frozen=True):
    results: tuple[_ResultBody, ...]


def parse_retry_after(value: str | None, date: str | None) -> float | None:
    """Return Retry-After in seconds; a date is compared with the Date of the same response.

    Source: RFC 9110 section 10.2.3.
    """
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value[:9])
    until, now = _parse_date(value), _parse_date(date)
    return None if until is None or now is None else max(0.0, (until - now) / NS_PER_S)


def _parse_date(text: str | None) -> UnixNs | None:
    try:
        moment = parsedate_to_datetime(text or "")
    except (ValueError, OverflowError):
        return None
    return UnixNs(int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()) * NS_PER_S)


def _authority(target: URL) -> str:
    host = target.host_subcomponent or ""
    return host if target.is_default_port() else f"{host}:{target.port}"
