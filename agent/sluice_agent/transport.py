"""One upload over HTTP: signs, sends, reads the answer while it sends.

Redirects are not followed and no answer is trusted beyond its status, code and digest.
"""

import io
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final, Protocol

import aiohttp
import msgspec
from yarl import URL

from sluice_agent.answers import Answer, Lost, NoAnswer
from sluice_agent.clock import Clock
from sluice_agent.signing import SigningKey
from sluice_protocol.errors import BadUsage
from sluice_protocol.signatures import content_digest, sign_request
from sluice_protocol.units import NS_PER_S, Digest, UnixNs
from sluice_protocol.upload_http import (
    FRAME_MEDIA_TYPE,
    HIGH_WATER_HEADER,
    RETRY_HEADER,
    UPLOAD_PATH,
)

ANSWER_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """One try to send a batch.

    Attributes:
        frame: The frame's bytes.
        digest: Their sha256.
        retry: These bytes were, or may have been, sent before.
        high_water: The highest sequence number that the batch's boot sealed so far, if known.
    """

    frame: bytes
    digest: Digest
    retry: bool = False
    high_water: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What came back.

    Attributes:
        observed: What the decision needs of it.
        body: The answer's body, at most 64 KiB, for people.
    """

    observed: Answer | NoAnswer
    body: bytes = b""


class Transport(Protocol):
    """Carries one upload to one gateway."""

    async def send(self, url: str, upload: Upload) -> Received:
        """Sends once and gives what came back; never raises for what the network does."""
        ...


class HttpTransport:
    """Uploads through aiohttp."""

    def __init__(
        self, session: aiohttp.ClientSession, *, key: SigningKey | None, clock: Clock
    ) -> None:
        """Takes a session from `open_session` and the key; without one, mTLS must speak for us."""
        self._session = session
        self._key = key
        self._clock = clock

    async def send(self, url: str, upload: Upload) -> Received:
        """Sends the frame by POST."""
        target = URL(url.rstrip("/") + UPLOAD_PATH)
        headers = self._headers(target, upload)
        try:
            async with self._session.post(
                target, data=io.BytesIO(upload.frame), headers=headers, allow_redirects=False
            ) as response:
                body = await _read_some(response)
                observed = parse_answer(response.status, response.headers, body)
                return Received(observed=observed, body=body)
        except TimeoutError:
            return Received(observed=NoAnswer(lost=Lost.TIMEOUT))
        except aiohttp.ClientSSLError:
            return Received(observed=NoAnswer(lost=Lost.TLS))
        except aiohttp.ClientConnectorError:
            return Received(observed=NoAnswer(lost=Lost.REFUSED))
        except (aiohttp.ClientError, OSError):
            return Received(observed=NoAnswer(lost=Lost.RESET))

    def _headers(self, target: URL, upload: Upload) -> dict[str, str]:
        headers = {
            "content-digest": content_digest(upload.digest),
            "content-length": str(len(upload.frame)),
            "content-type": FRAME_MEDIA_TYPE,
        }
        if upload.retry:
            headers[RETRY_HEADER] = "1"
        if upload.high_water is not None:
            headers[HIGH_WATER_HEADER] = str(upload.high_water)
        authority = _authority(target)
        if self._key is not None:
            headers |= sign_request(
                key=self._key.key,
                key_id=self._key.key_id,
                method="POST",
                authority=authority,
                path=target.raw_path,
                headers=headers,
                created_s=self._clock.now_ns() // NS_PER_S,
            )
        return {**headers, "host": authority}


def client_tls(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Gives the TLS settings of an agent; none leaves the system's own.

    Args:
        ca: Authorities that gateways' certificates must come from, PEM.
        cert: The agent's own certificate, for mTLS, PEM.
        key: The key of that, if it is not in the same file.

    Raises:
        BadUsage: A file cannot be read or used.
    """
    if ca is None and cert is None:
        return None
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        if cert is not None:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise BadUsage(f"certificate or key cannot be used: {error}") from error
    return context


def open_session(
    *, tls: ssl.SSLContext | None, connections_max: int, total_s: float, connect_s: float
) -> aiohttp.ClientSession:
    """Opens a session; it must be closed."""
    timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=connect_s)
    connector = aiohttp.TCPConnector(limit=connections_max, ssl=tls if tls is not None else True)
    return aiohttp.ClientSession(connector=connector, timeout=timeout)


def parse_answer(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """Reads what the decision needs; anything odd reads as if it were not there."""
    try:
        said = msgspec.json.decode(body, type=_Said)
    except msgspec.DecodeError:
        said = _Said()
    return Answer(
        status=status,
        code=said.code,
        frame_sha256=Digest(said.frame_sha256) if said.status == "accepted" else None,
        retry_after_s=parse_retry_after(headers.get("Retry-After"), headers.get("Date")),
    )


class _Said(msgspec.Struct, frozen=True):
    code: str = ""
    status: str | int = ""  # RFC 9457 has a number under the same name
    frame_sha256: str = ""


def parse_retry_after(value: str | None, date: str | None) -> float | None:
    """Gives Retry-After in seconds: a number, or a date against the answer's own Date.

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
    except ValueError:
        return None
    return UnixNs(int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()) * NS_PER_S)


def _authority(target: URL) -> str:
    host = target.host_subcomponent or ""
    return host if target.is_default_port() else f"{host}:{target.port}"


async def _read_some(response: aiohttp.ClientResponse) -> bytes:
    body = b""
    while len(body) < ANSWER_BYTES_MAX:
        piece = await response.content.read(ANSWER_BYTES_MAX - len(body))
        if not piece:
            break
        body += piece
    return body
