"""Frames that this worker itself has accepted, so that a duplicate needs no store call.

The key is the digest: the same bytes were validated before and have the same identity, so a
duplicate is not decoded again either. The cache never contains what was only read, and never the
absence of a frame. Other bytes under the same identity have another digest, miss the cache and go
to the store (`docs/protocol.md`, Acceptance). A frame in the cache was noted in the acceptance
journal, so its duplicates need no entry.

An entry ends with the proof of its blob, by the store's clock: after half the proof's window. The
store's time is its last response plus the time since then, by the monotonic clock or by the wall
clock, whichever ran further, because the monotonic clock can stop while a machine is suspended.
"""

from collections import OrderedDict

import msgspec

from sluice_protocol.clock import Clock
from sluice_protocol.identity import Identity
from sluice_protocol.units import Digest, UnixNs


class AcceptedFrame(msgspec.Struct, frozen=True, kw_only=True):
    """The identity that a frame owns, and how long this worker may respond for it.

    Attributes:
        identity: The identity.
        accepted_at_ns: The acceptance time in its manifest.
        lasts_ns: How long the entry is valid after it was added.
    """

    identity: Identity
    accepted_at_ns: UnixNs
    lasts_ns: int


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    frame: AcceptedFrame
    wall_ns: int
    monotonic_ns: int


class AcceptedCache:
    """A bounded map that drops the entry that was unused for the longest time."""

    def __init__(self, entries_max: int, clock: Clock) -> None:
        """Create an empty cache; with `entries_max` 0 it stays empty."""
        self._entries_max = entries_max
        self._clock = clock
        self._entries: OrderedDict[Digest, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, digest: Digest) -> AcceptedFrame | None:
        """Return what exactly these bytes own, while it is proved; None proves nothing."""
        entry = self._entries.get(digest)
        if entry is None:
            return None
        wall_ns = self._clock.now_ns() - entry.wall_ns
        if max(wall_ns, self._clock.monotonic_ns() - entry.monotonic_ns) >= entry.frame.lasts_ns:
            del self._entries[digest]
            return None
        self._entries.move_to_end(digest)
        return entry.frame

    def remember(self, digest: Digest, frame: AcceptedFrame) -> None:
        """Add an upload whose response was 200, unless its proof is too old already."""
        if self._entries_max == 0 or frame.lasts_ns <= 0:
            return
        self._entries[digest] = _Entry(
            frame=frame,
            wall_ns=self._clock.now_ns(),
            monotonic_ns=self._clock.monotonic_ns(),
        )
        self._entries.move_to_end(digest)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def forget_all(self) -> None:
        """Remove every entry, as a restart does."""
        self._entries.clear()
