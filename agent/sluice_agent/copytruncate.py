"""Knows the copies that copytruncate makes, so that their lines are not sent a second time.

logrotate's copytruncate copies `app.log` to `app.log.1` and then truncates `app.log`. What was
written between the agent's last read and the truncation is in the copy alone; everything before is
in both. A new file may be such a copy if its first KiB, and its bytes before the place that the
agent reached in another file, are the same as there: it is read from that place on, once the other
file was truncated. If that does not happen within a minute, it is somebody's plain copy, and it is
read whole. A file shorter than 1 KiB is never taken for a copy: sending a line twice is better than
losing one.

Source: ADR 0032.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sluice_agent.line_readers import HEAD_BYTES, FollowedFile
from sluice_agent.spool_format import FileCheckpoint

COPY_WAIT_S: Final = 60.0
"""So long after each other the two halves of a copytruncate may be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCopy:
    """A copy that waits for its original to be truncated.

    Attributes:
        mark: Where the original stood when the copy was found.
        until_s: When waiting ends and the file is read whole.
    """

    checkpoint: FileCheckpoint
    until_s: float


class CopyDetector:
    """Remembers what was truncated lately and which new files wait."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._truncated: list[tuple[float, FileCheckpoint]] = []
        self._held: dict[str, WaitingCopy] = {}

    def truncated(self, checkpoint: FileCheckpoint, *, now_s: float) -> None:
        """Notes where a file stood when it was truncated or written anew."""
        self._truncated = [(t, m) for t, m in self._truncated if now_s - t < COPY_WAIT_S]
        self._truncated.append((now_s, checkpoint))

    def place(self, file: FollowedFile, others: Iterable[FollowedFile], *, now_s: float) -> bool:
        """Places a new file if it is a copy; tells whether it is one."""
        for since_s, checkpoint in self._truncated:
            if now_s - since_s < COPY_WAIT_S and _is_copy(file, checkpoint):
                file.seek(checkpoint.offset)
                return True
        for other in others:
            checkpoint = other.checkpoint(start=other.offset)
            if _is_copy(file, checkpoint):
                file.seek(checkpoint.offset)
                self._held[file.source] = WaitingCopy(
                    checkpoint=checkpoint, until_s=now_s + COPY_WAIT_S
                )
                return True
        return False

    def is_held(self, file: FollowedFile) -> bool:
        """Tells whether a file waits and may not be read yet."""
        return file.source in self._held

    def release(self, file: FollowedFile, *, now_s: float) -> bool:
        """Lets a waiting file go and places it, once it is known what it is.

        With its original truncated it is read from where that stood. With the wait over it is a
        file of its own, somebody's plain copy, and it is read whole.
        """
        hold = self._held[file.source]
        for _, checkpoint in self._truncated:
            if (
                checkpoint.source == hold.checkpoint.source
                and checkpoint.offset >= hold.checkpoint.offset
            ):
                file.seek(min(checkpoint.offset, file.offset + file.unread_bytes()))
                del self._held[file.source]
                return True
        if now_s < hold.until_s:
            return False
        file.seek(0)
        del self._held[file.source]
        return True


def _is_copy(file: FollowedFile, checkpoint: FileCheckpoint) -> bool:
    return (
        file.source != checkpoint.source
        and checkpoint.offset >= HEAD_BYTES
        and file.knows(checkpoint)
    )
