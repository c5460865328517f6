"""The OpenAPI 3.1 description of a service, generated from its endpoints and their types."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from sluice_web.endpoints import Endpoint
from sluice_web.problems import PROBLEM_TYPE, Problem

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
    """Return every JSON type that the endpoints use, each once."""
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
