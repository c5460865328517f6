"""The bulk endpoints of Elasticsearch, and what its clients request before the first bulk.

Filebeat, Logstash, Vector and rsyslog probe the server: its version, its licence, its health, and
templates and policies that they would create. The responses let them continue; nothing is stored.
Source: Elasticsearch reference 8.x, "Bulk API"; the probes as those clients send them.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Literal

import msgspec
from aiohttp import hdrs, web

from sluice_door_http.paths import BULK_METHODS, BULK_PATHS, DOCUMENT_PATHS, methods_of
from sluice_door_http.routes import (
    LATER,
    DoorRequest,
    DoorResult,
    DoorRoute,
    readable_detail,
    request_head,
    retry_later,
    status_for,
)
from sluice_doors.decoded import BodyUnreadable, DecodedRecords
from sluice_doors.elasticsearch import (
    Action,
    BulkItem,
    BulkRequest,
    decode_bulk,
    decode_document,
)
from sluice_protocol.units import UnixNs
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import json_response
from sluice_web.problems import Handler, Problem

PRODUCT: Final = {"X-Elastic-Product": "Elasticsearch"}
"""Official clients refuse a server that does not send it."""
VERSION: Final = "8.9.0"
_BULK: Final = web.RequestKey("bulk", BulkRequest)
_SHARDS: Final = {"total": 1, "successful": 1, "failed": 0}
_REASONS: Final = {401: "security_exception", 403: "security_exception", 503: "unavailable"}
_ABOUT: Final = {
    "name": "sluice",
    "cluster_name": "sluice",
    "cluster_uuid": "sluice",
    "version": {
        "number": VERSION,
        "build_flavor": "default",
        "build_type": "sluice",
        "lucene_version": "9.7.0",
        "minimum_wire_compatibility_version": "7.17.0",
        "minimum_index_compatibility_version": "7.0.0",
    },
    "tagline": "You Know, for Search",
}
_LICENSE: Final = {
    "license": {"uid": "sluice", "type": "basic", "mode": "basic", "status": "active"}
}
_HEALTH: Final = {"cluster_name": "sluice", "status": "green", "timed_out": False}
_PROBES: Final[dict[str, object]] = {
    "/": _ABOUT,
    "/_license": _LICENSE,
    "/_cluster/health": _HEALTH,
    "/_cat/health": [{"cluster": "sluice", "status": "green"}],
    "/_xpack": {"features": {}},
    "/_nodes/http": {"nodes": {}},
    "/_ilm/policy/{name}": {},
    "/_index_template/{name}": {},
    "/_component_template/{name}": {},
    "/_template/{name}": {},
    "/_ingest/pipeline/{name}": {},
}


_RSYSLOG_TYPE: Final = "application/json; charset=utf-8"
_NOT_FINAL: Final = frozenset((401, 403, 404, LATER))
"""Responses after which the same request can be accepted: later, or when a setting is corrected."""


def _read(request: web.Request) -> DoorRequest:
    index = request.match_info.get("index", "")

    def decode(body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
        found = decode_bulk(body, index=index, received_ns=received_ns)
        request[_BULK] = found
        return found.records

    return request_head(request, "elasticsearch", decode)


def _respond(request: web.Request, result: DoorResult) -> web.Response:
    """Return an item for each action; clients count and compare them."""
    del result
    found = request[_BULK].items
    items = [{item.action: _item(item)} for item in found]
    body = {"took": 0, "errors": any(item.error for item in found), "items": items}
    return _product(json_response(body))


def _item(item: BulkItem) -> dict[str, object]:
    named = {"_index": item.index, "_id": item.id or "-", "status": item.status}
    if item.error:
        return {**named, "error": {"type": item.error, "reason": item.reason}}
    return {**named, "result": "created"}


def _read_document(action: Action, request: web.Request) -> DoorRequest:
    named = request.match_info
    if request.query.get("op_type") == "create":
        action = "create"

    def decode(body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
        if not body.strip():
            raise BodyUnreadable("request body is required")
        found = decode_document(
            body, action, index=named["index"], id_=named.get("id", ""), received_ns=received_ns
        )
        request[_BULK] = found
        return found.records

    return request_head(request, "elasticsearch", decode)


def _respond_document(request: web.Request, result: DoorResult) -> web.Response:
    """Return what the index API responds; the error of a document that was kept as text."""
    del result
    (item,) = request[_BULK].items
    if item.error:
        return _error(item.status, item.error, f"{item.reason}; the document is kept as text")
    plain = {**_item(item), "_version": 1, "_shards": _SHARDS, "_seq_no": 0, "_primary_term": 1}
    del plain["status"]
    response = json_response(plain)
    response.set_status(item.status)
    return _product(response)


def _error(status: int, kind: str, reason: str) -> web.Response:
    error = {"type": kind, "reason": reason}
    body = {"error": {"root_cause": [error], **error}, "status": status}
    response = web.Response(
        status=status, body=msgspec.json.encode(body), content_type="application/json"
    )
    return _product(response)


def _refuse(request: web.Request, problem: Problem) -> web.Response:
    """Return an error of the whole request; close the connection of rsyslog instead.

    The module `omelasticsearch` of rsyslog drops a batch on a 503, and also on a 401, 403 or 404,
    which an operator can correct. With 429 for each item it drops those after the first, also with
    its setting `retryfailures` (tried with 8.2302). It repeats a request whose connection was
    closed.
    """
    status = status_for(problem)
    if (
        status in _NOT_FINAL
        and is_omelasticsearch(request.headers)
        and request.transport is not None
    ):
        request.transport.abort()
    kind = _REASONS.get(status, "illegal_argument_exception")
    return retry_later(_error(status, kind, readable_detail(problem)))


def is_omelasticsearch(fields: Mapping[str, str]) -> bool:
    """Return whether the header fields are those of the module `omelasticsearch` of rsyslog.

    It sets one field and has no setting for others. libcurl adds `Accept`, and no `User-Agent`.
    Source: plugins/omelasticsearch/omelasticsearch.c, `CONTENT_JSON` and `curlSetup`, equal in
    8.2302 and 8.2608.
    """
    return (
        hdrs.USER_AGENT not in fields
        and fields.get(hdrs.CONTENT_TYPE) == _RSYSLOG_TYPE
        and fields.get(hdrs.ACCEPT) == "*/*"
    )


def _product(response: web.Response) -> web.Response:
    response.headers.update(PRODUCT)
    return response


def probe_endpoints(*, open_host: bool) -> list[Endpoint]:
    """Return the endpoints that clients request before they send records.

    The responses are constants, so any `Host` may read them; an agent without tokens is stricter.
    """
    return [
        Endpoint(
            method=method,
            path=path,
            handler=_probe(body),
            summary="Respond as a client of Elasticsearch expects",
            open_host=open_host,
        )
        for path, body in _PROBES.items()
        for method in _methods(path)
    ]


def _methods(path: str) -> tuple[Literal["GET", "PUT"], ...]:
    """Return the methods of a probe; `GET` includes `HEAD`. Named objects may also be created."""
    return ("GET", "PUT") if "{" in path else ("GET",)


def _probe(body: object) -> Handler:
    async def send(request: web.Request) -> web.StreamResponse:
        del request
        return _product(json_response(body))

    return send


def _route(path: str) -> DoorRoute:
    return DoorRoute(
        door="elasticsearch",
        path=path,
        summary="Send log records as a bulk request of Elasticsearch",
        media_type="application/x-ndjson",
        read=_read,
        respond=_respond,
        refuse=_refuse,
        methods=BULK_METHODS,
    )


def _document_route(path: str) -> DoorRoute:
    return DoorRoute(
        door="elasticsearch",
        path=path,
        summary="Send one log record as a document of Elasticsearch",
        media_type="application/json",
        read=partial(_read_document, "create" if "/_create/" in path else "index"),
        respond=_respond_document,
        refuse=_refuse,
        methods=methods_of(path),
        parameters=("op_type",),
    )


ROUTES: Final = (*map(_route, BULK_PATHS), *map(_document_route, DOCUMENT_PATHS))
