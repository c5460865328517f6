"""Which batches of a backlog are sent in one request, and to which gateways.

A worker that has a small batch and finds others waiting sends them together. A list is sent once:
batches of it that are not settled are sent one by one, so every reaction to a response is that of
a single upload. A gateway of an earlier version does not know the request; it gets single uploads
for a while. Source: ADR 0039.
"""

from dataclasses import dataclass, field
from typing import Final

from sluice_agent.gateway_choice import GatewayTarget
from sluice_agent.upload_decisions import GatewayResponse, NoGatewayResponse
from sluice_protocol.frame_lists import FRAMES_MAX, LIST_OVERHEAD_BYTES_MAX, listed_bytes

LIST_BYTES_MAX: Final = 256 * 1024 - LIST_OVERHEAD_BYTES_MAX
"""A gateway of an earlier version reads this much of a body before it closes the connection, so its
404 is received. A longer list saves no more.
"""
SMALL_BYTES_MAX: Final = 64 * 1024
"""Size of a frame up to which sharing a request saves more than it delays."""
BACKLOG_MIN: Final = 4
"""Waiting batches from which on they share requests; fewer are faster in separate ones."""
UNKNOWN_S: Final = 600.0
"""Time for which a gateway that does not know lists gets single uploads."""
_UNKNOWN_STATUSES: Final = frozenset({404, 405})


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


@dataclass(slots=True)
class ListKnowledge:
    """Which gateways do not know lists, until when, on the monotonic clock."""

    _until_s: dict[str, float] = field(default_factory=dict)

    def is_known_by(self, target: GatewayTarget, now_s: float) -> bool:
        """Return True unless the gateway refused a list a while ago."""
        return now_s >= self._until_s.get(target.url, 0.0)

    def note(
        self, target: GatewayTarget, response: GatewayResponse | NoGatewayResponse, now_s: float
    ) -> bool:
        """Note the response to a whole list; return whether it shows that lists are not known."""
        unknown = isinstance(response, GatewayResponse) and response.status in _UNKNOWN_STATUSES
        if unknown:
            self._until_s[target.url] = now_s + UNKNOWN_S
        return unknown
