"""The values that the spool gives and takes."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from sluice_agent.entry import Note


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolSettings:
    """Where and how a spool keeps its batches.

    Attributes:
        directory: Its directory; one process at a time holds it.
        agent_id: The agent's id, part of every identity.
        resource: Attributes of every frame.
        bytes_max: Most bytes of batches, parked ones included.
        sync: Whether a commit is durable against a power cut, and not only against a kill.
    """

    directory: Path
    agent_id: str
    resource: tuple[tuple[str, str], ...] = ()
    bytes_max: int = 1024 * 1024 * 1024
    sync: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A batch that has its identity and its bytes for ever, not yet on disk."""

    note: Note
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch that stands in the spool.

    Attributes:
        note: What its file says of it.
        recovered: A former life sealed it, so it may have been sent already.
    """

    note: Note
    recovered: bool = False


class ParkedReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch was parked; it stands beside the batch as JSON."""

    reason: str
    gateway: str
    status: int
    parked_at_unix_ns: int
    answer: str = ""
