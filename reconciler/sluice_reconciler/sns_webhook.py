"""The webhook for Amazon SNS: confirm the subscription, accept notifications as hints.

SNS cannot send the token of the operator API, so the path is outside of `/v1/`. Each request is
authenticated by its signature instead (`sns_messages`). Memory and requests are bounded: a few
certificates, a few fetches a minute, and the ids of the newest messages.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import aiohttp
import msgspec
import structlog
from aiohttp import web
from cryptography import x509

from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage, ErrorCode, Unauthenticated
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_reconciler.events import parse_counted_events
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_reconciler.sns_messages import (
    MessageType,
    SnsMessage,
    check_origin,
    check_signature,
    parse_certificate,
    parse_message,
    parse_topics,
)
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import json_response
from sluice_web.problems import HttpRefusal

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


class PageFetcher(Protocol):
    """Fetches pages of AWS, which the webhook has checked to be of the right host."""

    async def fetch(self, url: str) -> FetchedPage:
        """Return the response, of at most `PAGE_BYTES_MAX` bytes, without following redirects.

        Raises:
            OSError: The host is unreachable, too slow, or has no valid certificate.
        """
        ...


class HttpsFetcher:
    """Fetches over HTTPS; the certificate of the host is verified."""

    async def fetch(self, url: str) -> FetchedPage:
        """Return the response to a GET."""
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
        fetcher: PageFetcher | None = None,
    ) -> None:
        """Bind the webhook to a reconciler.

        Args:
            topics: ARNs of the topics, separated by commas.
            hint: Queues accepted keys; returns how many there was space for.
            metrics: Counts events.
            clock: Time.
            fetcher: Fetches certificates and confirms subscriptions.

        Raises:
            BadUsage: A topic is not an ARN.
        """
        self._topics = parse_topics(topics)
        self._hint = hint
        self._metrics = metrics
        self._clock = clock
        self._fetcher = fetcher or HttpsFetcher()
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
            ),
        )

    async def _receive(self, request: web.Request) -> web.Response:
        if request.content_length is not None and request.content_length > BODY_BYTES_MAX:
            raise HttpRefusal(ErrorCode.TOO_LARGE, f"a message has at most {BODY_BYTES_MAX} bytes")
        return json_response(await self.process(await request.read()))

    async def process(self, body: bytes) -> SnsReceipt:
        """Check a message and act on it.

        Raises:
            BadUsage: The body is not a message of SNS.
            Unauthenticated: A check failed; nothing was done.
            HttpRefusal: 503; SNS sends the message again.
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
        await self._fetch(message.subscribe_url or "")
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
            certificate = parse_certificate(await self._fetch(url))
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

    async def _fetch(self, url: str) -> bytes:
        now_ns = self._clock.monotonic_ns()
        recent = [at for at in self._fetched_at_ns if now_ns - at < 60 * NS_PER_S]
        if len(recent) >= FETCHES_PER_MINUTE:
            raise HttpRefusal(ErrorCode.OVERLOADED, "too many requests to SNS: send it again")
        self._fetched_at_ns = [*recent, now_ns]
        try:
            page = await self._fetcher.fetch(url)
        except OSError as error:
            log.warning("sns_unreachable", url=url, reason=str(error))
            raise HttpRefusal(ErrorCode.STORE_UNAVAILABLE, "SNS is unreachable") from error
        if page.status >= 500:  # noqa: PLR2004 - RFC 9110 section 15.6
            log.warning("sns_unreachable", url=url, reason=f"status {page.status}")
            raise HttpRefusal(ErrorCode.STORE_UNAVAILABLE, "SNS failed: send it again")
        if page.status != _OK:
            raise Unauthenticated(f"SNS refused the request, status=`{page.status}`")
        return page.body
