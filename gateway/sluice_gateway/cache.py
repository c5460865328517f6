"""Frames that this worker itself answered 200, so that a duplicate costs no store call.

It is asked by digest: the same bytes were validated in full before and carry the same identity, so
a duplicate is not decoded again either. It holds nothing that was merely read, and never an
absence. A manifest is immutable, so a hit is right for ever; other bytes under a remembered
identity have another digest, miss, and go to the store (`docs/protocol.md`, Acceptance).
"""

from collections import OrderedDict
from dataclasses import dataclass

from sluice_protocol.identity import Identity
from sluice_protocol.units import Digest, UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What a frame owns."""

    identity: Identity
    accepted_at_ns: UnixNs


class AcceptedCache:
    """A bounded map, the longest unused entry leaves first."""

    def __init__(self, entries_max: int) -> None:
        """Takes how many frames it may remember; 0 remembers nothing."""
        self._entries_max = entries_max
        self._entries: OrderedDict[Digest, Remembered] = OrderedDict()

    def __len__(self) -> int:
        """Gives how many frames are remembered."""
        return len(self._entries)

    def find(self, digest: Digest) -> Remembered | None:
        """Gives what exactly these bytes own; None proves nothing."""
        entry = self._entries.get(digest)
        if entry is not None:
            self._entries.move_to_end(digest)
        return entry

    def remember(self, digest: Digest, entry: Remembered) -> None:
        """Keeps an upload that was answered 200."""
        if self._entries_max == 0:
            return
        self._entries[digest] = entry
        self._entries.move_to_end(digest)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def forget_all(self) -> None:
        """Forgets everything, as a restart does."""
        self._entries.clear()
