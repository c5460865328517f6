"""The operator API's own description, OpenAPI 3.1."""

from typing import Final

_QUERY_AGENT: Final = {"name": "agent", "in": "query", "schema": {"type": "string"}}
_QUERY_QUEUE: Final = {"name": "queue", "in": "query", "schema": {"type": "string"}}
_LEASES: Final = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["lease_ids"],
                "properties": {
                    "queue": {"type": "string"},
                    "lease_ids": {"type": "array", "items": {"type": "string"}},
                },
            }
        }
    },
}


def _get(summary: str, *parameters: object) -> dict[str, object]:
    answers = {"200": {"description": summary}}
    return {"get": {"summary": summary, "parameters": list(parameters), "responses": answers}}


def _post(summary: str, body: object) -> dict[str, object]:
    answers = {"200": {"description": summary}, "400": {"description": "not understood"}}
    return {"post": {"summary": summary, "requestBody": body, "responses": answers}}


OPENAPI: Final = {
    "openapi": "3.1.0",
    "info": {"title": "sluice reconciler", "version": "1"},
    "paths": {
        "/v1/agents": _get("accepted ranges of each agent's lives", _QUERY_AGENT),
        "/v1/gaps": _get("lives with gaps or overlaps", _QUERY_AGENT),
        "/v1/unhealthy": _get("batches that are held back, and why"),
        "/v1/conflicts": _get("keys of quarantine manifests"),
        "/v1/audits": _get("keys of audits"),
        "/v1/gc/plans": _get("keys of deletion plans"),
        "/v1/live": _get(
            "recent records as NDJSON; the last line is a summary with `next`",
            _QUERY_AGENT,
            {"name": "after", "in": "query", "schema": {"type": "string"}},
            {"name": "limit", "in": "query", "schema": {"type": "integer", "maximum": 10000}},
            {"name": "wait", "in": "query", "schema": {"type": "integer", "maximum": 30}},
        ),
        "/v1/events": _post(
            "object events as hints",
            {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
        ),
        "/v1/queue": _get("how far behind each lane is", _QUERY_QUEUE),
        "/v1/queue/next": _get(
            "claims entries with a lease",
            _QUERY_QUEUE,
            {"name": "max", "in": "query", "schema": {"type": "integer", "maximum": 100}},
        ),
        "/v1/queue/commit": _post("commits claimed entries", _LEASES),
        "/v1/queue/failed": _post("gives claimed entries back", _LEASES),
        "/v1/queue/heartbeat": _post("holds claimed entries longer", _LEASES),
        "/metrics": _get("Prometheus metrics"),
        "/livez": _get("the process runs"),
        "/readyz": _get("passes succeed"),
    },
}
