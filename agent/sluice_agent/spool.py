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
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from sluice_agent.disk import Disk
from sluice_agent.entry import (
    FORMAT_VERSION,
    HEAD,
    FileMark,
    Note,
    decode_entry,
    decode_note,
    encode_entry,
    is_entry,
    note_end,
)
from sluice_agent.errors import CorruptEntry, SpoolBroken, SpoolLocked, SpoolUnwritable
from sluice_agent.state import State, decode_state, encode_state, fold_note, prune_state
from sluice_protocol.columns import Columns, kind_of
from sluice_protocol.errors import BadUsage, SluiceError
from sluice_protocol.frame import encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import digest_of
from sluice_protocol.units import UnixNs

STATE: Final = "state.json"
FOLDERS: Final = ("ready", "parked", "again", "corrupt")
SWEEP_AT: Final = 32
"""So many accepted batches are covered by one durable state and then removed together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolSettings:
    """Where and how a spool keeps its batches.

    Attributes:
        directory: Its directory; one process at a time holds it.
        agent_id: The agent's id, part of every identity.
        resource: Attributes of every frame.
        bytes_max: Most bytes of batches, parked ones included.
        sync: Whether a commit is durable against a power cut, and not only against a kill.
    """

    directory: Path
    agent_id: str
    resource: tuple[tuple[str, str], ...] = ()
    bytes_max: int = 1024 * 1024 * 1024
    sync: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A batch that has its identity and its bytes for ever, not yet on disk."""

    note: Note
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch that stands in the spool.

    Attributes:
        note: What its file says of it.
        recovered: A former life sealed it, so it may have been sent already.
    """

    note: Note
    recovered: bool = False


class ParkedReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch was parked; it stands beside the batch as JSON."""

    reason: str
    gateway: str
    status: int
    parked_at_unix_ns: int
    answer: str = ""


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
        self.set_aside: list[tuple[str, str]] = []
        self._disk = disk
        self._mutex = threading.Lock()
        self._sweeping = threading.Lock()
        self._committing = threading.Lock()
        self._closed = False
        self._ready: dict[int, Batch] = {}
        self._bytes: dict[str, int] = {}
        self._done: list[Note] = []
        self._gone: set[str] = set()
        self._next_seq = 0
        try:
            for folder in FOLDERS:
                disk.make_dir(self.path(folder))
            self._lock = self._take_lock()
        except OSError as error:
            raise SpoolUnwritable(str(settings.directory), _why(error)) from error
        try:
            self._state = self._durable = self._read_state()
            self._recover()
        except OSError as error:
            disk.unlock(self._lock)
            raise SpoolUnwritable(str(settings.directory), _why(error)) from error
        except SluiceError:
            disk.unlock(self._lock)
            raise
        self._next_order = max([self._state.through, *self._ready]) + 1

    def path(self, folder: str, name: str = "") -> Path:
        """Gives the path of a folder or of a file in it."""
        return self.settings.directory / folder / name

    def close(self) -> None:
        """Lets go of the spool, after a commit or sweep that another thread is in."""
        with self._committing, self._sweeping:
            if not self._closed:
                self._closed = True
                self._disk.unlock(self._lock)

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
        temporary = self.path("ready", note.name + ".tmp")
        if self._closed:
            raise SpoolBroken(str(temporary), "the spool is closed")
        try:
            self._disk.write_new(
                temporary, encode_entry(note, sealed.frame), sync=self.settings.sync
            )
        except OSError as error:
            self._discard(temporary)
            raise SpoolUnwritable(str(temporary), _why(error)) from error
        self._publish(temporary, self.path("ready", note.name))
        batch = Batch(note=note)
        with self._mutex:
            self._state = fold_note(self._state, note)
            self._keep(batch)
        return batch

    def _publish(self, temporary: Path, target: Path) -> None:
        try:
            self._disk.rename(temporary, target)
            if self.settings.sync:
                self._disk.sync_dir(target.parent)
        except OSError as error:
            raise SpoolBroken(str(target), _why(error)) from error

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
        path = self.path("ready", batch.note.name)
        try:
            _, frame = decode_entry(self._disk.read(path))
        except FileNotFoundError as error:
            self._drop(batch)
            raise CorruptEntry("the file is gone") from error
        except OSError as error:
            raise SpoolUnwritable(str(path), _why(error)) from error
        except CorruptEntry as error:
            self._set_aside(batch.note.name, error.reason)
            self._drop(batch)
            raise
        return frame

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
        name = batch.note.name
        beside = self.path("parked", name + ".json")
        try:
            with self._sweeping:
                # A person may drop it at any time, so the positions it carries are safe first.
                self._save_state()
            self._disk.write_new(beside, [msgspec.json.encode(reason)], sync=self.settings.sync)
            self._move_to_parked(name)
            self._sync_dirs("parked", "ready")
        except OSError as error:
            raise SpoolUnwritable(str(beside), _why(error)) from error
        with self._mutex:
            self._ready.pop(batch.note.order, None)

    def _move_to_parked(self, name: str) -> None:
        """Moves the file; an earlier try may have moved it and failed after that."""
        try:
            self._disk.rename(self.path("ready", name), self.path("parked", name))
        except FileNotFoundError:
            self._disk.read_head(self.path("parked", name), HEAD.size)

    def sweep(self, *, sources_gone: Iterable[str] = ()) -> None:
        """Writes a durable state and then removes what it covers; does nothing when idle.

        Args:
            sources_gone: Files read to their end that are no longer there.

        Raises:
            SpoolUnwritable: The state could not be written; nothing was removed.
        """
        with self._sweeping:
            with self._mutex:
                self._gone.update(sources_gone)
                done = list(self._done)
            try:
                if done or self._gone:
                    self._save_state()
                self._remove(done)
                self._recount_parked()
            except OSError as error:
                raise SpoolUnwritable(str(self.settings.directory), _why(error)) from error

    def place(self, marks: Iterable[FileMark]) -> None:
        """Makes marks durable that no batch carries: of files to be read from their end on.

        Raises:
            SpoolUnwritable: They could not be written.
        """
        with self._sweeping:
            with self._mutex:
                placed = {mark.source: mark for mark in marks}
                self._state = msgspec.structs.replace(
                    self._state, marks={**self._state.marks, **placed}
                )
            try:
                self._save_state()
            except OSError as error:
                raise SpoolUnwritable(str(self.settings.directory), _why(error)) from error

    def adopt_again(self) -> list[Batch]:
        """Takes back what a person asked to be sent again (`sluice agent parked retry`)."""
        adopted = []
        try:
            for name, size_bytes in self._disk.list(self.path("again")):
                note = self._read_note("again", name, size_bytes)
                if note is not None:
                    adopted.append(self._adopt(note))
        except OSError as error:
            raise SpoolUnwritable(str(self.path("again")), _why(error)) from error
        return adopted

    def _adopt(self, note: Note) -> Batch:
        self._disk.rename(self.path("again", note.name), self.path("ready", note.name))
        self._sync_dirs("ready", "again")
        batch = Batch(note=note, recovered=True)
        with self._mutex:
            self._keep(batch)
        return batch

    # -- helpers -------------------------------------------------------------------------

    def _take_lock(self) -> int:
        try:
            return self._disk.lock(self.settings.directory / "lock")
        except BlockingIOError as error:
            raise SpoolLocked(str(self.settings.directory)) from error

    def _read_state(self) -> State:
        path = self.settings.directory / STATE
        try:
            return decode_state(self._disk.read(path))
        except FileNotFoundError:
            return State()
        except CorruptEntry as error:
            raise BadUsage(
                "spool's state is corrupt: restore it, or remove it to read every file again from"
                f" its start, which may send lines twice, reason=`{error.reason}`, path=`{path}`"
            ) from error

    def _recover(self) -> None:
        """Finds every batch of former lives; half-written files never had a name and go."""
        for name, size_bytes in self._disk.list(self.path("ready")):
            if not is_entry(name):
                self._disk.remove(self.path("ready", name))
                continue
            note = self._read_note("ready", name, size_bytes)
            if note is not None:
                self._check_owner(note)
                self._state = fold_note(self._state, note)
                self._keep(Batch(note=note, recovered=True))
        self.adopt_again()
        self._recount_parked()
        if self.settings.sync:
            self._disk.sync_dir(self.path("ready"))  # a former life may have died before its own

    def _check_owner(self, note: Note) -> None:
        if note.agent_id != self.settings.agent_id:
            raise BadUsage(
                "spool belongs to another agent: name its id or another --spool,"
                f" agent_id=`{note.agent_id}`, path=`{self.settings.directory}`"
            )

    def _read_note(self, folder: str, name: str, size_bytes: int) -> Note | None:
        path = self.path(folder, name)
        try:
            end = note_end(self._disk.read_head(path, HEAD.size))
            return decode_note(self._disk.read_head(path, end), file_bytes=size_bytes)
        except CorruptEntry as error:
            self._set_aside(name, error.reason, folder=folder)
            return None

    def _set_aside(self, name: str, reason: str, *, folder: str = "ready") -> None:
        self._disk.rename(self.path(folder, name), self.path("corrupt", name))
        self._sync_dirs("corrupt", folder)
        self.set_aside.append((name, reason))

    def _drop(self, batch: Batch) -> None:
        with self._mutex:
            self._ready.pop(batch.note.order, None)
            self._bytes.pop(batch.note.name, None)

    def _discard(self, path: Path) -> None:
        try:
            self._disk.remove(path)
        except OSError:
            return  # the next commit of the same batch writes over it, the next life removes it

    def _save_state(self) -> None:
        with self._mutex:
            boots = {self.boot_id, *(batch.note.boot_id for batch in self._ready.values())}
            gone, self._gone = self._gone, set()
            self._state = prune_state(self._state, boots=boots, sources_gone=gone)
            state = self._state
        if state == self._durable:
            return
        path = self.settings.directory / STATE
        temporary = path.with_suffix(".tmp")
        # Always durable, also without `sync`: a torn state would keep the next life from starting.
        self._disk.write_new(temporary, [encode_state(state)], sync=True)
        self._disk.rename(temporary, path)
        self._disk.sync_dir(path.parent)
        self._durable = state

    def _remove(self, done: Iterable[Note]) -> None:
        for note in done:
            self._disk.remove(self.path("ready", note.name))
            with self._mutex:
                self._done.remove(note)
                self._bytes.pop(note.name, None)

    def _recount_parked(self) -> None:
        """Counts parked batches anew: a person may have dropped some or sent them again."""
        parked = {n: size for n, size in self._disk.list(self.path("parked")) if is_entry(n)}
        with self._mutex:
            standing = {batch.note.name for batch in self._ready.values()}
            standing.update(note.name for note in self._done)
            kept = {name: size for name, size in self._bytes.items() if name in standing}
            self._bytes = {**parked, **kept}

    def _sync_dirs(self, *folders: str) -> None:
        if self.settings.sync:
            for folder in folders:
                self._disk.sync_dir(self.path(folder))


def _why(error: OSError) -> str:
    return error.strerror or str(error)
