"""The OpenAPI 3.1 description, made from the types that the handlers send."""

from functools import cache
from typing import Any, Final

import msgspec

from sluice_gateway.answers import AcceptedAnswer
from sluice_gateway.problems import PROBLEM_TYPE, Problem
from sluice_protocol.conflicts import Decision
from sluice_protocol.upload_http import FRAME_MEDIA_TYPE, UPLOAD_PATH
from sluice_store.conflict_pages import ConflictPage, ConflictView, ResolveRequest

_REFUSALS: Final = {
    "400": "The frame is not valid, of another version, or not what Content-Digest says",
    "401": "The sender is not known",
    "403": "The sender may not send for this agent, or agent and boot are quarantined",
    "409": "Other bytes own this identity",
    "411": "Content-Length is missing",
    "413": "The frame is too large",
    "415": "Another media type, or a Content-Encoding",
    "500": "A stored object is damaged; may be sent again",
    "503": "The same bytes may be sent to any gateway",
}


@cache
def openapi_document() -> dict[str, Any]:
    """Gives the whole document."""
    types = [AcceptedAnswer, Problem, ConflictPage, ConflictView, ResolveRequest, Decision]
    _, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "sluice gateway", "version": "1"},
        "paths": {UPLOAD_PATH: {"post": _upload()}, **_conflict_paths(), **_plain_paths()},
        "components": {"schemas": components},
    }


def _upload() -> dict[str, Any]:
    body = {FRAME_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}
    return {
        "summary": "Uploads one batch",
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": _answer("Accepted now or before", "application/json", "AcceptedAnswer"),
            **{code: _answer(text, PROBLEM_TYPE, "Problem") for code, text in _REFUSALS.items()},
        },
    }


def _answer(text: str, media_type: str, schema: str) -> dict[str, Any]:
    content = {media_type: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": text, "content": content}


def _conflict_paths() -> dict[str, Any]:
    by_id = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    wanted = {"schema": {"$ref": "#/components/schemas/ResolveRequest"}}
    return {
        "/v1/conflicts": {
            "get": {
                "summary": "Lists conflicts in key order; an agent sees its own",
                "parameters": [_query(name) for name in ("after", "limit", "agent")],
                "responses": _answers("A page", "ConflictPage"),
            }
        },
        "/v1/conflicts/{id}": {
            "get": {
                "summary": "Shows one conflict and how its records differ",
                "parameters": [by_id],
                "responses": _answers("The conflict", "ConflictView"),
            }
        },
        "/v1/conflicts/{id}/resolve": {
            "post": {
                "summary": "Writes an operator's decision",
                "parameters": [by_id],
                "requestBody": {"required": True, "content": {"application/json": wanted}},
                "responses": _answers("The decision as it was written", "Decision"),
            }
        },
    }


def _query(name: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}


def _answers(text: str, schema: str) -> dict[str, Any]:
    return {
        "200": _answer(text, "application/json", schema),
        "default": _answer("A refusal", PROBLEM_TYPE, "Problem"),
    }


def _plain_paths() -> dict[str, Any]:
    said = {
        "/livez": "The process answers",
        "/readyz": "Whether an upload sent now has a chance",
        "/metrics": "Metrics in the Prometheus text format",
    }
    return {
        path: {"get": {"summary": text, "responses": {"200": {"description": text}}}}
        for path, text in said.items()
    }
