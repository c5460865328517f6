"""Who sent a request: a client certificate's SPIFFE id, or an Ed25519 signature over its head.

Everything is decided from the head, before a byte of the body is read. The signature binds
Content-Digest; `receive` holds that against the bytes.
"""

from collections.abc import Mapping

from aiohttp import web

from sluice_gateway.principals import Principals, Sender
from sluice_protocol.errors import Unauthenticated
from sluice_protocol.signatures import read_signature, verify_signature, view_request


def authenticate(request: web.Request, principals: Principals, now_s: int) -> Sender:
    """Gives the sender of a request.

    Raises:
        Unauthenticated: It has neither a good signature nor a known client certificate.
    """
    if "Signature-Input" in request.headers:
        return _by_signature(request, principals, now_s)
    certificate = request.get_extra_info("peercert")
    if not certificate:
        raise Unauthenticated("neither a signature nor a client certificate")
    return principals.spiffe_sender(spiffe_id(certificate))


def spiffe_id(certificate: Mapping[str, object]) -> str:
    """Gives the one URI SAN of a verified certificate, as `ssl.SSLSocket.getpeercert` tells it.

    Raises:
        Unauthenticated: It has none, more than one, or one of another scheme.
    """
    names = certificate.get("subjectAltName")
    pairs = names if isinstance(names, tuple) else ()
    uris = [value for kind, value in pairs if kind == "URI"]
    if len(uris) != 1 or not uris[0].startswith("spiffe://"):
        raise Unauthenticated("the client certificate has not exactly one SPIFFE URI SAN")
    return str(uris[0])


def _by_signature(request: web.Request, principals: Principals, now_s: int) -> Sender:
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
