"""Detect the copies that logrotate's copytruncate makes, so that no line is sent twice.

copytruncate copies `app.log` to `app.log.1` and then truncates `app.log`. Lines written between
the agent's last read and the truncation exist in the copy only; all earlier lines exist in both.

A new file may be such a copy if it matches another file up to the position that the agent reached
there: the same first KiB, and the same bytes before that position. The agent reads it from that
position once the other file is truncated. If that does not happen within a minute, the file is an
ordinary copy and is read from its start. A file shorter than 1 KiB is never treated as a copy:
sending a line twice is better than losing one.

Source: ADR 0032.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sluice_agent.line_readers import HEAD_BYTES, FollowedFile
from sluice_agent.spool_format import FileCheckpoint

COPY_WAIT_S: Final = 60.0
"""The longest time between the copy and the truncation of one copytruncate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCopy:
    """A copy whose original is not truncated yet.

    Attributes:
        checkpoint: The position in the original when the copy was found.
        until_s: The monotonic time at which the file is read from its start.
    """

    checkpoint: FileCheckpoint
    until_s: float


class CopyDetector:
    """Remembers recent truncations and the copies that are not read yet."""

    def __init__(self) -> None:
        self._truncated: list[tuple[float, FileCheckpoint]] = []
        self._waiting: dict[str, WaitingCopy] = {}

    def record_truncation(self, checkpoint: FileCheckpoint, *, now_s: float) -> None:
        """Record the position of a file when it was truncated or overwritten."""
        self._truncated = [(t, m) for t, m in self._truncated if now_s - t < COPY_WAIT_S]
        self._truncated.append((now_s, checkpoint))

    def detect(self, file: FollowedFile, others: Iterable[FollowedFile], *, now_s: float) -> bool:
        """Return True if a new file is a copy, and set its position."""
        for since_s, checkpoint in self._truncated:
            if now_s - since_s < COPY_WAIT_S and _is_copy(file, checkpoint):
                file.seek(checkpoint.offset)
                return True
        for other in others:
            checkpoint = other.checkpoint(start=other.offset)
            if _is_copy(file, checkpoint):
                file.seek(checkpoint.offset)
                self._waiting[file.source] = WaitingCopy(
                    checkpoint=checkpoint, until_s=now_s + COPY_WAIT_S
                )
                return True
        return False

    def is_waiting(self, file: FollowedFile) -> bool:
        """Return True if a file is a copy that must not be read yet."""
        return file.source in self._waiting

    def resolve(self, file: FollowedFile, *, now_s: float) -> bool:
        """Return True if a copy may be read now, and set its position.

        If its original was truncated, it is read from the position reached there. If the time is
        up, it is an ordinary copy and is read from its start.
        """
        waiting = self._waiting[file.source]
        for _, checkpoint in self._truncated:
            if (
                checkpoint.source == waiting.checkpoint.source
                and checkpoint.offset >= waiting.checkpoint.offset
            ):
                file.seek(min(checkpoint.offset, file.offset + file.unread_bytes()))
                del self._waiting[file.source]
                return True
        if now_s < waiting.until_s:
            return False
        file.seek(0)
        del self._waiting[file.source]
        return True


def _is_copy(file: FollowedFile, checkpoint: FileCheckpoint) -> bool:
    return (
        file.source != checkpoint.source
        and checkpoint.offset >= HEAD_BYTES
        and file.matches(checkpoint)
    )
