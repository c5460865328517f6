"""The time before which every batch that a spool acknowledged has landed, without I/O.

A batch has landed when the authority has it and the acceptance journal names it. The clock of the
spool's machine plays no part: `answer` binds a time of the authority to the batches that were
acknowledged before it was received, and the time is published once all of them have landed.
"""

from dataclasses import dataclass

from sluice_protocol.units import ObjectKey, UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A time of the authority, and the number of batches that were added before it."""

    at_ns: UnixNs
    added: int


class LandedTime:
    """The batches of one spool that have not landed, in the order in which they were added.

    Attributes:
        through_ns: Every batch that was acknowledged before this time has landed.
        scanned: Whether the batches of earlier processes were added; the time is fixed until then.
    """

    def __init__(self) -> None:
        self.through_ns = UnixNs(0)
        self.scanned = False
        self._added = 0
        self._waiting: dict[ObjectKey, int] = {}
        self._answer: _Answer | None = None

    def add(self, key: ObjectKey) -> None:
        """Add a batch; called before it is acknowledged."""
        if key not in self._waiting:
            self._waiting[key] = self._added
            self._added += 1

    def land(self, key: ObjectKey) -> None:
        """Remove a batch that has landed."""
        self._waiting.pop(key, None)

    def advance(self, answered_ns: UnixNs) -> UnixNs:
        """Return the time through which every acknowledged batch has landed.

        Args:
            answered_ns: The authority's clock in a response that was received before this call.
        """
        if not self.scanned:
            return self.through_ns
        newest = _Answer(at_ns=answered_ns, added=self._added)
        bound = self._answer or newest
        if self._has_landed(bound):
            self.through_ns, bound = bound.at_ns, newest
            if self._has_landed(newest):
                self.through_ns = newest.at_ns
        self._answer = bound
        return self.through_ns

    def _has_landed(self, bound: _Answer) -> bool:
        return next(iter(self._waiting.values()), self._added) >= bound.added
