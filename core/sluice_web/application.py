"""The application of a service: its middlewares, its routes and its OpenAPI 3.1 description.

The gate of every service refuses requests that a web page makes a browser send. A page can act on a
service of another origin in two ways. Its own name is rebound to the address of the service (DNS
rebinding), or the request is one that browsers send without a preflight. The gate therefore checks
three things before any handler runs:

1. `Host` is the address that the connection arrived at, a loopback name on a loopback address, or a
   configured name. After rebinding it is still the name of the page.
2. `Origin` and `Sec-Fetch-Site`, where a browser sends them, name the same origin.
3. A method that writes has a field that a page cannot send across origins without a preflight. The
   service grants no preflight. A `POST` that only reads needs none: a page cannot read the answer.

Source: Fetch standard, "CORS protocol" and "CORS-safelisted request-header"; W3C Fetch Metadata.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

import msgspec
from aiohttp import HttpVersion, HttpVersion10, HttpVersion11, hdrs, web
from aiohttp.typedefs import Middleware
from multidict import MultiMapping

from sluice_protocol.errors import BadUsage
from sluice_web.addresses import LOOPBACK_NAMES, is_loopback, plain_address
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import json_response
from sluice_web.problems import (
    PROBLEM_TYPE,
    GateRefusal,
    Handler,
    Problem,
    UnknownPath,
    problem_middleware,
)
from sluice_web.tokens import CHALLENGE, OPEN_PATHS, Operator, token_middleware

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


_PATH_CHARACTERS_MAX: Final = 128
_NEAR: Final = 0.8
_BINARY: Final = {"type": "string", "format": "binary"}
_PATH_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_PATTERN: Final = re.compile(r"\{(\w+):[^}]*\}")
"""A parameter with a pattern, which OpenAPI does not know."""


def openapi_document(title: str, endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the whole document."""
    schemas, components = msgspec.json.schema_components(
        types := _types(endpoints), ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, by_type)
        path = _PATTERN.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "paths": paths,
        "components": {"schemas": components},
    }


def _types(endpoints: Iterable[Endpoint]) -> list[Any]:
    used: dict[Any, None] = {Problem: None}
    for endpoint in endpoints:
        for kind in (endpoint.body, endpoint.result, *endpoint.problem_types.values()):
            if kind is not None and kind is not bytes:
                used[kind] = None
    return list(used)


def _operation(endpoint: Endpoint, by_type: Mapping[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "responses": {
            "200": _response(
                endpoint.result_summary or endpoint.summary,
                endpoint.result_type,
                None if endpoint.result is None else by_type[endpoint.result],
            ),
            **_problems(endpoint, by_type),
        },
    }
    parameters = [*_path_parameters(endpoint.path), *_query_parameters(endpoint)]
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        schema = _BINARY if endpoint.body is bytes else by_type[endpoint.body]
        content = {endpoint.body_type: {"schema": schema}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _response(summary: str, media_type: str, schema: object | None) -> dict[str, Any]:
    content = {} if schema is None else {"schema": schema}
    return {"description": summary, "content": {media_type: content}}


def _problems(endpoint: Endpoint, by_type: Mapping[Any, Any]) -> dict[str, Any]:
    meanings = endpoint.problems or {"default": "The request is refused"}
    return {
        status: _response(text, PROBLEM_TYPE, by_type[endpoint.problem_types.get(status, Problem)])
        for status, text in meanings.items()
    }


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PATH_PARAMETER.findall(_PATTERN.sub(r"{\1}", path))
    ]


def _query_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": one.name, "in": "query", "required": False, "schema": one.schema}
        for one in endpoint.parameters
    ]


OPENAPI_PATH: Final = "/openapi.json"


def make_application(
    endpoints: Sequence[Endpoint],
    *,
    middlewares: Sequence[Middleware],
    title: str = "",
    allowed_hosts: Collection[str] = (),
    body_bytes_max: int = 1024 * 1024,
) -> web.Application:
    """Return the application of a list of endpoints, behind the gate.

    The first middleware is the outermost one, and the gate follows the last. Without a title no
    OpenAPI description is served. A larger body than `body_bytes_max` is refused with 413.
    """
    open_paths = frozenset(endpoint.path for endpoint in endpoints if endpoint.open_host)
    linked_paths = frozenset(endpoint.path for endpoint in endpoints if endpoint.linked)
    gate = gate_middleware(
        allowed_hosts,
        open_paths=open_paths,
        linked_paths=linked_paths,
        reading_paths=frozenset(endpoint.path for endpoint in endpoints if endpoint.reads),
    )
    app = web.Application(middlewares=[*middlewares, gate], client_max_size=body_bytes_max)
    app.add_routes([_route(endpoint) for endpoint in endpoints])
    guarded = {endpoint.path for endpoint in endpoints if endpoint.needs_token}
    opened = {endpoint.path for endpoint in endpoints} - guarded | {OPENAPI_PATH, _REFUSED}
    app[OPEN_PATHS] = frozenset(_PATTERN.sub(r"{\1}", path) for path in opened)
    if title:
        handler = _openapi_handler(title, [one for one in endpoints if one.described])
        app.router.add_get(OPENAPI_PATH, handler, expect_handler=send_continue)
    _add_refusals(app)
    return app


def guarded_middlewares(token: str, operators: Sequence[Operator] = ()) -> tuple[Middleware, ...]:
    """Return the middlewares of a service whose endpoints need a bearer token."""
    return problem_middleware(challenge=CHALLENGE), token_middleware(token, operators)


def _route(endpoint: Endpoint) -> web.RouteDef:
    if endpoint.sends_continue:
        return web.route(
            endpoint.method, endpoint.path, endpoint.handler, expect_handler=_ignore_expectation
        )
    return web.route(endpoint.method, endpoint.path, endpoint.handler, expect_handler=send_continue)


_REFUSED: Final = "/{path:.*}"
"""Every path and method that no endpoint has."""


def _add_refusals(app: web.Application) -> None:
    """Respond 404 and 405 by a route of the service.

    aiohttp's own routes for them copy an unknown `Expect` into the response. A value that is not
    UTF-8 would then be a server error.
    """
    # A path of variables only has every text, so it shows nothing of what a sender means.
    known = [one for one in app.router.resources() if not _ANY_SEGMENT.fullmatch(one.canonical)]
    paths = tuple(one.canonical for one in known)

    async def refuse(request: web.Request) -> web.StreamResponse:
        allowed: set[str] = set()
        for resource in known:
            allowed |= (await resource.resolve(request))[1]
        if allowed:
            raise web.HTTPMethodNotAllowed(request.method, allowed)
        raise UnknownPath(nearest_path(request.path, paths))

    app.router.add_route("*", _REFUSED, refuse, expect_handler=send_continue)


_ANY_SEGMENT: Final = re.compile(r"/\{[^{}/]*\}")


@lru_cache(maxsize=256)
def nearest_path(path: str, known: tuple[str, ...]) -> str:
    """Return the path that the sender of an unknown path probably means; empty if none is near.

    A segment in braces of a `known` path stands for any text. Usual mistakes are a slash at the
    end, two slashes, a prefix of another product, a missing prefix, and a typing error.
    """
    parts = [part for part in path.split("/") if part]
    if not parts or len(path) > _PATH_CHARACTERS_MAX:
        return ""
    plain = "/" + "/".join(parts)
    if plain != path and any(_fits(parts, one) for one in known):
        return plain
    fixed = [one for one in known if "{" not in one]
    ends = [one for one in fixed if len(one) > 1 and plain.endswith(one)]
    if ends:
        return max(ends, key=len)
    last = [one for one in fixed if one.rpartition("/")[2] == parts[-1]]
    if len(last) == 1:
        return last[0]
    return next(iter(get_close_matches(plain, fixed, n=1, cutoff=_NEAR)), "")


def _fits(parts: Sequence[str], known: str) -> bool:
    wanted = known.strip("/").split("/")
    return len(parts) == len(wanted) and all(
        one == sent or one.startswith("{") for one, sent in zip(wanted, parts, strict=True)
    )


async def send_continue(request: web.Request) -> None:
    """Send `100 Continue`; ignore any other expectation, as RFC 9110 section 10.1.1 allows."""
    expectation = request.headers.get(hdrs.EXPECT, "").lower()
    if expectation == "100-continue" and request.version == HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the response has not begun


async def _ignore_expectation(request: web.Request) -> None:
    """Leave `Expect: 100-continue` to the handler."""
    del request


def _openapi_handler(title: str, endpoints: Sequence[Endpoint]) -> Handler:
    documents: list[dict[str, object]] = []

    async def send_openapi(request: web.Request) -> web.Response:
        del request
        if not documents:
            documents.append(openapi_document(title, endpoints))
        return json_response(documents[0])

    return send_openapi
