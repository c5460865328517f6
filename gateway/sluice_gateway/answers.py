"""The body of a 200."""

from typing import Final, Literal

import msgspec
from aiohttp import web

from sluice_protocol.acceptance import Accepted
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key
from sluice_protocol.units import Digest

_ENCODER: Final = msgspec.json.Encoder(order="sorted")


class AcceptedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Accepted, now or before: the agent may forget the batch.

    Attributes:
        status: Always `accepted`.
        duplicate: Whether it was accepted before this upload.
        agent_id: The identity, as the four fields say.
        boot_id: See `agent_id`.
        seq_start: See `agent_id`.
        seq_end: See `agent_id`.
        frame_sha256: The digest that owns the identity.
        manifest_key: The manifest that says so.
        accepted_at_unix_ns: When it was accepted, by the store's clock.
        collector_id: The gateway that answered.
    """

    status: Literal["accepted"] = "accepted"
    duplicate: bool
    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    frame_sha256: str
    manifest_key: str
    accepted_at_unix_ns: int
    collector_id: str


def accepted_answer(
    identity: Identity, digest: Digest, verdict: Accepted, collector_id: str
) -> AcceptedAnswer:
    """Gives the answer to an accepted upload."""
    return AcceptedAnswer(
        duplicate=verdict.duplicate,
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        frame_sha256=digest,
        manifest_key=accepted_key(identity),
        accepted_at_unix_ns=verdict.accepted_at_ns,
        collector_id=collector_id,
    )


def json_response(value: object) -> web.Response:
    """Gives a 200 with the canonical JSON of a struct."""
    return web.Response(body=_ENCODER.encode(value), content_type="application/json")
