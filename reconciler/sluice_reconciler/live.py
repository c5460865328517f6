"""What came in lately, agent by agent, bounded in bytes: the live state.

It is a hint for a live tail, never a source: it knows only what this process took, and says so
(`partial`) until it has watched for a whole window.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S

MANIFEST_BYTES: Final = 1024
"""What one remembered manifest counts for; a generous guess of its size in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """The live state at one moment.

    Attributes:
        partial: The process has not watched for a whole window, or had to forget within it.
        window_s: The window, seconds.
        batches: Batches accepted within the window, oldest first.
    """

    partial: bool
    window_s: float
    batches: tuple[AcceptedManifest, ...]


class LiveState:
    """Remembers the batches of the last window, at most `bytes_max` of them."""

    def __init__(self, *, window_s: float = 300.0, bytes_max: int = 64 * 1024 * 1024) -> None:
        """Starts empty, and partial."""
        self.window_s = window_s
        self._window_ns = int(window_s * NS_PER_S)
        self._count_max = bytes_max // MANIFEST_BYTES
        self._held: deque[AcceptedManifest] = deque()
        self._since_ns: int | None = None
        self._forgot_ns = 0

    def saw(self, batches: list[AcceptedManifest], now_ns: int) -> None:
        """Takes batches in and forgets what is too old or too much."""
        if self._since_ns is None:
            self._since_ns = now_ns
        self._held.extend(one for one in batches if one.accepted_at_ns > now_ns - self._window_ns)
        while self._held and self._held[0].accepted_at_ns <= now_ns - self._window_ns:
            self._held.popleft()
        while len(self._held) > self._count_max:
            self._forgot_ns = max(self._forgot_ns, self._held.popleft().accepted_at_ns)

    def view(self, now_ns: int, agent_id: str | None = None) -> LiveView:
        """Gives what is remembered, of one agent or of all."""
        edge_ns = now_ns - self._window_ns
        young = self._since_ns is None or self._since_ns > edge_ns
        batches = sorted(
            (
                one
                for one in self._held
                if one.accepted_at_ns > edge_ns and agent_id in (None, one.agent_id)
            ),
            key=lambda one: one.accepted_at_ns,
        )
        return LiveView(
            partial=young or self._forgot_ns > edge_ns,
            window_s=self.window_s,
            batches=tuple(batches),
        )
