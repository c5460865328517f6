"""What one registered gateway process has to write into its acceptance journal, without I/O.

An entry passes these states:

    noted ── next_object ──► in the pending object ── settle ──► durable
      ▲                                  │ └─ skip: another number
      └──────────────────────────────────┘    succeed: to the book of the next registration

At most one object is pending. It keeps its number and bytes until it is durable, so a write with an
unknown outcome is repeated without a risk. Source: ADR 22.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from sluice_protocol.clock import MachineInstant
from sluice_protocol.journals import JournalHeader, encode_journal, journal_key
from sluice_protocol.units import ObjectKey, UnixNs

ENTRIES_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of entries that are not durable, above which a process accepts no upload."""
OBJECT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of entries in one journal object; more entries become several objects."""


def must_register_again(began: MachineInstant | None, now: MachineInstant, fence_s: float) -> bool:
    """Return True if a process may not respond 200 before it registers again.

    Args:
        began: When the write of its newest durable object began; None before its registration.
        now: The present instant.
        fence_s: Largest age of that write, seconds.
    """
    return began is None or began.seconds_to(now) > fence_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingObject:
    """A journal object whose bytes are decided and that is not known to be durable.

    Attributes:
        number: Its number.
        key: Its key.
        body: Its bytes, the same in every try.
        entries: The manifests in it.
        began: When its first try began.
        closed: Whether it is the last object of its process.
    """

    number: int
    key: ObjectKey
    body: bytes
    entries: tuple[bytes, ...]
    began: MachineInstant
    closed: bool


class JournalBook:
    """The entries of one registration that are not durable, and the object that is written.

    Attributes:
        process: The name of the process; empty before the first registration.
        durable_from: When the write of the newest durable object began, the registration included.
        begun: When the write of the newest object began, durable or not.
        pending: The object that is not known to be durable.
        closed: Whether the last object is durable.
        held_bytes: Bytes of all entries that are not durable.
        resumed: Whether an earlier process began this journal, and this one has not written yet: a
            number may be taken.
    """

    def __init__(
        self, process: str, began: MachineInstant | None, started_ns: UnixNs | None = None
    ) -> None:
        """Start a journal.

        Args:
            process: The name of the process.
            began: When the write of its registration began.
            started_ns: The time in its registration.
        """
        self.process = process
        self.durable_from = began
        self.begun = began
        self.pending: PendingObject | None = None
        self.closed = False
        self.held_bytes = 0
        self.resumed = False
        self._through_ns = started_ns or UnixNs(0)
        self._number = 0
        self._entries: deque[bytes] = deque()

    @classmethod
    def resume(
        cls, process: str, began: MachineInstant, through_ns: UnixNs, *, number: int
    ) -> "JournalBook":
        """Return the book of a journal of an earlier process, at a number that it may have used."""
        book = cls(process, began, through_ns)
        book.resumed = True
        book._number = number - 1
        return book

    @property
    def waiting(self) -> int:
        """The number of entries that are not durable."""
        return len(self._entries) + (len(self.pending.entries) if self.pending else 0)

    @property
    def has_entries(self) -> bool:
        """Whether an entry is in no object yet."""
        return bool(self._entries)

    def note(self, manifest: bytes) -> None:
        """Add the bytes of an accepted manifest; called before the upload gets its 200."""
        self._entries.append(manifest)
        self.held_bytes += len(manifest)

    def next_object(
        self, answered_ns: UnixNs, now: MachineInstant, *, closes: bool = False
    ) -> PendingObject:
        """Return the object to write: the pending one, or a new one with the noted entries.

        An object that cannot contain all entries repeats the time of the object before it, because
        it does not name every batch that was acknowledged before `answered_ns`.

        Args:
            answered_ns: The store's clock in a response that was received before this call.
            now: The present instant.
            closes: Whether the process acknowledges nothing that is not noted now.
        """
        if self.pending is not None:
            return self.pending
        entries = self._take_entries()
        complete = not self._entries
        if complete:
            self._through_ns = answered_ns
        self._number += 1
        header = JournalHeader(
            process=self.process,
            number=self._number,
            complete_through_unix_ns=self._through_ns,
            closed=closes and complete,
            batches=len(entries),
        )
        self.pending = PendingObject(
            number=self._number,
            key=journal_key(self.process, self._number),
            body=encode_journal(header, entries),
            entries=entries,
            began=now,
            closed=header.closed,
        )
        self.begun = now
        return self.pending

    def _take_entries(self) -> tuple[bytes, ...]:
        taken: list[bytes] = []
        size_bytes = 0
        while self._entries and size_bytes < OBJECT_BYTES_MAX:
            taken.append(self._entries.popleft())
            size_bytes += len(taken[-1])
        return tuple(taken)

    def settle(self, written: PendingObject) -> None:
        """Record that the pending object is durable."""
        if self.pending is not written:
            return
        self.pending = None
        self.resumed = False
        self.durable_from = written.began
        self.closed = written.closed
        self.held_bytes -= sum(map(len, written.entries))

    def skip(self, taken: PendingObject) -> None:
        """Give the entries of the pending object another number.

        In a resumed journal an object that exists may be of the earlier process, so it does not
        prove that the entries are durable. At worst they are named twice.
        """
        if self.pending is taken:
            self.pending = None
            self._entries.extendleft(reversed(taken.entries))

    def succeed(self, process: str, began: MachineInstant, started_ns: UnixNs) -> "JournalBook":
        """Return the book of the next registration, with every entry that is not durable.

        This book keeps them too: its closing object must name what it acknowledged.
        """
        after = JournalBook(process, began, started_ns)
        self.move_to(after)
        return after

    def move_to(self, after: "JournalBook") -> None:
        """Note every entry that is not durable in another book too."""
        for manifest in (*(self.pending.entries if self.pending else ()), *self._entries):
            after.note(manifest)
