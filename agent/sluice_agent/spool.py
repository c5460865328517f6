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
from sluice_agent.errors import CorruptEntry, SpoolBroken
from sluice_agent.spool_directory import SpoolDirectory, translate_os_errors
from sluice_agent.spool_format import (
    FORMAT_VERSION,
    EntryHeader,
    FileCheckpoint,
    ParkedReason,
    encode_entry,
    fold_entry,
    is_entry,
    prune_state,
)
from sluice_protocol.columns import Columns, kind_of
from sluice_protocol.errors import BadUsage
from sluice_protocol.frame import encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import digest_of
from sluice_protocol.units import UnixNs

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
class SealedBatch:
    """A batch that has its identity and its bytes for ever, not yet on disk."""

    header: EntryHeader
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledBatch:
    """A batch that stands in the spool.

    Attributes:
        note: What its file says of it.
        recovered: A former life sealed it, so it may have been sent already.
    """

    header: EntryHeader
    recovered: bool = False


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
        self._ready: dict[int, SpooledBatch] = {}
        self._bytes: dict[str, int] = {}
        self._done: list[EntryHeader] = []
        self._gone: set[str] = set()
        self._next_seq = 0
        self._folders = SpoolDirectory(settings.directory, disk, sync=settings.sync)
        with translate_os_errors(settings.directory):
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

    def ready(self) -> list[SpooledBatch]:
        """Gives every batch that waits to be accepted, in the order of sealing."""
        with self._mutex:
            return [self._ready[order] for order in sorted(self._ready)]

    def checkpoints(self) -> dict[str, FileCheckpoint]:
        """Gives how far each file is sealed."""
        with self._mutex:
            return dict(self._state.checkpoints)

    def high_water(self, boot_id: str) -> int | None:
        """Gives the highest sequence number that a boot sealed; none when it sealed nothing."""
        with self._mutex:
            return self._state.high_water.get(boot_id)

    def size_bytes(self) -> int:
        """Gives how many bytes of batches stand in it, parked ones included."""
        with self._mutex:
            return sum(self._bytes.values())

    def fits(self, sealed: SealedBatch) -> bool:
        """Tells whether a batch can be committed without going over `bytes_max`."""
        return self.size_bytes() + sealed.header.size_bytes <= self.settings.bytes_max

    # -- sealing -------------------------------------------------------------------------

    def prepare(
        self, columns: Columns, checkpoints: Iterable[FileCheckpoint], *, now_ns: UnixNs
    ) -> SealedBatch:
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
        header = EntryHeader(
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
            checkpoints=tuple(checkpoints),
        )
        self._next_seq += len(columns)
        self._next_order += 1
        return SealedBatch(header=header, frame=frame)

    def commit(self, sealed: SealedBatch) -> SpooledBatch:
        """Makes a batch durable; only then may it be sent.

        Raises:
            SpoolUnwritable: It is not in the spool; commit the same value again later.
            SpoolBroken: Nobody knows; this life of the agent must end.
        """
        with self._committing:
            return self._commit(sealed)

    def _commit(self, sealed: SealedBatch) -> SpooledBatch:
        header = sealed.header
        if self._closed:
            raise SpoolBroken(str(self.settings.directory), "the spool is closed")
        self._folders.publish(header.name, encode_entry(header, sealed.frame))
        batch = SpooledBatch(header=header)
        with self._mutex:
            self._state = fold_entry(self._state, header)
            self._keep(batch)
        return batch

    def _keep(self, batch: SpooledBatch) -> None:
        self._ready[batch.header.order] = batch
        self._bytes[batch.header.name] = batch.header.size_bytes

    # -- sending -------------------------------------------------------------------------

    def read(self, batch: SpooledBatch) -> bytes:
        """Gives the frame of a batch, exactly as it was sealed.

        Raises:
            CorruptEntry: The file is not what was written; it now stands in `corrupt/`.
            SpoolUnwritable: It cannot be read.
        """
        with translate_os_errors(self._folders.path("ready", batch.header.name)):
            try:
                return self._folders.read(batch.header.name)
            except CorruptEntry:
                self._drop(batch)
                raise

    def forget(self, batch: SpooledBatch) -> None:
        """Takes a batch that a gateway accepted out of the spool.

        Its file goes at the next sweep; a crash before that only sends the same bytes again.

        Raises:
            SpoolUnwritable: A sweep was due and could not write; the batches stay on disk.
        """
        with self._mutex:
            self._ready.pop(batch.header.order, None)
            self._done.append(batch.header)
            due = len(self._done) >= SWEEP_AT
        if due:
            self.sweep()

    def park(self, batch: SpooledBatch, reason: ParkedReason) -> None:
        """Sets a batch aside with the reason; its bytes stay.

        Raises:
            SpoolUnwritable: It still stands in `ready/`.
        """
        with translate_os_errors(self._folders.path("parked")):
            with self._sweeping:
                # A person may drop it at any time, so the positions it carries are safe first.
                self._save_state()
            self._folders.park(batch.header.name, msgspec.json.encode(reason))
        with self._mutex:
            self._ready.pop(batch.header.order, None)

    def sweep(self, *, sources_gone: Iterable[str] = ()) -> None:
        """Writes a durable state and then removes what it covers; does nothing when idle.

        Args:
            sources_gone: Files read to their end that are no longer there.

        Raises:
            SpoolUnwritable: The state could not be written; nothing was removed.
        """
        with self._sweeping, translate_os_errors(self.settings.directory):
            with self._mutex:
                self._gone.update(sources_gone)
                done = list(self._done)
            if done or self._gone:
                self._save_state()
            self._remove(done)
            self._recount_parked()

    def place(self, checkpoints: Iterable[FileCheckpoint]) -> None:
        """Makes marks durable that no batch carries: of files to be read from their end on.

        Raises:
            SpoolUnwritable: They could not be written.
        """
        placed = {each.source: each for each in checkpoints}
        with self._sweeping, translate_os_errors(self.settings.directory):
            with self._mutex:
                marked = {**self._state.checkpoints, **placed}
                self._state = msgspec.structs.replace(self._state, checkpoints=marked)
            self._save_state()

    def adopt_again(self) -> list[SpooledBatch]:
        """Takes back what a person asked to be sent again (`sluice agent parked retry`)."""
        adopted = []
        with translate_os_errors(self._folders.path("again")):
            for name, size_bytes in self._folders.list("again"):
                header = self._folders.read_header("again", name, size_bytes)
                if header is not None:
                    self._folders.adopt(name)
                    adopted.append(SpooledBatch(header=header, recovered=True))
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
            header = self._folders.read_header("ready", name, size_bytes)
            if header is not None:
                self._check_owner(header)
                self._state = fold_entry(self._state, header)
                self._keep(SpooledBatch(header=header, recovered=True))
        self.adopt_again()
        self._recount_parked()
        self._folders.sync("ready")  # a former life may have died before its own

    def _check_owner(self, header: EntryHeader) -> None:
        if header.agent_id != self.settings.agent_id:
            raise BadUsage(
                "spool belongs to another agent: name its id or another --spool,"
                f" agent_id=`{header.agent_id}`, path=`{self.settings.directory}`"
            )

    def _drop(self, batch: SpooledBatch) -> None:
        with self._mutex:
            self._ready.pop(batch.header.order, None)
            self._bytes.pop(batch.header.name, None)

    def _save_state(self) -> None:
        with self._mutex:
            boots = {self.boot_id, *(batch.header.boot_id for batch in self._ready.values())}
            gone, self._gone = self._gone, set()
            self._state = prune_state(self._state, boots=boots, sources_gone=gone)
            state = self._state
        if state == self._durable:
            return
        self._folders.write_state(state)
        self._durable = state

    def _remove(self, done: Iterable[EntryHeader]) -> None:
        for header in done:
            self._folders.remove(header.name)
            with self._mutex:
                self._done.remove(header)
                self._bytes.pop(header.name, None)

    def _recount_parked(self) -> None:
        """Counts parked batches anew: a person may have dropped some or sent them again."""
        parked = {n: size for n, size in self._folders.list("parked") if is_entry(n)}
        with self._mutex:
            standing = {batch.header.name for batch in self._ready.values()}
            standing.update(header.name for header in self._done)
            kept = {name: size for name, size in self._bytes.items() if name in standing}
            self._bytes = {**parked, **kept}
