"""Identities that this worker itself answered 200, so that a duplicate costs no store call.

It holds nothing that was merely read, and never an absence. A manifest is immutable, so a hit is
right for ever; a hit with another digest goes to the store (`docs/protocol.md`, Accepting).
"""

from collections import OrderedDict
from dataclasses import dataclass

from sluice_protocol.identity import Identity
from sluice_protocol.units import Digest, UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What owns an identity."""

    digest: Digest
    accepted_at_ns: UnixNs


class IdentityCache:
    """A bounded map, the longest unused entry leaves first."""

    def __init__(self, entries_max: int) -> None:
        """Takes how many identities it may hold; 0 remembers nothing."""
        self._entries_max = entries_max
        self._entries: OrderedDict[Identity, Remembered] = OrderedDict()

    def __len__(self) -> int:
        """Gives how many identities are remembered."""
        return len(self._entries)

    def find(self, identity: Identity, digest: Digest) -> Remembered | None:
        """Gives the entry when exactly these bytes own the identity; None proves nothing."""
        entry = self._entries.get(identity)
        if entry is None or entry.digest != digest:
            return None
        self._entries.move_to_end(identity)
        return entry

    def remember(self, identity: Identity, entry: Remembered) -> None:
        """Keeps an upload that was answered 200."""
        if self._entries_max == 0:
            return
        self._entries[identity] = entry
        self._entries.move_to_end(identity)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
