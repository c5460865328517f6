"""The OpenAPI 3.1 description, made from the types that the handlers send."""

from functools import cache
from typing import Any, Final

import msgspec

from sluice_gateway.admit import MEDIA_TYPE
from sluice_gateway.answers import AcceptedAnswer
from sluice_gateway.problems import PROBLEM_TYPE, Problem

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
    types = [AcceptedAnswer, Problem]
    _, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "sluice gateway", "version": "1"},
        "paths": {"/v1/batches": {"post": _upload()}, **_plain_paths()},
        "components": {"schemas": components},
    }


def _upload() -> dict[str, Any]:
    body = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}
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
