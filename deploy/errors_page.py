"""Render the page of error codes from their registry, `docs/errors.toml`, and from the code.

Status, retries and effect are those of `sluice_protocol.errors`. Each code is the heading of its
entry, so the anchor of a code is the code.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from sluice_doors.api import routes_of
from sluice_doors.table import DoorName
from sluice_gc.errors import RefusalRule
from sluice_protocol.errors import BadUsage, Effect, ErrorCode, effect_of, retryable, status_of
from sluice_protocol.journals import HoldReason
from sluice_web.json_bodies import JSON_TYPE
from sluice_web.problems import problem_of

REGISTRY: Final = Path(__file__).parents[1] / "docs" / "errors.toml"
_ACTORS: Final = {
    "sender": "the sender",
    "operator": "an operator",
    "none": "no one: it is repeated without help",
}
_HEAD: Final = """\
# Errors

This page is generated from the code and from `docs/errors.toml` by `make docs`.

Every error response contains a `code`, every refusal of garbage collection a `rule`, and every
batch that is held back a `reason`. Each has an entry here: what it means, who must act, and the
remedy. The anchor of an entry is its code, for example [`overloaded`](#overloaded). Alerts are in
the [runbook](../runbook.md), log events in [log events](../events.md).
"""
_CODES_HEAD: Final = """
## Codes of error responses

Every service sends them in problem documents (RFC 9457), and `sluice` prints the code of an error
at the end of its line. The log of a service contains the same code in `request_refused` and
`request_error`. Doors respond in the form of their protocol, see
[below](#codes-in-the-forms-of-other-protocols).

| code | status | the same bytes may be sent again | effect |
| --- | --- | --- | --- |
"""
_DOORS_HEAD: Final = """
## Codes in the forms of other protocols

The status of a refusal by a door, and what its body contains. Loki, Prometheus, the JSON door and
Firehose receive the detail as text.

| code | status | OTLP `code` | Splunk HEC status and `code` | Elasticsearch `error.type` |
| --- | --- | --- | --- | --- |
"""
_RULES_HEAD: Final = """
## Rules of garbage collection

A refusal names its rule in the output of `sluice gc`, in the log, in the console, and in the label
of `sluice_gc_refusals_total`. After a refusal nothing more is deleted.
"""
_HOLDS_HEAD: Final = """
## Reasons for which a batch is held

A held batch is accepted and not enqueued. `sluice status` and `sluice reconciler status` count
them, and `sluice explain` shows the reason. Answers are marked partial meanwhile.
"""
Code = TypeVar("Code", bound=StrEnum)
_NotEmpty = Annotated[str, msgspec.Meta(min_length=1)]


class ErrorEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the registry states about one code.

    Attributes:
        meaning: What happened.
        who: Who must act.
        remedy: What to do.
    """

    meaning: _NotEmpty
    who: Literal["sender", "operator", "none"]
    remedy: _NotEmpty


class ErrorRegistry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The entries: of error codes, of rules of garbage collection, and of reasons to hold."""

    code: dict[ErrorCode, ErrorEntry]
    rule: dict[RefusalRule, ErrorEntry]
    hold: dict[HoldReason, ErrorEntry]


def read_errors(text: str) -> ErrorRegistry:
    """Return the entries of a registry, which must have one complete entry for each code."""
    try:
        found = msgspec.convert(tomllib.loads(text), ErrorRegistry)
    except msgspec.ValidationError as error:
        raise BadUsage(f"invalid registry of errors: {error}; edit docs/errors.toml") from error
    _check_each(ErrorCode, found.code)
    _check_each(RefusalRule, found.rule)
    _check_each(HoldReason, found.hold)
    return found


def _check_each(codes: Iterable[Code], entries: Mapping[Code, ErrorEntry]) -> None:
    for code in codes:
        if code not in entries:
            raise BadUsage(f"code without an entry: add it to docs/errors.toml, code=`{code}`")


def render_errors() -> str:
    """Return the page of the error codes, with one entry for each."""
    found = read_errors(REGISTRY.read_text(encoding="utf-8"))
    parts = [_HEAD, _CODES_HEAD, *map(_code_row, ErrorCode), *_sections(found.code)]
    parts += [_DOORS_HEAD, *map(_door_row, ErrorCode)]
    parts += [_RULES_HEAD, *_sections(found.rule), _HOLDS_HEAD, *_sections(found.hold)]
    return "".join(parts)


def _code_row(code: ErrorCode) -> str:
    again = "yes" if retryable(code) else "no"
    effect = "none" if effect_of(code) is Effect.NONE else "unknown"
    return f"| [`{code}`](#{code}) | {status_of(code)} | {again} | {effect} |\n"


def _door_row(code: ErrorCode) -> str:
    otlp, hec, elastic = (
        _refusal("otlp", code),
        _refusal("hec", code),
        _refusal("elasticsearch", code),
    )
    return (
        f"| [`{code}`](#{code}) | {otlp.status} | {_field(otlp, 'code')} |"
        f" {hec.status}, {_field(hec, 'code')} | {_field(elastic, 'error', 'type')} |\n"
    )


def _refusal(door: DoorName, code: ErrorCode) -> web.Response:
    """Return the response of a door to a client that has sent a token."""
    headers = {"Content-Type": JSON_TYPE, "Authorization": "Splunk token", "User-Agent": "client"}
    route = routes_of(door)[0]
    request = make_mocked_request("POST", route.path, headers=headers)
    return route.refuse(request, problem_of(code, ""))


def _field(response: web.Response, *names: str) -> str:
    body = msgspec.json.decode(response.text or "{}")
    for name in names:
        body = body[name]
    return str(body)


def _sections(entries: Mapping[Code, ErrorEntry]) -> Iterator[str]:
    for code, one in entries.items():
        yield f"\n### {code}\n\n{one.meaning}\n\n"
        yield f"- **Who acts:** {_ACTORS[one.who]}.\n- **Remedy:** {one.remedy}\n"
