"""The bulk endpoints of Elasticsearch, and what its clients request before the first bulk.

Filebeat, Logstash, Vector and rsyslog probe the server: its version, its licence, its health, and
templates and policies that they would create. The responses let them continue; nothing is stored.
Source: Elasticsearch reference 8.x, "Bulk API"; the probes as those clients send them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, cast, get_args

import msgspec
from aiohttp import hdrs, web

from sluice_doors.attributes import typed_text
from sluice_doors.decoded import (
    REASON_CHARACTERS_MAX,
    BodyUnreadable,
    DecodedRecords,
    Tally,
    check_lines,
)
from sluice_doors.json.records import RecordFields, raw_record, record_of
from sluice_doors.json.values import Unread, is_binary, read_or_keep, without_bom
from sluice_doors.requests import (
    LATER,
    DoorRequest,
    DoorResult,
    DoorRoute,
    readable_detail,
    request_head,
    retry_later,
    status_for,
)
from sluice_doors.rows import log_pieces
from sluice_doors.table import DOORS
from sluice_protocol.records import LogRecord
from sluice_protocol.units import UnixNs
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import json_response
from sluice_web.problems import Handler, Problem

Action = Literal["index", "create", "update", "delete"]
PREFIX: Final = "elasticsearch."
"""The prefix of attributes with what an action line states about its document."""
_ACTIONS: Final = get_args(Action)
_STATED: Final = frozenset({"_index", "_id", "_type", "routing", "pipeline", "require_alias"})
"""What an action states; an object with such keys only is an action, also of an unknown name."""
MALFORMED: Final = "illegal_argument_exception"
UNSUPPORTED: Final = "illegal_argument_exception"
UNPARSED: Final = "document_parsing_exception"
MISSING: Final = "document_missing_exception"
NOT_ACTION: Final = "line is not an action of a bulk request: create, index or update"
NO_DELETION: Final = "documents cannot be deleted here; the action is kept as text"
NO_UPDATE: Final = "documents cannot be changed here; the change is kept as a record"


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkItem:
    """What the answer of one action needs.

    `index` may be that of the path; empty if there is neither. `id` is empty if the client leaves
    it to the server, and `error` if the document is accepted as the client meant it.
    """

    action: Action
    index: str
    id: str
    status: int = 201
    error: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRequest:
    """A bulk request: its records, and one item for each action in their order."""

    records: tuple[DecodedRecords, ...]
    items: tuple[BulkItem, ...]


def decode_bulk(body: bytes, *, index: str = "", received_ns: int) -> BulkRequest:
    """Return the records and items of a bulk request; both empty if it has no line.

    Anything but an action with a document is kept as text, and its item has the error that
    Elasticsearch would return. `index` is that of the path, for actions that name none.
    `received_ns` is the time of documents that contain none.
    """
    check_lines(body, per_record=2)
    reader = _Bulk(body, index, received_ns)
    return reader.request(is_foreign=lambda: not reader.actions and is_binary(body))


def decode_document(
    body: bytes, action: Action, *, index: str, id_: str, received_ns: int
) -> BulkRequest:
    """Return the record and the item of a request with one document."""
    reader = _Bulk(b"", index, received_ns, [(action, {"_id": id_} if id_ else {}, body)])
    return reader.request(is_foreign=lambda: bool(reader.items[0].error) and is_binary(body))


class _Bulk:
    """Reads the lines of one request."""

    def __init__(
        self,
        body: bytes,
        index: str,
        received_ns: int,
        documents: Sequence[tuple[Action, dict[str, object], bytes]] = (),
    ) -> None:
        self.tally = Tally()
        self.items: list[BulkItem] = []
        self.actions = 0
        self._index = index
        self._documents = documents
        lines = [line for line in without_bom(body).split(b"\n") if line.strip()]
        self._lines = Peekable(lines)
        self._fields = RecordFields(received_ns=received_ns)

    def request(self, *, is_foreign: Callable[[], bool]) -> BulkRequest:
        rows = log_pieces(self.tally)
        for row in self._rows():
            self.tally.add(row.attributes, str(row.body))
            rows.append(row)
        if not rows:
            return BulkRequest(records=(), items=())
        if is_foreign():
            raise BodyUnreadable(
                "cannot read body as documents: no line is an action or a JSON object, and the body"
                " is no text; a compressed body needs its Content-Encoding"
            )
        decoded = self.tally.decoded(rows.columns())
        return BulkRequest(records=(decoded,), items=tuple(self.items))

    def _rows(self) -> Iterator[LogRecord]:
        for action, stated, only in self._documents:
            yield self._document(action, stated, only, b"")
        for line in self._lines:
            found = _action(line)
            if found is None:
                yield self._refused("create", {}, line, MALFORMED, NOT_ACTION)
                continue
            name, stated = found
            self.actions += name in _ACTIONS
            if name == "delete":
                yield self._refused("delete", stated, line, UNSUPPORTED, NO_DELETION)
            elif name in _ACTIONS:
                yield self._document(cast("Action", name), stated, next(self._lines, None), line)
            else:
                document = self._lines.next_if(lambda one: _action(one) is None)
                text = line if document is None else line + b"\n" + document
                yield self._refused("create", stated, text, MALFORMED, f"{NOT_ACTION}: {name}")

    def _document(
        self, action: Action, stated: dict[str, object], document: bytes | None, line: bytes
    ) -> LogRecord:
        """Return the record of a document, and add its item."""
        if document is None:
            return self._refused(action, stated, line, MALFORMED, "action has no document")
        found = read_or_keep(document)
        if isinstance(found, Unread):
            return self._refused(action, stated, document, UNPARSED, found.reason)
        if not isinstance(found, dict):
            return self._refused(action, stated, document, UNPARSED, "document is no JSON object")
        extra = self._stated(stated)
        if action != "update":
            self._add(action, stated)
            return record_of(found, self._fields, self.tally, extra)
        creates = found.get("doc_as_upsert") is True or isinstance(found.get("upsert"), dict)
        if creates:
            self._add(action, stated)
        else:
            self._add(action, stated, status=404, error=MISSING, reason=NO_UPDATE)
        parts = (found.get("doc"), found.get("upsert"))
        plain = next((part for part in parts if isinstance(part, dict)), found)
        return record_of(plain, self._fields, self.tally, {**extra, PREFIX + "action": action})

    def _refused(
        self, action: Action, stated: dict[str, object], text: bytes, error: str, reason: str
    ) -> LogRecord:
        """Add an item with an error, and return what was sent as a raw record."""
        reason = reason[:REASON_CHARACTERS_MAX]
        self._add(action, stated, status=400, error=error, reason=reason)
        plain = text.rstrip(b"\r").decode(errors="surrogateescape")
        return raw_record(plain, reason, self._fields, self.tally, self._stated(stated))

    def _texts(self, stated: dict[str, object]) -> dict[str, str]:
        named = {"_index": self._index, **stated} if self._index else stated
        return {key.removeprefix("_"): typed_text(one) for key, one in named.items()}

    def _stated(self, stated: dict[str, object]) -> dict[str, str]:
        """Return what an action states, as attributes."""
        return {PREFIX + key: text for key, text in self._texts(stated).items()}

    def _add(
        self,
        action: Action,
        stated: dict[str, object],
        *,
        status: int = 201,
        error: str = "",
        reason: str = "",
    ) -> None:
        texts = self._texts(stated)
        self.items.append(
            BulkItem(
                action=action,
                index=texts.get("index", ""),
                id=texts.get("id", ""),
                status=status,
                error=error,
                reason=reason,
            )
        )


class Peekable(Iterator[bytes]):
    """The lines of a body; the next line can be checked before it is used."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._at = 0

    def __next__(self) -> bytes:
        """Return the next line."""
        if self._at == len(self._lines):
            raise StopIteration
        self._at += 1
        return self._lines[self._at - 1]

    def next_if(self, is_wanted: Callable[[bytes], bool]) -> bytes | None:
        """Return the next line if a condition holds for it, else None."""
        if self._at == len(self._lines) or not is_wanted(self._lines[self._at]):
            return None
        return next(self)


def _action(line: bytes) -> tuple[str, dict[str, object]] | None:
    """Return the name of an action and what its line states; None if the line is none.

    Other keys next to a known action are ignored, as Elasticsearch 8 does: winston-elasticsearch
    sends `attempts` there.
    """
    found = read_or_keep(line)
    if not isinstance(found, dict):
        return None
    known = [(name, found[name]) for name in _ACTIONS if isinstance(found.get(name), dict)]
    if len(known) == 1:
        return known[0]
    if len(found) == 1:
        ((name, stated),) = found.items()
        if isinstance(stated, dict) and stated.keys() <= _STATED:
            return name, stated
    return None


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
    "/_cluster/health/{index}": _HEALTH,
    "/_cat/health": [{"cluster": "sluice", "status": "green"}],
    "/_xpack": {"features": {}},
    "/_nodes/http": {"nodes": {}},
    "/_ilm/policy/{name}": {},
    "/_index_template/{name}": {},
    "/_component_template/{name}": {},
    "/_template/{name}": {},
    "/_ingest/pipeline/{name}": {},
    "/_data_stream/{name}": {},
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


def probe_endpoints(_is_full: object, *, open_host: bool) -> list[Endpoint]:
    """Return the endpoints that clients request before they send records.

    The responses are constants, so any `Host` may read them; an agent without tokens is stricter.
    """
    probes = [
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
    methods: tuple[Literal["HEAD", "PUT"], ...] = ("HEAD", "PUT")
    return probes + [
        Endpoint(
            method=method,
            path="/{index}",
            handler=_send_index,
            summary="Respond that an index exists, because records may name any",
            open_host=open_host,
        )
        for method in methods
    ]


def _methods(path: str) -> tuple[Literal["GET", "PUT"], ...]:
    """Return the methods of a probe; `GET` includes `HEAD`. Named objects may also be created."""
    return ("GET", "PUT") if path.endswith("{name}") else ("GET",)


async def _send_index(request: web.Request) -> web.StreamResponse:
    index = request.match_info["index"]
    if index.startswith("_"):  # no index has such a name
        raise web.HTTPNotFound
    if request.method == hdrs.METH_HEAD:
        return _product(web.Response())
    reason = f"every index exists here: send documents without creating it, index=`{index[:128]}`"
    return _error(400, "resource_already_exists_exception", reason)


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
        parameters=("op_type",),
    )


ROUTES: Final = tuple(
    _route(path) if path.endswith("/_bulk") else _document_route(path)
    for path in DOORS["elasticsearch"].paths
)
