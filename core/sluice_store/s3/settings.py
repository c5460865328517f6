"""Settings of an S3 store and its URL. Credentials are those of the AWS SDK."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from sluice_protocol.errors import BadUsage


class Addressing(StrEnum):
    """Where the bucket's name is in a URL."""

    PATH = "path"
    VIRTUAL = "virtual"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """One bucket and prefix as a store.

    Attributes:
        bucket: The bucket's name.
        prefix: The deployment's prefix: empty, or ending in a slash.
        endpoint: URL of the server; AWS in the region when None.
        region: The region; the session's when None, and `us-east-1` when that has none.
        addressing: Bucket in the host or in the path; when None, `virtual` on AWS and `path` on
            other servers.
        profile: Profile of the AWS configuration; the default one when None.
        ca_bundle: File of certificate authorities to trust; the system's when None.
        connect_timeout_s: Bound on the time for a connection, including the wait for a free one, in
            seconds.
        request_timeout_s: Bound on one whole exchange, in seconds.
        in_flight_bytes_max: Bound on the bodies in flight from this process, in bytes.
        connections_max: Bound on open connections.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    addressing: Addressing | None = None
    profile: str | None = None
    ca_bundle: str | None = None
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 20.0
    in_flight_bytes_max: int = 128 * 1024 * 1024
    connections_max: int = 256


def choose_addressing(settings: S3Settings) -> Addressing:
    """Return the addressing style: as set, else virtual on AWS and path on other servers.

    The certificate of AWS does not match a bucket name with a dot, so such a name is in the path.
    """
    if settings.addressing is not None:
        return settings.addressing
    own = settings.endpoint is not None or "." in settings.bucket
    return Addressing.PATH if own else Addressing.VIRTUAL


_MULTI_REGION_ARN: Final = re.compile(r"arn:[^:]+:s3::[^:]*:accesspoint", re.IGNORECASE)
_OPTIONS: Final = frozenset({"endpoint", "region", "addressing", "profile", "ca_bundle"})


def parse_s3_url(url: str) -> S3Settings:
    """Parse `s3://bucket/prefix?endpoint=…&region=…&addressing=path|virtual&profile=…&ca_bundle=…`."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme != "s3" or not parts.netloc or "@" in parts.netloc:
        raise BadUsage(
            f"invalid store URL: use s3://bucket/prefix without credentials, url=`{url}`"
        )
    if "#" in url:
        raise BadUsage(
            "invalid store URL: the characters from # on would be ignored; choose a prefix"
            f" without it, url=`{url}`"
        )
    if _names_several_buckets(parts.netloc, options.get("endpoint", "")):
        raise BadUsage(
            "a Multi-Region Access Point cannot be the store: its buckets copy objects later, so"
            " two of them could decide an identity differently; use one of its buckets,"
            f" url=`{url}`"
        )
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise BadUsage(
            f"unknown option in the store URL, found=`{unknown}`; the options are "
            f"{sorted(_OPTIONS)}"
        )
    prefix = unquote(parts.path).strip("/")
    return S3Settings(
        bucket=parts.netloc,
        prefix=f"{prefix}/" if prefix else "",
        endpoint=_endpoint(options.get("endpoint")),
        region=options.get("region") or None,
        addressing=_addressing(options.get("addressing")),
        profile=options.get("profile") or None,
        ca_bundle=options.get("ca_bundle") or None,
    )


def _names_several_buckets(place: str, endpoint: str) -> bool:
    """Return True for a Multi-Region Access Point: its alias, its ARN without region, or its host.

    Source: Amazon S3 User Guide, "Making requests through a Multi-Region Access Point".
    """
    is_alias = place.lower().endswith(".mrap")
    is_arn = _MULTI_REGION_ARN.match(place) is not None
    host = (urlsplit(endpoint).hostname or "") if endpoint else ""
    return is_alias or is_arn or ".accesspoint.s3-global." in f"{place}.{host}."


def _endpoint(text: str | None) -> str | None:
    if not text:
        return None
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.netloc or parts.path.strip("/"):
        raise BadUsage(f"invalid endpoint: use https://host:port, endpoint=`{text}`")
    return text.rstrip("/")


def _addressing(text: str | None) -> Addressing | None:
    try:
        return Addressing(text) if text else None
    except ValueError as error:
        raise BadUsage(f"invalid addressing: use path or virtual, addressing=`{text}`") from error
