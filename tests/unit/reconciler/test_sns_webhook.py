"""The webhook of SNS: nothing happens without a valid signature of a configured topic."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from structlog.testing import capture_logs
from support.gc_world import MovedClock
from support.sns_signer import (
    CERTIFICATE_URL,
    HOST,
    KEY,
    START,
    TOPIC,
    SnsHost,
    certificate,
    message,
    s3_event,
)

from sluice_protocol.errors import BadUsage, Unauthenticated
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_reconciler.sns_webhook import (
    CERTIFICATES_MAX,
    FETCHES_PER_MINUTE,
    SnsReceipt,
    SnsWebhook,
    parse_topics,
)
from sluice_web.problems import HttpRefusal

ACCEPTED = "accepted/v1/agent=61/boot=62/00000000000000000000-00000000000000000009.json"
WEAK = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 - refused
START_NS = int(START.timestamp()) * NS_PER_S


class World:
    """One webhook, the host that it fetches from, and the keys that it queued."""

    def __init__(self, topics: str = TOPIC, space: int = 100) -> None:
        self.host, self.clock = SnsHost(), MovedClock(START_NS)
        self.queued: list[ObjectKey] = []
        self.space = space
        self.webhook = SnsWebhook(
            topics, self.hint, ReconcilerMetrics(), self.clock, self.host.fetch
        )

    def hint(self, keys: Sequence[ObjectKey]) -> int:
        taken = keys[: self.space]
        self.queued += taken
        return len(taken)

    def send(self, sent: Any) -> SnsReceipt:
        return asyncio.run(self.webhook.process(json.dumps(sent).encode()))


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("subject", ["Amazon S3 Notification", None])
def test_a_signed_notification_queues_the_keys_that_it_names(
    version: str, subject: str | None
) -> None:
    world = World()
    sent = message(version=version, Subject=subject, Message=s3_event(ACCEPTED, "lake/v1/x"))
    assert world.send(sent) == SnsReceipt(taken=1, foreign=1)
    assert world.queued == [ACCEPTED]
    assert world.host.fetched == [CERTIFICATE_URL]


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("field", ["Message", "MessageId", "Subject", "Timestamp"])
def test_a_changed_field_makes_the_signature_invalid(version: str, field: str) -> None:
    world = World()
    sent = message(version=version, Message=s3_event(ACCEPTED))
    sent[field] = "2026-09-21T14:00:01Z" if field == "Timestamp" else s3_event("accepted/v1/x")
    with pytest.raises(Unauthenticated, match="signature is not valid"):
        world.send(sent)
    assert world.queued == []


@pytest.mark.parametrize("field", ["SubscribeURL", "Token"])
def test_a_changed_confirmation_is_never_fetched(field: str) -> None:
    world = World()
    sent = message("SubscriptionConfirmation")
    sent["Token"] = sent["Token"] + "0"
    if field == "SubscribeURL":
        sent["SubscribeURL"] = sent["SubscribeURL"].replace("2336412f37", sent["Token"])
    with pytest.raises(Unauthenticated):
        world.send(sent)
    assert world.host.fetched in ([], [CERTIFICATE_URL])


def test_a_signature_of_another_key_version_or_form_is_refused() -> None:
    world = World()
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for sent in (
        message(key=other),
        message() | {"SignatureVersion": "1"},
        message() | {"Signature": "not base64"},
        message() | {"Signature": ""},
    ):
        with pytest.raises(Unauthenticated, match="signature is not valid"):
            world.send(sent)
    with pytest.raises(Unauthenticated, match="unknown signature version"):
        world.send(message() | {"SignatureVersion": "3"})


@pytest.mark.parametrize(
    "url",
    [
        f"http://{HOST}/SimpleNotificationService-0.pem",
        "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0.pem",
        "https://sns.eu-central-1.amazonaws.com.evil.example/x.pem",
        "https://evil.example/x.pem",
        f"https://{HOST}@evil.example/x.pem",
        f"https://evil.example@{HOST}/x.pem",
        f"https://{HOST}:8443/x.pem",
        f"https://{HOST}:x/x.pem",
        f"https://{HOST}/x.pem?y=1",
        f"https://{HOST}/x.pem#y",
        f"https://{HOST}/../x.pem",
        f"https://{HOST}/x",
        f"https://{HOST}\\@evil.example/x.pem",
        f"https://{HOST}/x\t.pem",
        f"https://{HOST.upper()}/x.pem",
        "//" + HOST + "/x.pem",
        "",
    ],
)
def test_a_certificate_is_fetched_from_the_host_of_the_region_only(url: str) -> None:
    world = World()
    with pytest.raises(Unauthenticated):
        world.send(message(SigningCertURL=url))
    assert world.host.fetched == []


def test_another_topic_costs_no_request() -> None:
    world = World()
    for arn in ("arn:aws:sns:eu-central-1:111122223333:other", TOPIC + "\nType", ""):
        with pytest.raises(Unauthenticated, match="topic is not configured"):
            world.send(message(TopicArn=arn))
    assert world.host.fetched == []


def test_a_message_that_is_not_recent_is_a_replay() -> None:
    world = World()
    old = [
        (message(), 24 * 3600 + 60),
        (message("SubscriptionConfirmation"), 3660),
        (message(), -1000),
    ]
    for sent, later_s in old:
        world.clock.at_ns = START_NS + later_s * NS_PER_S
        with pytest.raises(Unauthenticated, match="not recent"):
            world.send(sent)
    with pytest.raises(Unauthenticated, match="RFC 3339"):
        world.send(message(Timestamp="yesterday"))
    assert world.host.fetched == []


def test_a_repeated_message_has_its_effect_once() -> None:
    world = World()
    sent = message(Message=s3_event(ACCEPTED))
    assert [world.send(sent).repeated for _ in range(3)] == [False, True, True]
    assert world.queued == [ACCEPTED]
    confirmation = message("SubscriptionConfirmation", MessageId="another")
    assert [world.send(confirmation).repeated for _ in range(2)] == [False, True]
    assert len(world.host.fetched) == 2


def test_a_message_that_failed_has_its_effect_when_it_is_sent_again() -> None:
    """SNS repeats a message after a 503; remembering it too early would lose it."""
    world = World(space=0)
    sent = message(Message=s3_event(ACCEPTED))
    for fault in ("unreachable", "failing", "full"):
        world.host.down, world.host.status = (
            fault == "unreachable",
            500 if fault == "failing" else 200,
        )
        with pytest.raises(HttpRefusal, match=r"unreachable|send it again"):
            world.send(sent)
    world.space = 10
    assert world.send(sent) == SnsReceipt(taken=1)


def test_a_subscription_is_confirmed_by_one_request_to_its_topic() -> None:
    world = World()
    sent = message("SubscriptionConfirmation")
    world.host.status = 200
    with capture_logs() as logs:
        assert world.send(sent) == SnsReceipt()
    assert world.host.fetched == [CERTIFICATE_URL, sent["SubscribeURL"]]
    assert [one["event"] for one in logs] == ["sns_subscription_confirmed"]


@pytest.mark.parametrize(
    "url",
    [
        None,
        "https://evil.example/?Action=ConfirmSubscription",
        f"https://{HOST}/?Action=Unsubscribe&TopicArn={TOPIC}&Token=2336412f37",
        f"https://{HOST}/?Action=ConfirmSubscription&TopicArn={TOPIC}x&Token=2336412f37",
        f"https://{HOST}/?Action=ConfirmSubscription&TopicArn={TOPIC}&Token=other",
        f"https://{HOST}/?Action=ConfirmSubscription&TopicArn={TOPIC}&Token=2336412f37&Extra=1",
        f"https://{HOST}/path?Action=ConfirmSubscription&TopicArn={TOPIC}&Token=2336412f37",
    ],
)
def test_a_url_that_does_not_confirm_this_subscription_is_never_fetched(url: str | None) -> None:
    """Even if SNS itself signed it."""
    world = World()
    with pytest.raises(Unauthenticated):
        world.send(message("SubscriptionConfirmation", SubscribeURL=url))
    assert world.host.fetched == []


def test_a_confirmation_that_sns_refuses_is_not_repeated_forever() -> None:
    """A token that expired is refused with 4xx: an operator subscribes again."""
    world = World()
    world.send(message())
    world.host.status = 403
    with pytest.raises(Unauthenticated, match="SNS refused"):
        world.send(message("SubscriptionConfirmation", MessageId="another"))


def test_an_unsubscription_is_reported_and_its_url_never_fetched() -> None:
    """Its `SubscribeURL` subscribes again."""
    world = World()
    with capture_logs() as logs:
        assert world.send(message("UnsubscribeConfirmation")) == SnsReceipt()
    assert world.host.fetched == [CERTIFICATE_URL]
    assert [(one["event"], one["topic"]) for one in logs] == [("sns_unsubscribed", TOPIC)]


def test_certificates_are_cached_for_a_day_and_bounded() -> None:
    world = World()
    for number in range(3):
        world.send(message(MessageId=str(number)))
    assert world.host.fetched == [CERTIFICATE_URL]
    for number in range(CERTIFICATES_MAX):
        world.send(message(MessageId=f"x{number}", SigningCertURL=f"https://{HOST}/{number}.pem"))
    world.send(message(MessageId="y"))
    assert world.host.fetched.count(CERTIFICATE_URL) == 2
    world.clock.pass_s(23 * 3600 + 3590)
    world.send(message(MessageId="z"))
    assert world.host.fetched.count(CERTIFICATE_URL) == 2


def test_forged_messages_cause_few_requests_and_do_not_stop_the_others() -> None:
    world = World()
    world.send(message(MessageId="first"))
    refused = 0
    for number in range(2 * FETCHES_PER_MINUTE):
        forged = message(SigningCertURL=f"https://{HOST}/{number}.pem") | {"Signature": "AAAA"}
        with pytest.raises((Unauthenticated, HttpRefusal)) as raised:
            world.send(forged)
        refused += isinstance(raised.value, HttpRefusal)
    assert len(world.host.fetched) == FETCHES_PER_MINUTE
    assert refused == FETCHES_PER_MINUTE + 1
    world.clock.pass_s(61)
    assert world.send(message(MessageId="last", Message=s3_event(ACCEPTED))).taken == 1


@pytest.mark.parametrize(
    ("pem", "reason"),
    [
        (b"", "cannot be read"),
        (b"<html>", "cannot be read"),
        (certificate(ec.generate_private_key(ec.SECP256R1())), "no RSA key"),
        (certificate(WEAK), "no RSA key"),
        (certificate(KEY, days=-1), "not valid now"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_refused(pem: bytes, reason: str) -> None:
    world = World()
    world.host.pem = pem
    with pytest.raises(Unauthenticated, match=reason):
        world.send(message())


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"null", s3_event(ACCEPTED).encode(), b"\xff", b"[" * 100_000]
)
def test_a_body_that_is_no_message_is_bad_input(body: bytes) -> None:
    """Raw delivery sends the events without a signature."""
    world = World()
    with pytest.raises(BadUsage, match="raw message delivery"):
        asyncio.run(world.webhook.process(body))


def test_a_notification_without_events_is_dropped_and_logged() -> None:
    world = World()
    with capture_logs() as logs:
        assert world.send(message(Message="hello")) == SnsReceipt()
    assert [one["event"] for one in logs] == ["event_invalid"]
    assert world.send(message(MessageId="t", Message='{"Event":"s3:TestEvent"}')) == SnsReceipt()


@pytest.mark.parametrize(
    "text",
    [
        "batches",
        "arn:aws:s3:::bucket",
        TOPIC + ":b1946ac9-endpoint",
        "arn:aws:sns:x:1:t",
        TOPIC + "/",
    ],
)
def test_a_topic_that_is_no_arn_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="sns_topics"):
        parse_topics(text)


def test_topics_of_other_partitions_have_their_hosts() -> None:
    china = "arn:aws-cn:sns:cn-north-1:111122223333:t"
    government = "arn:aws-us-gov:sns:us-gov-west-1:111122223333:t.fifo"
    found = parse_topics(f" {china}, {government},")
    assert found[china].host == "sns.cn-north-1.amazonaws.com.cn"
    assert found[government].host == "sns.us-gov-west-1.amazonaws.com"
