"""A validated upload: what the handler hands to the acceptor."""

from dataclasses import dataclass

from sluice_protocol.envelope import Envelope
from sluice_protocol.identity import Identity
from sluice_protocol.units import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A frame that was read, validated and found to belong to its sender.

    Attributes:
        frame: The exact bytes.
        digest: Their sha256.
        identity: The identity that the frame claims.
        envelope: What the frame says of itself.
        principal: Who sent it.
        attempt_id: ULID of this handling, the same in all its tries.
        sent_before: Whether the agent says that it sent these bytes before.
        manifest: Of a batch that was accepted in a spool: its manifest's own bytes, to be
            written as they are; None where this gateway makes the manifest.
    """

    frame: bytes
    digest: Digest
    identity: Identity
    envelope: Envelope
    principal: str
    attempt_id: str
    sent_before: bool = False
    manifest: bytes | None = None
