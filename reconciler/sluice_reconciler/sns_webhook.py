"""The webhook for Amazon SNS: confirm the subscription, accept notifications as hints.

SNS cannot send the token of the operator API, so the path is outside of `/v1/`. Each request is
authenticated by its signature instead. Memory and requests are bounded: a few
certificates, a few fetches a minute, and the ids of the newest messages.

A message is accepted if its topic is configured, its time is recent, and its signature is valid for
the key of a certificate from `sns.<region>.amazonaws.com`, in the region of the topic. The
certificate is trusted because it was fetched from that host over TLS.

Source: Amazon SNS Developer Guide, "Verifying the signatures of Amazon SNS messages" and "Parsing
Amazon SNS message formats".
"""

import asyncio
import base64
import binascii
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final
from urllib.parse import parse_qs, urlsplit

import aiohttp
import msgspec
import structlog
from aiohttp import web
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA1, SHA256, HashAlgorithm

from sluice_protocol.clock import Clock
from sluice_protocol.errors import UNREADABLE_JSON, BadUsage, ErrorCode, Unauthenticated
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_reconciler.events import parse_counted_events
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import json_response
from sluice_web.problems import HttpRefusal

NOTIFICATION_AGE_MAX_NS: Final = 24 * 3600 * NS_PER_S
"""SNS repeats a delivery for hours. An older message is a replay; full passes find its object."""
CONFIRMATION_AGE_MAX_NS: Final = 3600 * NS_PER_S
"""A replayed confirmation could subscribe the webhook again after an operator unsubscribed it."""
AHEAD_MAX_NS: Final = 900 * NS_PER_S
KEY_BITS_MIN: Final = 2048
_ARN: Final = re.compile(
    r"arn:(?P<partition>aws(?:-cn|-us-gov)?):sns:(?P<region>[a-z]{2}(?:-[a-z]+)+-\d{1,2})"
    r":\d{12}:[A-Za-z0-9_-]{1,256}(?:\.fifo)?",
    re.ASCII,
)
_CERTIFICATE_PATH: Final = re.compile(r"/[A-Za-z0-9_.-]{1,200}\.pem", re.ASCII)
_SHOWN_CHARS_MAX: Final = 200
_HASHES: Final[dict[str, HashAlgorithm]] = {
    "1": SHA1(),  # noqa: S303 - the default of topics; SNS defines it
    "2": SHA256(),
}


class MessageType(StrEnum):
    """The types of messages that SNS sends."""

    NOTIFICATION = "Notification"
    SUBSCRIPTION = "SubscriptionConfirmation"
    UNSUBSCRIPTION = "UnsubscribeConfirmation"


class SnsMessage(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """One message as SNS sends it; fields that are not signed are left out.

    Attributes:
        message_id: The same in each repeated delivery.
        message: For a notification of S3, the events as JSON.
        signature_version: `1` for SHA1, `2` for SHA256.
        subscribe_url: The URL that confirms a subscription.
    """

    type: MessageType
    message_id: str
    topic_arn: str
    message: str
    timestamp: str
    signature_version: str
    signature: str
    signing_cert_url: str = msgspec.field(name="SigningCertURL")
    subject: str | None = None
    token: str | None = None
    subscribe_url: str | None = msgspec.field(default=None, name="SubscribeURL")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnsTopic:
    """One configured topic and the host of its region."""

    arn: str
    host: str


def parse_topics(text: str) -> dict[str, SnsTopic]:
    """Parse the ARNs of topics, separated by commas."""
    topics = {}
    for item in (part.strip() for part in text.split(",")):
        if not item:
            continue
        found = _ARN.fullmatch(item)
        if found is None:
            raise BadUsage(
                "invalid topic in sns_topics: use arn:aws:sns:<region>:<account>:<name>,"
                f" topic=`{item[:_SHOWN_CHARS_MAX]}`"
            )
        suffix = ".cn" if found["partition"] == "aws-cn" else ""
        topics[item] = SnsTopic(arn=item, host=f"sns.{found['region']}.amazonaws.com{suffix}")
    return topics


def parse_message(body: bytes) -> SnsMessage:
    """Parse the body of a request.

    With raw delivery SNS sends neither an envelope nor a signature, which is refused.
    """
    try:
        return msgspec.json.decode(body, type=SnsMessage)
    except UNREADABLE_JSON as error:
        raise BadUsage(f"not a message of SNS: turn off raw message delivery: {error}") from error


def check_origin(message: SnsMessage, topics: dict[str, SnsTopic], now_ns: int) -> SnsTopic:
    """Check everything but the signature, without a request; return the topic.

    The topic must be configured, each URL be of its region, and the time be recent.
    """
    topic = topics.get(message.topic_arn)
    if topic is None:
        raise Unauthenticated(f"topic is not configured, topic=`{_shown(message.topic_arn)}`")
    if message.signature_version not in _HASHES:
        version = _shown(message.signature_version)
        raise Unauthenticated(f"unknown signature version, version=`{version}`")
    lines = (
        message.message_id,
        message.timestamp,
        message.token or "",
        message.subscribe_url or "",
    )
    if any("\n" in line for line in lines):
        raise Unauthenticated("a field contains a line break, which the signature cannot cover")
    url = urlsplit(_checked_url(message.signing_cert_url, topic))
    if url.query or not _CERTIFICATE_PATH.fullmatch(url.path):
        raise Unauthenticated(f"not a certificate, url=`{_shown(message.signing_cert_url)}`")
    _check_time(message, now_ns)
    if message.type is MessageType.SUBSCRIPTION:
        _check_subscribe_url(message, topic)
    return topic


def _check_time(message: SnsMessage, now_ns: int) -> None:
    try:
        sent_ns = parse_rfc3339(message.timestamp)
    except BadUsage as error:
        raise Unauthenticated(str(error)) from error
    is_confirmation = message.type is MessageType.SUBSCRIPTION
    age_max_ns = CONFIRMATION_AGE_MAX_NS if is_confirmation else NOTIFICATION_AGE_MAX_NS
    if not -AHEAD_MAX_NS <= now_ns - sent_ns <= age_max_ns:
        raise Unauthenticated(f"message is not recent, timestamp=`{message.timestamp}`")


def _checked_url(text: str, topic: SnsTopic) -> str:
    """Return the URL if it is https on the host of the topic's region, on the default port."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise Unauthenticated(f"malformed URL, url=`{_shown(text)}`") from error
    if (parts.scheme, parts.netloc.removesuffix(":443")) != ("https", topic.host):
        raise Unauthenticated(f"URL is not of https://{topic.host}, url=`{_shown(text)}`")
    if port not in (None, 443) or parts.fragment or not text.isascii() or not text.isprintable():
        raise Unauthenticated(f"URL has another form, url=`{_shown(text)}`")
    return text


def _check_subscribe_url(message: SnsMessage, topic: SnsTopic) -> None:
    """Check that the URL confirms this subscription and does nothing else."""
    url = _checked_url(message.subscribe_url or "", topic)
    query = parse_qs(urlsplit(url).query)
    wanted = {
        "Action": ["ConfirmSubscription"],
        "TopicArn": [message.topic_arn],
        "Token": [message.token or ""],
    }
    if urlsplit(url).path not in ("", "/") or query != wanted:
        raise Unauthenticated(f"URL does not confirm this subscription, url=`{_shown(url)}`")


def signed_text(message: SnsMessage) -> bytes:
    """Return the bytes that the signature covers: names and values in the order of SNS."""
    fields: list[tuple[str, str | None]] = [
        ("Message", message.message),
        ("MessageId", message.message_id),
    ]
    if message.type is MessageType.NOTIFICATION:
        fields.append(("Subject", message.subject))
        fields.append(("Timestamp", message.timestamp))
    else:
        fields.append(("SubscribeURL", message.subscribe_url))
        fields.append(("Timestamp", message.timestamp))
        fields.append(("Token", message.token))
    fields += [("TopicArn", message.topic_arn), ("Type", message.type.value)]
    text = "".join(f"{name}\n{value}\n" for name, value in fields if value is not None)
    return text.encode()


def parse_certificate(pem: bytes) -> x509.Certificate:
    """Parse a certificate with an RSA key."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = certificate.public_key()
    except (ValueError, TypeError) as error:
        raise Unauthenticated(f"certificate cannot be read: {error}") from error
    if not isinstance(key, RSAPublicKey) or key.key_size < KEY_BITS_MIN:
        raise Unauthenticated(f"certificate has no RSA key of {KEY_BITS_MIN} bits")
    return certificate


def check_signature(message: SnsMessage, certificate: x509.Certificate, now_ns: int) -> None:
    """Check the certificate's period and the signature, or raise `Unauthenticated`."""
    now = datetime.fromtimestamp(UnixNs(now_ns) / NS_PER_S, UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise Unauthenticated("certificate is not valid now")
    key = certificate.public_key()
    if not isinstance(key, RSAPublicKey):
        raise Unauthenticated("certificate has no RSA key")
    try:
        signature = base64.b64decode(message.signature, validate=True)
        key.verify(signature, signed_text(message), PKCS1v15(), _HASHES[message.signature_version])
    except (InvalidSignature, binascii.Error, ValueError) as error:
        raise Unauthenticated("signature is not valid") from error


def _shown(text: str) -> str:
    return text[:_SHOWN_CHARS_MAX]


log = structlog.get_logger()

PATH: Final = "/hooks/sns"
CERTIFICATES_MAX: Final = 16
CERTIFICATE_AGE_MAX_NS: Final = 24 * 3600 * NS_PER_S
FETCHES_PER_MINUTE: Final = 30
MESSAGE_IDS_MAX: Final = 10_000
BODY_BYTES_MAX: Final = 1024 * 1024
"""A message has at most 256 KiB; in JSON each of its bytes may need several."""
PAGE_BYTES_MAX: Final = 64 * 1024
FETCH_TIMEOUT_S: Final = 5.0
_OK: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPage:
    """A response to a GET."""

    status: int
    body: bytes


Fetch = Callable[[str], Awaitable[FetchedPage]]
"""Fetches a page of AWS; the webhook has checked that its URL is of the right host."""


async def fetch_page(url: str) -> FetchedPage:
    """Fetch a page over HTTPS without following redirects; the host's certificate is verified."""
    timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > PAGE_BYTES_MAX:
                    raise OSError(f"the page has more than {PAGE_BYTES_MAX} bytes")
            return FetchedPage(status=response.status, body=bytes(body))
    except (aiohttp.ClientError, TimeoutError) as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


class SnsReceipt(msgspec.Struct, frozen=True):
    """What a message caused: keys queued, events about other keys, whether it was a repeat."""

    taken: int = 0
    foreign: int = 0
    repeated: bool = False


class SnsWebhook:
    """The webhook of one reconciler."""

    def __init__(
        self,
        topics: str,
        hint: Callable[[Sequence[ObjectKey]], int],
        metrics: ReconcilerMetrics,
        clock: Clock,
        fetch: Fetch = fetch_page,
    ) -> None:
        """Bind the webhook to a reconciler.

        `topics` are ARNs, separated by commas. `hint` queues accepted keys and returns how many
        there was space for.
        """
        self._topics = parse_topics(topics)
        self._hint = hint
        self._metrics = metrics
        self._clock = clock
        self._fetch = fetch
        self._certificates: OrderedDict[str, tuple[int, x509.Certificate]] = OrderedDict()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._fetching = asyncio.Lock()
        self._fetched_at_ns: list[int] = []

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoint; none without a topic."""
        if not self._topics:
            return ()
        return (
            Endpoint(
                method="POST",
                path=PATH,
                handler=self._receive,
                summary="Accept a signed message of Amazon SNS",
                body=bytes,
                body_type="text/plain",
                result=SnsReceipt,
                open_host=True,
                needs_token=False,
            ),
        )

    async def _receive(self, request: web.Request) -> web.Response:
        if request.content_length is not None and request.content_length > BODY_BYTES_MAX:
            raise HttpRefusal(ErrorCode.TOO_LARGE, f"a message has at most {BODY_BYTES_MAX} bytes")
        return json_response(await self.process(await request.read()))

    async def process(self, body: bytes) -> SnsReceipt:
        """Check a message and act on it.

        If a check fails, nothing is done. After a 503, SNS sends the message again.
        """
        message = parse_message(body)
        check_origin(message, self._topics, self._clock.now_ns())
        certificate = await self._certificate(message.signing_cert_url)
        check_signature(message, certificate, self._clock.now_ns())
        if message.message_id in self._seen:
            return SnsReceipt(repeated=True)
        receipt = await self._act(message)
        # Only now: a message that failed is sent again and must then have its effect.
        self._remember(message.message_id)
        return receipt

    def _remember(self, message_id: str) -> None:
        self._seen[message_id] = None
        while len(self._seen) > MESSAGE_IDS_MAX:
            self._seen.popitem(last=False)

    async def _act(self, message: SnsMessage) -> SnsReceipt:
        match message.type:
            case MessageType.NOTIFICATION:
                return self._queue_keys(message)
            case MessageType.SUBSCRIPTION:
                await self._confirm(message)
            case MessageType.UNSUBSCRIPTION:
                # Its SubscribeURL would subscribe again, so it is never fetched.
                log.warning("sns_unsubscribed", topic=message.topic_arn)
        return SnsReceipt()

    def _queue_keys(self, message: SnsMessage) -> SnsReceipt:
        try:
            hints = parse_counted_events(message.message.encode(), self._metrics)
        except BadUsage as error:
            log.warning("event_invalid", reason=str(error))
            return SnsReceipt()  # SNS would send it again, and it would be as invalid
        taken = self._hint(hints.keys)
        if taken < len(hints.keys):
            raise HttpRefusal(ErrorCode.OVERLOADED, "too many keys are queued: send it again")
        return SnsReceipt(taken=taken, foreign=hints.foreign)

    async def _confirm(self, message: SnsMessage) -> None:
        await self._read_page(message.subscribe_url or "")
        log.info("sns_subscription_confirmed", topic=message.topic_arn)

    async def _certificate(self, url: str) -> x509.Certificate:
        known = self._known_certificate(url)
        if known is not None:
            return known  # forged messages that wait for a fetch never delay this one
        async with self._fetching:
            known = self._known_certificate(url)
            if known is not None:
                return known
            fetched_at_ns = self._clock.monotonic_ns()
            certificate = parse_certificate(await self._read_page(url))
            self._certificates[url] = (fetched_at_ns, certificate)
            while len(self._certificates) > CERTIFICATES_MAX:
                self._certificates.popitem(last=False)
            return certificate

    def _known_certificate(self, url: str) -> x509.Certificate | None:
        known = self._certificates.get(url)
        if known is None or self._clock.monotonic_ns() - known[0] > CERTIFICATE_AGE_MAX_NS:
            return None
        self._certificates.move_to_end(url)
        return known[1]

    async def _read_page(self, url: str) -> bytes:
        now_ns = self._clock.monotonic_ns()
        recent = [at for at in self._fetched_at_ns if now_ns - at < 60 * NS_PER_S]
        if len(recent) >= FETCHES_PER_MINUTE:
            raise HttpRefusal(ErrorCode.OVERLOADED, "too many requests to SNS: send it again")
        self._fetched_at_ns = [*recent, now_ns]
        try:
            page = await self._fetch(url)
        except OSError as error:
            log.warning("sns_unreachable", url=url, reason=str(error))
            raise HttpRefusal(ErrorCode.STORE_UNAVAILABLE, "SNS is unreachable") from error
        if page.status >= 500:  # noqa: PLR2004 - RFC 9110 section 15.6
            log.warning("sns_unreachable", url=url, reason=f"status {page.status}")
            raise HttpRefusal(ErrorCode.STORE_UNAVAILABLE, "SNS failed: send it again")
        if page.status != _OK:
            raise Unauthenticated(f"SNS refused the request, status=`{page.status}`")
        return page.body
