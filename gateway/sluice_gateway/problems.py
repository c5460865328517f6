"""Refusals as RFC 9457 problem documents: `code`, `retryable` and `effect` beside the standard.

What a stranger may learn is constant: the text of a 401 or a 403 never says why.
"""

from typing import Final

import msgspec
from aiohttp import web

from sluice_protocol.errors import (
    Effect,
    ErrorCode,
    SluiceError,
    effect_of,
    retryable,
    status_of,
)
from sluice_protocol.manifests import ConflictManifest

PROBLEM_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1
"""What every 503 asks for; agents add their own jitter and take another gateway first."""

_CONSTANT: Final = {
    ErrorCode.UNAUTHENTICATED: "the sender is not known",
    ErrorCode.FORBIDDEN: "the sender may not do this",
    ErrorCode.FORBIDDEN_AGENT: "the sender may not send for this agent",
    ErrorCode.IDENTITY_QUARANTINED: "an operator has quarantined this agent and boot",
}
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of every refusal.

    Attributes:
        title: The code in words.
        status: The HTTP status.
        detail: What happened and what to do.
        code: What a program acts on.
        retryable: Whether the same bytes may be sent again.
        effect: Whether the request may have changed the store.
        agent_id: Of a conflict: the identity, as the four fields say.
        boot_id: See `agent_id`.
        seq_start: See `agent_id`.
        seq_end: See `agent_id`.
        accepted_frame_sha256: Of a conflict: the digest that owns the identity.
        submitted_frame_sha256: Of a conflict: the digest that was refused.
        accepted_raw_blob_key: Of a conflict: where the owner's bytes are.
        submitted_raw_blob_key: Of a conflict: where the refused bytes are kept.
        accepted_manifest_key: Of a conflict: the manifest that decided.
        quarantine_key: Of a conflict: the record of the refusal.
    """

    title: str
    status: int
    detail: str
    code: ErrorCode
    retryable: bool
    effect: Effect
    agent_id: str | None = None
    boot_id: str | None = None
    seq_start: int | None = None
    seq_end: int | None = None
    accepted_frame_sha256: str | None = None
    submitted_frame_sha256: str | None = None
    accepted_raw_blob_key: str | None = None
    submitted_raw_blob_key: str | None = None
    accepted_manifest_key: str | None = None
    quarantine_key: str | None = None


class Refusal(SluiceError):
    """A request that is answered with `code`; nothing below the handler raises it.

    Attributes:
        code: What a program acts on.
        detail: What happened and what to do.
    """

    def __init__(self, code: ErrorCode, detail: str) -> None:
        """Carries the code and the detail."""
        super().__init__(code, detail)
        self.code = code
        self.detail = detail

    def __str__(self) -> str:
        """Says the detail."""
        return self.detail


def problem_of(code: ErrorCode, detail: str) -> Problem:
    """Gives the problem document of a code; constant text where a stranger must learn nothing."""
    return Problem(
        title=code.value.replace("_", " "),
        status=status_of(code),
        detail=_CONSTANT.get(code, detail),
        code=code,
        retryable=retryable(code),
        effect=effect_of(code),
    )


def conflict_problem(conflict: ConflictManifest, quarantine_key: str) -> Problem:
    """Gives the problem document of a 409 from the quarantine manifest that stands."""
    return msgspec.structs.replace(
        problem_of(
            ErrorCode.IDENTITY_CONFLICT,
            "other bytes own this identity: park the batch and tell an operator",
        ),
        agent_id=conflict.agent_id,
        boot_id=conflict.boot_id,
        seq_start=conflict.seq_start,
        seq_end=conflict.seq_end,
        accepted_frame_sha256=conflict.accepted_frame_sha256,
        submitted_frame_sha256=conflict.submitted_frame_sha256,
        accepted_raw_blob_key=conflict.accepted_raw_blob_key,
        submitted_raw_blob_key=conflict.submitted_raw_blob_key,
        accepted_manifest_key=conflict.accepted_manifest_key,
        quarantine_key=quarantine_key,
    )


def problem_response(problem: Problem) -> web.Response:
    """Gives the response that carries a problem."""
    response = web.Response(
        status=problem.status, body=_ENCODER.encode(problem), content_type=PROBLEM_TYPE
    )
    if problem.status == 503:  # noqa: PLR2004 - RFC 9110 section 15.6.4
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response
