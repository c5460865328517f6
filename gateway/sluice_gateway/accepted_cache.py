"""Frames that this worker itself has accepted, so that a duplicate needs no store call.

The key is the digest: the same bytes were validated before and have the same identity, so a
duplicate is not decoded again either. The cache never contains what was only read, and never the
absence of a frame. A manifest is immutable, so a hit stays right. Other bytes under the same
identity have another digest, miss the cache and go to the store (`docs/protocol.md`, Acceptance).
"""

from collections import OrderedDict
from dataclasses import dataclass

from sluice_protocol.identity import Identity
from sluice_protocol.units import Digest, UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedFrame:
    """The identity that a frame owns, and when it was accepted."""

    identity: Identity
    accepted_at_ns: UnixNs


class AcceptedCache:
    """A bounded map that drops the entry that was unused for the longest time."""

    def __init__(self, entries_max: int) -> None:
        """Create an empty cache; with `entries_max` 0 it stays empty."""
        self._entries_max = entries_max
        self._entries: OrderedDict[Digest, AcceptedFrame] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, digest: Digest) -> AcceptedFrame | None:
        """Return what exactly these bytes own; None proves nothing."""
        entry = self._entries.get(digest)
        if entry is not None:
            self._entries.move_to_end(digest)
        return entry

    def remember(self, digest: Digest, entry: AcceptedFrame) -> None:
        """Add an upload whose response was 200."""
        if self._entries_max == 0:
            return
        self._entries[digest] = entry
        self._entries.move_to_end(digest)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def forget_all(self) -> None:
        """Remove every entry, as a restart does."""
        self._entries.clear()
