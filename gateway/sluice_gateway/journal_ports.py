"""What a worker needs of its acceptance journal, and what a journal needs of its mode."""

from dataclasses import dataclass
from typing import Protocol

from sluice_protocol.authority import AcceptanceMode
from sluice_protocol.clock import IdSource
from sluice_protocol.journals import FENCE_S, JOURNAL_INTERVAL_S, process_name
from sluice_protocol.units import UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOwner:
    """Whose journal it is.

    Attributes:
        collector_id: The name of the gateway.
        acceptance: Where it accepts.
        fence_s: Largest age of the newest durable object when a 200 is decided, seconds.
        interval_s: Pause between two objects while there is something to report, seconds.
    """

    collector_id: str
    acceptance: AcceptanceMode
    fence_s: float = FENCE_S
    interval_s: float = JOURNAL_INTERVAL_S


class UploadJournal(Protocol):
    """What a worker needs of its journal, in either acceptance mode."""

    async def open(self) -> None:
        """Register; called before the worker accepts connections.

        Raises:
            SluiceError: The worker must not serve.
        """
        ...

    def require_room(self) -> None:
        """Refuse an upload whose batch could not be journaled; called before it is stored.

        Raises:
            HttpRefusal: Nothing was stored.
        """
        ...

    def note(self, manifest: bytes) -> None:
        """Add the manifest of an accepted upload; called before its 200."""
        ...

    async def require_current(self) -> None:
        """Check that a noted batch may get its 200.

        Raises:
            HttpRefusal: It may be accepted; the same bytes may be sent to any gateway.
        """
        ...

    def problem(self) -> str:
        """Return why uploads are refused because of the journal; empty if they are not."""
        ...

    async def run(self) -> None:
        """Write until cancelled."""
        ...

    async def close(self, *, landed: bool) -> None:
        """Write the last object of a stopping worker.

        Args:
            landed: Whether the authority has every batch that this worker acknowledged.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStart:
    """The name of a registration, and the time in it."""

    process: str
    started_ns: UnixNs


class JournalRules(Protocol):
    """What differs between the journal of a worker and that of a spool."""

    async def start(self, now_ns: UnixNs) -> ProcessStart:
        """Return the name and time of a registration that is written after `now_ns`."""
        ...

    def through_ns(self, answered_ns: UnixNs) -> UnixNs:
        """Return the time of an object whose entries are collected after `answered_ns`."""
        ...

    async def begin_object(self, number: int) -> None:
        """Prepare the first try of an object."""
        ...


class StoreRules:
    """The rules of a worker that accepts in the store: its times are those of the responses."""

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids

    async def start(self, now_ns: UnixNs) -> ProcessStart:
        """Return a new name and the time of the response before the registration."""
        return ProcessStart(process=process_name(now_ns, self._ids.ulid()), started_ns=now_ns)

    def through_ns(self, answered_ns: UnixNs) -> UnixNs:
        """Return the time of the response before the entries are collected."""
        return answered_ns

    async def begin_object(self, number: int) -> None:
        """Do nothing: a worker does not survive its process."""
