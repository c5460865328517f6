"""Detect the copies that logrotate's copytruncate makes, so that no line is sent twice.

copytruncate copies `app.log` to `app.log.1` and then truncates `app.log`. Lines written between
the agent's last read and the truncation exist in the copy only; all earlier lines exist in both.

A new file is such a copy if all its bytes up to the position that the agent reached in another file
are those of that file (`file_identity`). The agent reads it from that position once the other file
is truncated. If that does not happen within a minute, the file is an ordinary copy and is read from
its start. A file shorter than 1 KiB is never treated as a copy: sending a line twice is better than
losing one.

Source: ADR 17.
"""

from dataclasses import dataclass
from typing import Final

from sluice_agent.file_identity import PrefixDigest
from sluice_agent.line_readers import FollowedFile
from sluice_agent.spool_format import FileCheckpoint

COPY_BYTES_MIN: Final = 1024
"""Shorter files may begin alike, for example with the same header."""
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

    def truncated(self, *, now_s: float) -> list[FileCheckpoint]:
        """Return the positions of the files that were truncated within the last minute."""
        return [one for since_s, one in self._truncated if now_s - since_s < COPY_WAIT_S]

    def wait(self, file: FollowedFile, checkpoint: FileCheckpoint, *, now_s: float) -> None:
        """Do not read a copy until its original is truncated, or the time is up."""
        self._waiting[file.source] = WaitingCopy(checkpoint=checkpoint, until_s=now_s + COPY_WAIT_S)

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
                file.advance(checkpoint.offset)
                del self._waiting[file.source]
                return True
        if now_s < waiting.until_s:
            return False
        file.seek(PrefixDigest())
        del self._waiting[file.source]
        return True


def may_be_copy(file: FollowedFile, checkpoint: FileCheckpoint) -> bool:
    """Return True if a position in another file is far enough to recognize a copy by it."""
    return file.source != checkpoint.source and checkpoint.offset >= COPY_BYTES_MIN
