"""The report of followed files: what was not sent, or sent again. `sluice status` shows it.

The agent writes it to `files.json` in its spool whenever it changes. It is no part of the spool's
promises: if it cannot be written, the next change writes it.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from sluice_protocol.errors import UNREADABLE_JSON

NAME: Final = "files.json"
PATHS_MAX: Final = 100


@dataclass(slots=True)
class FileCounts:
    """What was not read as it was written, since the start.

    Attributes:
        resent_bytes: Bytes of these files that were read before; their lines, if they still exist,
            are sent again.
        hole_bytes: Zero bytes that were skipped.
    """

    rewritten: int = 0
    resent_bytes: int = 0
    missing: int = 0
    hole_bytes: int = 0
    binary: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


class FileReport(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to the files of an agent since its start.

    Attributes:
        rewritten: Files that were read from their start again.
        resent_bytes: Bytes of them that had been read before: these lines are sent again.
        missing: Files that were known and not found; lines that were not read of them are lost.
        hole_bytes: Zero bytes that were skipped.
        binary: Paths of files that are not sent because they are binary, the first 100.
        unreadable: Paths of files that cannot be read at present, the first 100.
    """

    agent_id: str
    written_at_unix_ns: int
    rewritten: int = 0
    resent_bytes: int = 0
    missing: int = 0
    hole_bytes: int = 0
    binary: tuple[str, ...] = ()
    binary_more: int = 0
    unreadable: tuple[str, ...] = ()


def make_file_report(counts: FileCounts, *, agent_id: str, now_ns: int) -> FileReport:
    """Return the report of an agent."""
    return FileReport(
        agent_id=agent_id,
        written_at_unix_ns=now_ns,
        rewritten=counts.rewritten,
        resent_bytes=counts.resent_bytes,
        missing=counts.missing,
        hole_bytes=counts.hole_bytes,
        binary=counts.binary[:PATHS_MAX],
        binary_more=max(0, len(counts.binary) - PATHS_MAX),
        unreadable=counts.unreadable[:PATHS_MAX],
    )


def write_report(spool: Path, report: FileReport) -> None:
    """Write a report; a disk that fails is reported by the writes of batches."""
    with contextlib.suppress(OSError):
        temporary = spool / f"{NAME}.tmp"
        temporary.write_bytes(msgspec.json.encode(report))
        os.replace(temporary, spool / NAME)  # noqa: PTH105 - atomic


def read_report(spool: Path) -> FileReport | None:
    """Return the report of the agent with this spool; None if there is none that can be read."""
    try:
        return msgspec.json.decode((spool / NAME).read_bytes(), type=FileReport)
    except (OSError, *UNREADABLE_JSON):
        return None
