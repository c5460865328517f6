"""Which batches of a backlog are sent in one request.

A worker that has a small batch and finds others waiting sends them together. A list is sent once:
batches of it that are not settled are sent one by one, so every reaction to a response is that of
a single upload. Source: ADR 4.
"""

from dataclasses import dataclass
from typing import Final

from sluice_protocol.frame_lists import FRAMES_MAX, LIST_OVERHEAD_BYTES_MAX, listed_bytes

LIST_BYTES_MAX: Final = 256 * 1024 - LIST_OVERHEAD_BYTES_MAX
"""A longer list saves no more."""
SMALL_BYTES_MAX: Final = 64 * 1024
"""Size of a frame up to which sharing a request saves more than it delays."""
BACKLOG_MIN: Final = 4
"""Waiting batches from which on they share requests; fewer are faster in separate ones."""


@dataclass(slots=True)
class ListPlan:
    """The frames that one request can still take.

    Attributes:
        frames: Number of frames in it.
        size_bytes: Bytes of these frames in a list.
    """

    frames: int = 0
    size_bytes: int = 0

    def add(self, frame_bytes: int) -> bool:
        """Add a frame; return whether it fits."""
        size_bytes = self.size_bytes + listed_bytes(frame_bytes)
        if (
            frame_bytes > SMALL_BYTES_MAX
            or self.frames >= FRAMES_MAX
            or size_bytes > LIST_BYTES_MAX
        ):
            return False
        self.frames, self.size_bytes = self.frames + 1, size_bytes
        return True
