"""The token in the fields that clients of other protocols can be configured to send."""

import base64
import binascii
from collections.abc import Mapping

from aiohttp import hdrs

from sluice_protocol.errors import Unauthenticated


def sent_token(headers: Mapping[str, str]) -> str | None:
    """Return the token in the header fields of a request; None where there is none.

    Known forms: `Bearer T`, `Splunk T`, `ApiKey T` or `ApiKey base64(id:T)` as Elasticsearch's
    clients send it, `Basic base64(user:T)`, and Firehose's own field.

    Raises:
        Unauthenticated: `Authorization` has another form.
    """
    access_key = headers.get("X-Amz-Firehose-Access-Key")
    if access_key is not None:
        return access_key
    authorization = headers.get(hdrs.AUTHORIZATION)
    return None if authorization is None else token_of(authorization)


def token_of(authorization: str) -> str:
    """Return the token in the value of an `Authorization` field.

    Raises:
        Unauthenticated: It has another form.
    """
    scheme, _, value = authorization.partition(" ")
    match scheme.lower():
        case "bearer" | "splunk":
            return value.strip()
        case "basic":
            return _after_colon(value)
        case "apikey":
            return _after_colon(value) if _decoded(value) is not None else value.strip()
        case _:
            raise Unauthenticated("the scheme of Authorization is not known")


def _after_colon(value: str) -> str:
    decoded = _decoded(value)
    if decoded is None:
        raise Unauthenticated("Authorization is not base64 of name and token")
    return decoded.partition(":")[2]


def _decoded(value: str) -> str | None:
    try:
        decoded = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return decoded if ":" in decoded else None
