"""The durable spool: sealed batches on disk, from before the first send until a gateway has them.

    prepare ──> commit ──> ready/ ──200──> gone (a durable state covers it first)
                             │ ──409, 413, …──> parked/ ──retry──> again/ ──> ready/
                             └ bytes not as written ──> corrupt/ (told, never silently dropped)

Promises, each with a test:
- No batch is sent before its file and its name are durable (`sync`, the default).
- An identity never has two contents: a life of the agent has a boot id of its own, sequence
  numbers are given out once in it, and a batch whose commit failed keeps its bytes and is
  committed again as it is. When nobody knows whether a commit is durable, the life ends.
- Positions and frame become durable by one rename, so lines are neither lost nor cut twice.
- It never grows beyond `bytes_max`: `fits` says so before, and who seals waits.

Source: ADR 0030, ADR 0031.
"""

import threading
from collections.abc import Iterable
from typing import Final

import msgspec

from sluice_agent.batch import Batch, ParkedReason, Sealed, SpoolSettings
from sluice_agent.disk import Disk
from sluice_agent.entry import FORMAT_VERSION, FileMark, Note, encode_entry, is_entry
from sluice_agent.errors import CorruptEntry, SpoolBroken
from sluice_agent.folders import SpoolFolders, told_as_unwritable
from sluice_agent.state import fold_note, prune_state
from sluice_protocol.columns import Columns, kind_of
from sluice_protocol.errors import BadUsage
from sluice_protocol.frame import encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import digest_of
from sluice_protocol.units import UnixNs

SWEEP_AT: Final = 32
"""So many accepted batches are covered by one durable state and then removed together."""


class Spool:
    """One spool directory, held by this process.

    Its methods do blocking I/O and may be called from any thread; `prepare` and `commit` only by
    one at a time.
    """

    def __init__(self, settings: SpoolSettings, disk: Disk, *, boot_id: str) -> None:
        """Opens the spool: locks it, recovers every batch, starts a new boot.

        Raises:
            SpoolLocked: Another process holds it.
            SpoolUnwritable: It cannot be made, read or written.
            BadUsage: Its state is corrupt, or it belongs to another agent id.
        """
        self.settings = settings
        self.boot_id = boot_id
        self._mutex = threading.Lock()
        self._sweeping = threading.Lock()
        self._committing = threading.Lock()
        self._closed = False
        self._ready: dict[int, Batch] = {}
        self._bytes: dict[str, int] = {}
        self._done: list[Note] = []
        self._gone: set[str] = set()
        self._next_seq = 0
        self._folders = SpoolFolders(settings.directory, disk, sync=settings.sync)
        with told_as_unwritable(settings.directory):
            self._folders.open()
            try:
                self._state = self._durable = self._folders.read_state()
                self._recover()
            except BaseException:
                self._folders.close()
                raise
        self._next_order = max([self._state.through, *self._ready]) + 1

    def close(self) -> None:
        """Lets go of the spool, after a commit or sweep that another thread is in."""
        with self._committing, self._sweeping:
            if not self._closed:
                self._closed = True
                self._folders.close()

    @property
    def set_aside(self) -> tuple[tuple[str, str], ...]:
        """Gives name and reason of each file that was put into `corrupt/`."""
        return tuple(self._folders.set_aside)

    # -- what stands in it ---------------------------------------------------------------

    def ready(self) -> list[Batch]:
        """Gives every batch that waits to be accepted, in the order of sealing."""
        with self._mutex:
            return [self._ready[order] for order in sorted(self._ready)]

    def marks(self) -> dict[str, FileMark]:
        """Gives how far each file is sealed."""
        with self._mutex:
            return dict(self._state.marks)

    def high_water(self, boot_id: str) -> int | None:
        """Gives the highest sequence number that a boot sealed; none when it sealed nothing."""
        with self._mutex:
            return self._state.high_water.get(boot_id)

    def size_bytes(self) -> int:
        """Gives how many bytes of batches stand in it, parked ones included."""
        with self._mutex:
            return sum(self._bytes.values())

    def fits(self, sealed: Sealed) -> bool:
        """Tells whether a batch can be committed without going over `bytes_max`."""
        return self.size_bytes() + sealed.note.size_bytes <= self.settings.bytes_max

    # -- sealing -------------------------------------------------------------------------

    def prepare(self, columns: Columns, marks: Iterable[FileMark], *, now_ns: UnixNs) -> Sealed:
        """Gives records their identity and their bytes, once and for ever.

        Raises:
            TooLarge: They are more than a frame may hold; nothing was given out.
        """
        identity = Identity(
            agent_id=self.settings.agent_id,
            boot_id=self.boot_id,
            seq_start=self._next_seq,
            seq_end=self._next_seq + len(columns) - 1,
        )
        frame = encode_frame(identity=identity, columns=columns, resource=self.settings.resource)
        note = Note(
            version=FORMAT_VERSION,
            order=self._next_order,
            agent_id=identity.agent_id,
            boot_id=identity.boot_id,
            seq_start=identity.seq_start,
            seq_end=identity.seq_end,
            kind=kind_of(columns),
            frame_bytes=len(frame),
            frame_sha256=digest_of(frame),
            sealed_at_unix_ns=now_ns,
            marks=tuple(marks),
        )
        self._next_seq += len(columns)
        self._next_order += 1
        return Sealed(note=note, frame=frame)

    def commit(self, sealed: Sealed) -> Batch:
        """Makes a batch durable; only then may it be sent.

        Raises:
            SpoolUnwritable: It is not in the spool; commit the same value again later.
            SpoolBroken: Nobody knows; this life of the agent must end.
        """
        with self._committing:
            return self._commit(sealed)

    def _commit(self, sealed: Sealed) -> Batch:
        note = sealed.note
        if self._closed:
            raise SpoolBroken(str(self.settings.directory), "the spool is closed")
        self._folders.publish(note.name, encode_entry(note, sealed.frame))
        batch = Batch(note=note)
        with self._mutex:
            self._state = fold_note(self._state, note)
            self._keep(batch)
        return batch

    def _keep(self, batch: Batch) -> None:
        self._ready[batch.note.order] = batch
        self._bytes[batch.note.name] = batch.note.size_bytes

    # -- sending -------------------------------------------------------------------------

    def read(self, batch: Batch) -> bytes:
        """Gives the frame of a batch, exactly as it was sealed.

        Raises:
            CorruptEntry: The file is not what was written; it now stands in `corrupt/`.
            SpoolUnwritable: It cannot be read.
        """
        with told_as_unwritable(self._folders.path("ready", batch.note.name)):
            try:
                return self._folders.read(batch.note.name)
            except CorruptEntry:
                self._drop(batch)
                raise

    def forget(self, batch: Batch) -> None:
        """Takes a batch that a gateway accepted out of the spool.

        Its file goes at the next sweep; a crash before that only sends the same bytes again.

        Raises:
            SpoolUnwritable: A sweep was due and could not write; the batches stay on disk.
        """
        with self._mutex:
            self._ready.pop(batch.note.order, None)
            self._done.append(batch.note)
            due = len(self._done) >= SWEEP_AT
        if due:
            self.sweep()

    def park(self, batch: Batch, reason: ParkedReason) -> None:
        """Sets a batch aside with the reason; its bytes stay.

        Raises:
            SpoolUnwritable: It still stands in `ready/`.
        """
        with told_as_unwritable(self._folders.path("parked")):
            with self._sweeping:
                # A person may drop it at any time, so the positions it carries are safe first.
                self._save_state()
            self._folders.park(batch.note.name, msgspec.json.encode(reason))
        with self._mutex:
            self._ready.pop(batch.note.order, None)

    def sweep(self, *, sources_gone: Iterable[str] = ()) -> None:
        """Writes a durable state and then removes what it covers; does nothing when idle.

        Args:
            sources_gone: Files read to their end that are no longer there.

        Raises:
            SpoolUnwritable: The state could not be written; nothing was removed.
        """
        with self._sweeping, told_as_unwritable(self.settings.directory):
            with self._mutex:
                self._gone.update(sources_gone)
                done = list(self._done)
            if done or self._gone:
                self._save_state()
            self._remove(done)
            self._recount_parked()

    def place(self, marks: Iterable[FileMark]) -> None:
        """Makes marks durable that no batch carries: of files to be read from their end on.

        Raises:
            SpoolUnwritable: They could not be written.
        """
        placed = {mark.source: mark for mark in marks}
        with self._sweeping, told_as_unwritable(self.settings.directory):
            with self._mutex:
                marked = {**self._state.marks, **placed}
                self._state = msgspec.structs.replace(self._state, marks=marked)
            self._save_state()

    def adopt_again(self) -> list[Batch]:
        """Takes back what a person asked to be sent again (`sluice agent parked retry`)."""
        adopted = []
        with told_as_unwritable(self._folders.path("again")):
            for name, size_bytes in self._folders.list("again"):
                note = self._folders.read_note("again", name, size_bytes)
                if note is not None:
                    self._folders.adopt(name)
                    adopted.append(Batch(note=note, recovered=True))
                    with self._mutex:
                        self._keep(adopted[-1])
        return adopted

    # -- helpers -------------------------------------------------------------------------

    def _recover(self) -> None:
        """Finds every batch of former lives; half-written files never had a name and go."""
        for name, size_bytes in self._folders.list("ready"):
            if not is_entry(name):
                self._folders.remove(name)
                continue
            note = self._folders.read_note("ready", name, size_bytes)
            if note is not None:
                self._check_owner(note)
                self._state = fold_note(self._state, note)
                self._keep(Batch(note=note, recovered=True))
        self.adopt_again()
        self._recount_parked()
        self._folders.sync("ready")  # a former life may have died before its own

    def _check_owner(self, note: Note) -> None:
        if note.agent_id != self.settings.agent_id:
            raise BadUsage(
                "spool belongs to another agent: name its id or another --spool,"
                f" agent_id=`{note.agent_id}`, path=`{self.settings.directory}`"
            )

    def _drop(self, batch: Batch) -> None:
        with self._mutex:
            self._ready.pop(batch.note.order, None)
            self._bytes.pop(batch.note.name, None)

    def _save_state(self) -> None:
        with self._mutex:
            boots = {self.boot_id, *(batch.note.boot_id for batch in self._ready.values())}
            gone, self._gone = self._gone, set()
            self._state = prune_state(self._state, boots=boots, sources_gone=gone)
            state = self._state
        if state == self._durable:
            return
        self._folders.write_state(state)
        self._durable = state

    def _remove(self, done: Iterable[Note]) -> None:
        for note in done:
            self._folders.remove(note.name)
            with self._mutex:
                self._done.remove(note)
                self._bytes.pop(note.name, None)

    def _recount_parked(self) -> None:
        """Counts parked batches anew: a person may have dropped some or sent them again."""
        parked = {n: size for n, size in self._folders.list("parked") if is_entry(n)}
        with self._mutex:
            standing = {batch.note.name for batch in self._ready.values()}
            standing.update(note.name for note in self._done)
            kept = {name: size for name, size in self._bytes.items() if name in standing}
            self._bytes = {**parked, **kept}
