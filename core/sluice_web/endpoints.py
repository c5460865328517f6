"""Endpoints: a service lists them once; its routes and its OpenAPI description follow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sluice_web.json_bodies import JSON_TYPE
from sluice_web.parameters import Parameter
from sluice_web.problems import Handler


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one path.

    Attributes:
        path: The path; a segment in braces is a path parameter.
        body: The type of the request body, `bytes` for another media type than JSON, or None.
        result: The type of the 200 body, or None where it is not JSON.
        result_summary: What a 200 means; the summary where it is empty.
        problems: What the error statuses mean; one line for all of them where it is empty.
        sends_continue: Whether the handler itself sends `100 Continue`, so that it can refuse a
            request before the client sends the body.
        open_host: Whether the gate accepts any `Host` and any media type on this path: each request
            is authenticated by something that a browser cannot send, or learns nothing.
        linked: Whether links on pages of other origins may open this path in a window: the request
            changes nothing that its user did not begin.
        reads: Whether no method of this path writes, so a form may be its body.
        needs_token: Whether a service with a token refuses requests of this path without one.
    """

    method: Literal["GET", "HEAD", "POST", "PUT"]
    path: str
    handler: Handler
    summary: str
    parameters: Sequence[Parameter] = ()
    body: object | None = None
    body_type: str = JSON_TYPE
    result: object | None = None
    result_type: str = JSON_TYPE
    result_summary: str = ""
    problems: Mapping[str, str] = field(default_factory=dict)
    problem_types: Mapping[str, object] = field(default_factory=dict)
    sends_continue: bool = False
    open_host: bool = False
    linked: bool = False
    reads: bool = False
    needs_token: bool = True
    described: bool = True
