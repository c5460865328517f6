"""What a spool stores about its journal in the authority: one record in the spool.

    registering ── registered in the authority ──► open ── everything landed ──► closing
        ▲                                                                           │
        └────────── next start ────────── closed ◄── closed object in the authority ┘

Each state is written before the step that it announces, so a killed process is continued:
`registering` repeats the registration under the same name, `open` continues the journal at the
stored number, `closing` repeats the closed object. The spool accepts only in `open`.
"""

from typing import Final, Literal

import msgspec

from sluice_gateway.journal_ports import ProcessStart
from sluice_gateway.landed_time import LandedTime
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.journals import process_name, started_ns_of
from sluice_protocol.manifests import TRANSFER_MARKERS, decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_store.deletion import replace_version
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff

STATE: Final = ObjectKey(f"{TRANSFER_MARKERS}journal.json")

SpoolJournalStatus = Literal["registering", "open", "closing", "closed"]


class SpoolJournalState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the journal of a spool.

    Attributes:
        process: The name under which the spool is registered.
        status: The last step that may have begun.
        started_at_unix_ns: The time in the registration.
        number: The number of the last object that may exist.
        complete_through_unix_ns: Every batch that the spool acknowledged before this time of the
            authority has landed.
    """

    schema: Literal["sluice.spool_journal.v1"] = "sluice.spool_journal.v1"
    process: str
    status: SpoolJournalStatus
    started_at_unix_ns: int
    number: int = 0
    complete_through_unix_ns: int


class SpoolRules:
    """The names and times in the journal of a spool, and its stored state.

    Attributes:
        landed: The batches that have not landed.
        state: The stored state; None in a spool that was never registered.
    """

    def __init__(
        self, local: ObjectStore, *, ids: IdSource, clock: Clock, created_ns: UnixNs
    ) -> None:
        """Bind a spool.

        Args:
            local: The spool.
            ids: The source of names.
            clock: The clocks of this machine.
            created_ns: The creation of the authority: nothing was acknowledged before.
        """
        self._local = local
        self._ids = ids
        self._backoff = Backoff.seeded_by(clock)
        self._created_ns = created_ns
        self._loaded = False
        self.landed = LandedTime()
        self.state: SpoolJournalState | None = None

    async def load(self) -> None:
        """Read the state, once.

        Raises:
            InvalidRecord: It is damaged.
            StoreError: The spool cannot be read.
        """
        if self._loaded:
            return
        found = await self._local.get(STATE)
        if isinstance(found, Found):
            self.state = decode_record(STATE, found.body, SpoolJournalState)
            self.landed.through_ns = UnixNs(self.state.complete_through_unix_ns)
        self._loaded = True

    async def start(self, now_ns: UnixNs) -> ProcessStart:
        """Return the name and time of a registration, the same again after a kill.

        Raises:
            SluiceError: The state cannot be stored.
        """
        state = self.state
        if state is None or state.status != "registering":
            # After a closed journal everything had landed, and nothing was accepted since.
            started_ns = self._created_ns if state is None else now_ns
            last_ns = 0 if state is None else started_ns_of(state.process)
            name = process_name(UnixNs(max(now_ns, last_ns + 1)), self._ids.ulid())
            state = SpoolJournalState(
                process=name,
                status="registering",
                started_at_unix_ns=started_ns,
                complete_through_unix_ns=started_ns,
            )
            await self._save(state)
        self.landed.through_ns = UnixNs(state.started_at_unix_ns)
        return ProcessStart(process=state.process, started_ns=UnixNs(state.started_at_unix_ns))

    def through_ns(self, answered_ns: UnixNs) -> UnixNs:
        """Return the time of a journal object."""
        return self.landed.advance(answered_ns)

    async def begin_object(self, number: int) -> None:
        """Store the number of an object before it is written.

        Raises:
            SluiceError: The state cannot be stored; the object must not be written.
        """
        state = self.state
        if state is not None and state.number < number:
            through_ns = self.landed.through_ns
            await self._save(
                msgspec.structs.replace(state, number=number, complete_through_unix_ns=through_ns)
            )

    async def advance_to(self, status: SpoolJournalStatus) -> None:
        """Store the next status.

        Raises:
            SluiceError: The state cannot be stored.
        """
        if self.state is not None:
            await self._save(msgspec.structs.replace(self.state, status=status))

    async def _save(self, state: SpoolJournalState) -> None:
        await replace_version(self._local, STATE, encode_record(state), self._backoff)
        self.state = state
