"""Amazon SNS as a webhook sees it: a key with a certificate, signed messages, and its host."""

import base64
import datetime as dt
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from sluice_reconciler.sns_webhook import FetchedPage

TOPIC = "arn:aws:sns:eu-central-1:111122223333:batches"
HOST = "sns.eu-central-1.amazonaws.com"
CERTIFICATE_URL = f"https://{HOST}/SimpleNotificationService-0123456789abcdef.pem"
START = dt.datetime(2026, 9, 21, 14, tzinfo=dt.UTC)
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def certificate(
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey = KEY, *, days: int = 30
) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sns.amazonaws.com")])
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(START - dt.timedelta(days=60))
        .not_valid_after(START + dt.timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    return built.public_bytes(Encoding.PEM)


def message(
    kind: str = "Notification", *, version: str = "2", key: rsa.RSAPrivateKey = KEY, **changes: Any
) -> dict[str, Any]:
    """Return a signed message; `changes` are signed too, and None omits a field."""
    topic = changes.get("TopicArn", TOPIC)
    fields: dict[str, Any] = {
        "Type": kind,
        "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
        "TopicArn": topic,
        "Message": "{}",
        "Timestamp": START.strftime("%Y-%m-%dT%H:%M:%S.123Z"),
        "SignatureVersion": version,
        "SigningCertURL": CERTIFICATE_URL,
    }
    if kind == "Notification":
        fields["Subject"] = "Amazon S3 Notification"
        fields["UnsubscribeURL"] = f"https://{HOST}/?Action=Unsubscribe"
        names = ["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"]
    else:
        fields["Token"] = "2336412f37"
        query = {"Action": "ConfirmSubscription", "TopicArn": topic, "Token": "2336412f37"}
        fields["SubscribeURL"] = f"https://{HOST}/?{urlencode(query)}"
        names = ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
    fields = {name: value for name, value in (fields | changes).items() if value is not None}
    text = "".join(f"{name}\n{fields[name]}\n" for name in names if name in fields)
    digest = hashes.SHA1() if version == "1" else hashes.SHA256()  # noqa: S303 - version 1
    signature = key.sign(text.encode(), padding.PKCS1v15(), digest)
    return fields | {"Signature": base64.b64encode(signature).decode()}


def s3_event(*keys: str) -> str:
    records = [{"eventName": "ObjectCreated:Put", "s3": {"object": {"key": key}}} for key in keys]
    return json.dumps({"Records": records})


@dataclass
class SnsHost:
    """The pages of SNS: one certificate, and confirmations.

    Attributes:
        fetched: The URLs that were fetched, in order.
        status: The status of each response.
        down: Whether the host is unreachable.
        pem: The certificate.
    """

    fetched: list[str] = field(default_factory=list)
    status: int = 200
    down: bool = False
    pem: bytes = field(default_factory=certificate)

    async def fetch(self, url: str) -> FetchedPage:
        self.fetched.append(url)
        if self.down:
            raise OSError("is down")
        body = self.pem if url.endswith(".pem") else b"<ConfirmSubscriptionResponse/>"
        return FetchedPage(status=self.status, body=body)
