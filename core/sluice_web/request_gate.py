"""The gate of every service: refuse requests that a web page makes a browser send.

A page can act on a service of another origin in two ways. Its own name is rebound to the address
of the service (DNS rebinding), or the request is one that browsers send without a preflight. The
gate therefore checks three things before any handler runs:

1. `Host` is the address that the connection arrived at, a loopback name on a loopback address, or a
   configured name. After rebinding it is still the name of the page.
2. `Origin` and `Sec-Fetch-Site`, where a browser sends them, name the same origin.
3. A method that writes has a field that a page cannot send across origins without a preflight. The
   service grants no preflight. A `POST` that only reads needs none: a page cannot read the answer.

Source: Fetch standard, "CORS protocol" and "CORS-safelisted request-header"; W3C Fetch Metadata.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from aiohttp import HttpVersion, HttpVersion10, HttpVersion11, hdrs, web
from aiohttp.typedefs import Middleware
from multidict import MultiMapping

from sluice_protocol.errors import BadUsage
from sluice_web.addresses import LOOPBACK_NAMES, is_loopback, plain_address
from sluice_web.problems import GateRefusal, Handler

REQUEST_HEADER: Final = "X-Requested-With"
"""Any value of it replaces a media type in a write without a body."""

_VERSIONS: Final = frozenset({HttpVersion10, HttpVersion11})
"""A request line without a version is HTTP/0.9, whose response has no status and no fields."""
_BROWSER_FIELDS: Final = (hdrs.ORIGIN, "Sec-Fetch-Site")
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PREFLIGHTED_FIELDS: Final = (hdrs.AUTHORIZATION, "Signature-Input", REQUEST_HEADER)
_SIMPLE_TYPES: Final = frozenset(
    {"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"}
)
"""Media types that a page may send to any origin without a preflight."""
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+", re.ASCII)
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::([0-9]{1,5}))?", re.ASCII)
_ORIGIN: Final = re.compile(r"(https?)://(.+)", re.ASCII)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_SAME_SITES: Final = frozenset({"same-origin", "none"})
_SHOWN_CHARS_MAX: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """What the gate reads of a request.

    `local_address` is the one that the connection arrived at; empty where it is unknown. With
    `open_host` the path accepts any `Host` and any media type, because each of its requests is
    authenticated and covers `Host`.
    """

    method: str
    version: HttpVersion
    scheme: str
    local_address: str
    headers: MultiMapping[str]
    open_host: bool = False
    linked: bool = False
    reads: bool = False


def refusal_of(head: RequestHead, allowed_hosts: Collection[str]) -> str:
    """Return why a request is refused; empty where it may pass.

    `allowed_hosts` are names in lower case, and addresses, without ports.
    """
    return (
        _host_refusal(head, allowed_hosts)
        or _origin_refusal(head)
        or ("" if head.open_host or head.reads else _write_refusal(head))
    )


def gate_middleware(
    allowed_hosts: Collection[str] = (),
    *,
    open_paths: Collection[str] = (),
    linked_paths: Collection[str] = (),
    reading_paths: Collection[str] = (),
) -> Middleware:
    """Return the middleware that refuses what `refusal_of` refuses.

    `open_paths` accept any `Host` and any media type. Links on pages of other origins may open
    `linked_paths`. No method of `reading_paths` writes.
    """

    @web.middleware
    async def check_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.version not in _VERSIONS:
            raise BadUsage("send HTTP/1.1 or HTTP/1.0")
        resource = request.match_info.route.resource
        path = None if resource is None else resource.canonical  # with its parameters in braces
        open_host = path in open_paths
        if open_host and not any(name in request.headers for name in _BROWSER_FIELDS):
            return await handler(request)  # nothing to check: `refusal_of` accepts it
        head = RequestHead(
            method=request.method,
            version=request.version,
            scheme=request.scheme,
            local_address=_local_address(request),
            headers=request.headers,
            open_host=open_host,
            linked=path in linked_paths,
            reads=path in reading_paths,
        )
        reason = refusal_of(head, allowed_hosts)
        if reason:
            raise GateRefusal(reason)
        return await handler(request)

    return check_request


def _local_address(request: web.Request) -> str:
    socket_name = request.get_extra_info("sockname")
    return str(socket_name[0]) if isinstance(socket_name, tuple) and socket_name else ""


def _host_refusal(head: RequestHead, allowed_hosts: Collection[str]) -> str:
    if head.open_host:
        return ""
    text = _one(head.headers, hdrs.HOST)
    if text is None and head.version < HttpVersion11:
        return ""  # no browser sends HTTP/1.0; a load balancer's health check may
    found = _HOST.fullmatch((text or "").lower())
    host = plain_address(found[1].strip("[]")) if found is not None else ""
    local = plain_address(head.local_address)
    known = bool(host) and (
        host == local or host in allowed_hosts or (host in LOOPBACK_NAMES and is_loopback(local))
    )
    shown = (text or "")[:_SHOWN_CHARS_MAX]
    return "" if known else f"host is not allowed: add it to allowed_hosts, host=`{shown}`"


def _origin_refusal(head: RequestHead) -> str:
    if head.linked and _is_navigation(head):
        return ""
    site = head.headers.get("Sec-Fetch-Site")
    if site is not None and site not in _SAME_SITES:
        return f"a page of another origin sent the request, site=`{site[:_SHOWN_CHARS_MAX]}`"
    if hdrs.ORIGIN in head.headers and not _same_origin(head):
        shown = head.headers[hdrs.ORIGIN][:_SHOWN_CHARS_MAX]
        return f"a page of another origin sent the request, origin=`{shown}`"
    return ""


def _is_navigation(head: RequestHead) -> bool:
    """Return whether a user opens the path in a window; a page cannot read the response."""
    sent = [_one(head.headers, f"Sec-Fetch-{name}") for name in ("Mode", "Dest")]
    return head.method == "GET" and sent == ["navigate", "document"]


def _same_origin(head: RequestHead) -> bool:
    """Return whether `Origin` and `Host` are equal; a proxy may have added TLS in front."""
    origin = _ORIGIN.fullmatch((_one(head.headers, hdrs.ORIGIN) or "").lower())
    if origin is None or (origin[1] != "https" and head.scheme == "https"):
        return False
    default = f":{_DEFAULT_PORTS[origin[1]]}"
    host = (_one(head.headers, hdrs.HOST) or "").lower()
    return origin[2].removesuffix(default) == host.removesuffix(default)


def _write_refusal(head: RequestHead) -> str:
    if head.method in _SAFE_METHODS or any(one in head.headers for one in _PREFLIGHTED_FIELDS):
        return ""
    kind = (_one(head.headers, hdrs.CONTENT_TYPE) or "").partition(";")[0].strip().lower()
    if _MEDIA_TYPE.fullmatch(kind) and kind not in _SIMPLE_TYPES:
        return ""
    return (
        "a web page could have sent the request: send Content-Type: application/json,"
        f" or the field {REQUEST_HEADER}"
    )


def _one(headers: MultiMapping[str], name: str) -> str | None:
    """Return a field that occurs once; an empty text where it is repeated."""
    values = headers.getall(name, [])
    return values[0] if len(values) == 1 else "" if values else None
