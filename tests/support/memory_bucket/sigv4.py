"""Check of SigV4 signatures as S3 makes it, written from the specification, not from the signer.

Source: AWS General Reference, "Authenticating Requests (AWS Signature Version 4)".
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote

from sluice_protocol.units import NS_PER_S

_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<access>[^/]+)/(?P<scope>[^,]+), ?"
    r"SignedHeaders=(?P<signed>[^,]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)
_SKEW_S: Final = 15 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """What a signature covers, as received.

    Attributes:
        method: The method.
        path: The path, still percent-encoded.
        query: The query, still percent-encoded.
        headers: The headers, names in any case.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


def access_key_of(headers: Mapping[str, str]) -> str:
    """Return the access key that signed a request, or an empty text."""
    found = _AUTHORIZATION.fullmatch(headers.get("Authorization", ""))
    return "" if found is None else found["access"]


def check_signature(request: SignedRequest, secrets: Mapping[str, str], now_ns: int) -> str | None:
    """Return the error code of a request that must be refused, or None for a valid signature."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    if found is None:
        return "AccessDenied"
    secret = secrets.get(found["access"])
    if secret is None:
        return "InvalidAccessKeyId"
    stamp = headers.get("x-amz-date", "")
    try:
        signed_at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return "AccessDenied"
    if abs(signed_at.timestamp() - now_ns / NS_PER_S) > _SKEW_S:
        return "RequestTimeTooSkewed"
    names = found["signed"].split(";")
    if "host" not in names or any(name not in headers for name in names):
        return "AccessDenied"
    canonical = _canonical(request, headers, names)
    wanted = _signature(secret, found["scope"], stamp, canonical)
    return None if hmac.compare_digest(wanted, found["signature"]) else "SignatureDoesNotMatch"


def _canonical(request: SignedRequest, headers: Mapping[str, str], names: list[str]) -> str:
    pairs = [part.partition("=") for part in request.query.split("&") if part]
    query = sorted((_encode(name), _encode(text)) for name, _, text in pairs)
    lines = [
        request.method,
        quote(unquote(request.path), safe="/-_.~"),
        "&".join(f"{name}={text}" for name, text in query),
        *(f"{name}:{' '.join(headers[name].split())}" for name in names),
        "",
        ";".join(names),
        headers.get("x-amz-content-sha256", ""),
    ]
    return "\n".join(lines)


def _encode(text: str) -> str:
    return quote(unquote(text), safe="-_.~")


def _signature(secret: str, scope: str, stamp: str, canonical: str) -> str:
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    return hmac.new(key, text.encode(), "sha256").hexdigest()
