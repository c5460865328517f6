"""Authentication: which principal sent a request, from its head, before its body is read.

A batch upload has an Ed25519 signature or a client certificate with a SPIFFE id. A signature covers
Content-Digest, which `frame_reader` compares with the body. A client of a door that cannot sign
sends a token, in one of the fields that such clients can be configured to send.
"""

from collections.abc import Mapping

from aiohttp import web

from sluice_doors.requests import sent_token
from sluice_gateway.principals import Principals, VerifiedSender
from sluice_protocol.errors import Unauthenticated
from sluice_protocol.signatures import read_signature, verify_signature, view_request


def authenticate(request: web.Request, principals: Principals, now_s: int) -> VerifiedSender:
    """Return the sender of a request.

    Raises:
        Unauthenticated: It has neither a valid signature nor a known client certificate.
    """
    if "Signature-Input" in request.headers:
        return _by_signature(request, principals, now_s)
    certificate = request.get_extra_info("peercert")
    if not certificate:
        raise Unauthenticated("neither a signature nor a client certificate")
    return principals.spiffe_sender(spiffe_id(certificate))


def spiffe_id(certificate: Mapping[str, object]) -> str:
    """Return the one URI SAN of a verified certificate of `ssl.SSLSocket.getpeercert`.

    Raises:
        Unauthenticated: It has none, more than one, or one of another scheme.
    """
    names = certificate.get("subjectAltName")
    pairs = names if isinstance(names, tuple) else ()
    uris = [value for kind, value in pairs if kind == "URI"]
    if len(uris) != 1 or not uris[0].startswith("spiffe://"):
        raise Unauthenticated("the client certificate has not exactly one SPIFFE URI SAN")
    return str(uris[0])


def _by_signature(request: web.Request, principals: Principals, now_s: int) -> VerifiedSender:
    path, _, query = request.raw_path.partition("?")
    view = view_request(
        method=request.method,
        authority=request.headers.get("Host", ""),
        path=path,
        query=query,
        headers=request.headers.items(),
    )
    claim = read_signature(view, now_s=now_s)
    known = principals.key_of(claim.key_id, now_s)
    verify_signature(claim, known.key)
    if request.method == "POST" and not claim.covers_body:
        raise Unauthenticated("the signature of a POST must cover content-digest")
    return known.sender


def authenticate_door(request: web.Request, principals: Principals, now_s: int) -> VerifiedSender:
    """Return the sender of a request to a door.

    Raises:
        Unauthenticated: It has neither a known token, nor a valid signature, nor a known client
            certificate.
    """
    token = sent_token(request.headers)
    if token is not None:
        return principals.token_sender(token, now_s)
    if "Signature-Input" not in request.headers and not request.get_extra_info("peercert"):
        raise Unauthenticated("neither a token, a signature nor a client certificate")
    return authenticate(request, principals, now_s)
