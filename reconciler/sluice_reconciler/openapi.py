"""The operator API's own description, OpenAPI 3.1."""

from typing import Final

_QUERY_AGENT: Final = {"name": "agent", "in": "query", "schema": {"type": "string"}}
_QUERY_QUEUE: Final = {"name": "queue", "in": "query", "schema": {"type": "string"}}
_AFTER: Final = {"name": "after", "in": "query", "schema": {"type": "string"}}
_LIMIT: Final = {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1}}
_CONFLICT: Final = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
_DECISION: Final = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["action"],
                "properties": {
                    "action": {"enum": ["accept_existing", "quarantine_identity"]},
                    "note": {"type": "string"},
                },
            }
        }
    },
}
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


def _post(summary: str, body: object, *parameters: object) -> dict[str, object]:
    answers = {"200": {"description": summary}, "400": {"description": "not understood"}}
    asked = {"summary": summary, "parameters": list(parameters), "requestBody": body}
    return {"post": asked | {"responses": answers}}


OPENAPI: Final = {
    "openapi": "3.1.0",
    "info": {"title": "sluice reconciler", "version": "1"},
    "paths": {
        "/v1/agents": _get("accepted ranges of each agent's lives", _QUERY_AGENT),
        "/v1/gaps": _get("lives with gaps or overlaps", _QUERY_AGENT),
        "/v1/unhealthy": _get("batches that are held back, and why"),
        "/v1/conflicts": _get(
            "conflicts in key order, with what was decided", _QUERY_AGENT, _AFTER, _LIMIT
        ),
        "/v1/conflicts/{id}": _get("both sides of a conflict and how they differ", _CONFLICT),
        "/v1/conflicts/{id}/resolve": _post("decides a conflict", _DECISION, _CONFLICT),
        "/v1/audits": _get("complete audits, as their certificates say", _AFTER, _LIMIT),
        "/v1/gc/plans": _get("deletion plans, as they say", _AFTER, _LIMIT),
        "/v1/live": _get(
            "recent records as NDJSON; the last line is a summary with `next`",
            _QUERY_AGENT,
            _AFTER,
            _LIMIT,
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
