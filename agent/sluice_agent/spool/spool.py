"""The durable spool: sealed batches on disk, from before the first upload until they are accepted.

    seal ──> commit ──> ready/ ──200──> removed (after a durable state covers it)
                          │ ──409, 413, …──> parked/ ──retry──> again/ ──> ready/
                          └ content differs from what was written ──> corrupt/ (logged)

Guarantees, each with a test:
- No batch is sent before its file and its name are durable (`sync`, the default).
- An identity never has two contents. Each run of the agent has a new boot id and assigns a sequence
  number once. A batch whose commit failed keeps its bytes and is committed again unchanged. If it
  is unknown whether a commit is durable, the run ends.
- Checkpoints and frame become durable by one rename, so no line is lost or sealed twice.
- A request to a door whose records were committed is known as long as it is in the window.
- The spool never exceeds `bytes_max`: the caller checks `fits` before it commits.

Source: ADR 17.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from sluice_agent.errors import CorruptEntry, SpoolBroken
from sluice_agent.settings import SpoolSettings
from sluice_agent.spool.directory import SpoolDirectory, translate_os_errors
from sluice_agent.spool.disk import Disk
from sluice_agent.spool.format import (
    FORMAT_VERSION,
    EntryHeader,
    FileCheckpoint,
    ParkedReason,
    encode_spool_entry,
    fold_entry,
    is_entry,
    prune_state,
)
from sluice_agent.spool.request_window import remove_requests, split_requests
from sluice_protocol.columns import Columns, kind_of
from sluice_protocol.errors import BadUsage
from sluice_protocol.frame import encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import digest_of
from sluice_protocol.units import UnixNs

SWEEP_AT: Final = 32
"""The number of accepted batches that are covered by one durable state and removed together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedBatch:
    """A batch with its final identity and bytes, not yet on disk."""

    header: EntryHeader
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledBatch:
    """A batch in the spool.

    Attributes:
        recovered: An earlier boot sealed it, or it is retried or delayed; it may have been sent.
    """

    header: EntryHeader
    recovered: bool = False


class Spool:
    """One spool directory, locked by this process.

    The methods block on I/O and may be called from any thread. `seal` and `commit` must be called
    by one thread at a time.
    """

    def __init__(self, settings: SpoolSettings, disk: Disk, *, boot_id: str) -> None:
        """Open the spool: lock it, recover every batch and start a new boot.

        Raises:
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
        self._accepted: list[EntryHeader] = []
        self._finished_sources: set[str] = set()
        self._next_seq = 0
        self._refused_bytes = 0
        self._directory = SpoolDirectory(settings.directory, disk, sync=settings.sync)
        with translate_os_errors(settings.directory):
            self._directory.open()
            try:
                self._state = self._durable = self._directory.read_state()
                self._recover()
            except BaseException:
                self._directory.close()
                raise
        self._requests = frozenset(split_requests(self._state.requests))
        self._next_order = max([self._state.through, *self._ready]) + 1

    def settle(self) -> None:
        """Wait for a commit that another thread is running: its batch is then in `ready`."""
        with self._committing:
            pass

    def close(self) -> None:
        """Release the spool, after a commit or sweep that another thread is running."""
        with self._committing, self._sweeping:
            if not self._closed:
                self._closed = True
                self._directory.close()

    @property
    def corrupt_files(self) -> tuple[tuple[str, str], ...]:
        """Name and reason of each file that was moved to `corrupt/`."""
        return tuple(self._directory.corrupt_files)

    # -- content -------------------------------------------------------------------------

    def ready(self) -> list[SpooledBatch]:
        """Return every batch that is not accepted or parked, in the order of sealing."""
        with self._mutex:
            return [self._ready[order] for order in sorted(self._ready)]

    def checkpoints(self) -> dict[str, FileCheckpoint]:
        """Return the sealed position of each file."""
        with self._mutex:
            return dict(self._state.checkpoints)

    def high_water(self, boot_id: str) -> int | None:
        """Return the highest sequence number that a boot sealed; None if there is none."""
        with self._mutex:
            return self._state.high_water.get(boot_id)

    def knows_request(self, digest: bytes) -> bool:
        """Return True if the records of a request are durable, and the window contains it."""
        return digest in self._requests

    def size_bytes(self) -> int:
        """Return the bytes of all batches in the spool, including parked ones."""
        with self._mutex:
            return sum(self._bytes.values())

    def fits(self, sealed: SealedBatch) -> bool:
        """Return True if a batch can be committed within `bytes_max`."""
        size_bytes = sealed.header.size_bytes
        fits = self.size_bytes() + size_bytes <= self.settings.bytes_max
        self._refused_bytes = 0 if fits else size_bytes
        return fits

    def is_full(self) -> bool:
        """Return True if there was no room for the last batch, and still is none."""
        refused = self._refused_bytes
        return bool(refused) and self.size_bytes() + refused > self.settings.bytes_max

    # -- sealing -------------------------------------------------------------------------

    def seal(
        self,
        columns: Columns,
        checkpoints: Iterable[FileCheckpoint],
        *,
        now_ns: UnixNs,
        requests: bytes = b"",
    ) -> SealedBatch:
        """Assign records their identity and encode their frame; neither changes afterwards.

        `requests` has the digests of the requests to doors that the records belong to.

        Raises:
            TooLarge: The records exceed the size of a frame; no sequence number was assigned.
        """
        identity = Identity(
            agent_id=self.settings.agent_id,
            boot_id=self.boot_id,
            seq_start=self._next_seq,
            seq_end=self._next_seq + len(columns) - 1,
        )
        frame = encode_frame(
            identity=identity,
            columns=columns,
            resource=self.settings.resource,
        )
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
            requests=requests,
        )
        self._next_seq += len(columns)
        self._next_order += 1
        return SealedBatch(header=header, frame=frame)

    def commit(self, sealed: SealedBatch) -> SpooledBatch:
        """Make a batch durable; only then may it be sent.

        Raises:
            SpoolUnwritable: It is not in the spool; commit the same value again later.
            SpoolBroken: Its durability is unknown; this run of the agent must end.
        """
        with self._committing:
            return self._commit(sealed)

    def _commit(self, sealed: SealedBatch) -> SpooledBatch:
        header = sealed.header
        if self._closed:
            raise SpoolBroken(str(self.settings.directory), "the spool is closed")
        self._directory.publish(header.name, encode_spool_entry(header, sealed.frame))
        batch = SpooledBatch(header=header)
        with self._mutex:
            self._state = fold_entry(self._state, header)
            if header.requests:
                self._requests = frozenset(split_requests(self._state.requests))
            self._keep(batch)
        return batch

    def _keep(self, batch: SpooledBatch) -> None:
        self._ready[batch.header.order] = batch
        self._bytes[batch.header.name] = batch.header.size_bytes

    # -- sending -------------------------------------------------------------------------

    def read(self, batch: SpooledBatch) -> bytes:
        """Return the frame of a batch, exactly as it was sealed.

        Raises:
            CorruptEntry: The file differs from what was written; it was moved to `corrupt/`.
            SpoolUnwritable: It cannot be read.
        """
        with translate_os_errors(self._directory.path("ready", batch.header.name)):
            try:
                return self._directory.read(batch.header.name)
            except CorruptEntry:
                self._discard(batch)
                raise

    def read_all(self, batches: Iterable[SpooledBatch]) -> list[bytes | CorruptEntry]:
        """Return the frame of each batch, as `read` does, or the error of a damaged one.

        Raises:
            SpoolUnwritable: Retry all of them.
        """
        return [self._read_or_error(batch) for batch in batches]

    def _read_or_error(self, batch: SpooledBatch) -> bytes | CorruptEntry:
        try:
            return self.read(batch)
        except CorruptEntry as error:
            return error

    def forget(self, *batches: SpooledBatch) -> None:
        """Remove batches that gateways accepted.

        Their files are removed at the next sweep. After a crash before that, the same bytes are
        sent again.

        Raises:
            SpoolUnwritable: A sweep was due and could not write; the batches remain on disk.
        """
        with self._mutex:
            for batch in batches:
                self._ready.pop(batch.header.order, None)
                self._accepted.append(batch.header)
            due = len(self._accepted) >= SWEEP_AT
        if due:
            self.sweep()

    def park(self, batch: SpooledBatch, reason: ParkedReason) -> None:
        """Move a batch to `parked/` with the reason; its bytes do not change.

        Raises:
            SpoolUnwritable: It is still in `ready/`.
        """
        with translate_os_errors(self._directory.path("parked")):
            with self._sweeping:
                # An operator may drop it at any time, so its checkpoints must be durable before it
                # moves.
                self._save_state()
            self._directory.park(batch.header.name, msgspec.json.encode(reason))
        with self._mutex:
            self._ready.pop(batch.header.order, None)

    def sweep(self, *, finished_sources: Iterable[str] = ()) -> None:
        """Write a durable state and then remove the files it covers; do nothing if there are none.

        `finished_sources` are read to their end and no longer exist.

        Raises:
            SpoolUnwritable: The state could not be written; nothing was removed.
        """
        with self._sweeping, translate_os_errors(self.settings.directory):
            with self._mutex:
                self._finished_sources.update(finished_sources)
                accepted = list(self._accepted)
            if accepted or self._finished_sources:
                self._save_state()
            self._remove(accepted)
            self._recount_parked()

    def save_checkpoints(self, checkpoints: Iterable[FileCheckpoint]) -> None:
        """Make checkpoints durable without a batch, such as those of files read from their end."""
        placed = {each.source: each for each in checkpoints}
        with self._sweeping, translate_os_errors(self.settings.directory):
            with self._mutex:
                marked = {**self._state.checkpoints, **placed}
                self._state = msgspec.structs.replace(self._state, checkpoints=marked)
            self._save_state()

    def reclaim_retried(self) -> list[SpooledBatch]:
        """Return the batches that `sluice agent parked retry` moved to `again/` to the spool."""
        adopted = []
        with translate_os_errors(self._directory.path("again")):
            for name, size_bytes in self._directory.list("again"):
                header = self._directory.read_header("again", name, size_bytes)
                if header is not None:
                    self._directory.requeue(name)
                    adopted.append(SpooledBatch(header=header, recovered=True))
                    with self._mutex:
                        self._keep(adopted[-1])
        return adopted

    # -- helpers -------------------------------------------------------------------------

    def _recover(self) -> None:
        """Load every batch of earlier boots, and remove files that were not written completely."""
        for name, size_bytes in self._directory.list("ready"):
            if not is_entry(name):
                self._directory.remove(name)
                continue
            header = self._directory.read_header("ready", name, size_bytes)
            if header is not None:
                self._check_owner(header)
                self._state = fold_entry(self._state, header)
                self._keep(SpooledBatch(header=header, recovered=True))
        self.reclaim_retried()
        self._recount_parked()
        self._directory.sync("ready")  # an earlier boot may have died before its own sync

    def _check_owner(self, header: EntryHeader) -> None:
        if header.agent_id != self.settings.agent_id:
            raise BadUsage(
                f"spool belongs to another agent: set that --agent-id or another --spool, "
                f"agent_id=`{header.agent_id}`, path=`{self.settings.directory}`"
            )

    def _discard(self, batch: SpooledBatch) -> None:
        """Remove a damaged batch, and its requests: their clients may have got no response."""
        with self._mutex:
            left = remove_requests(self._state.requests, batch.header.requests)
            self._state = msgspec.structs.replace(self._state, requests=left)
            self._requests = frozenset(split_requests(left))
            self._ready.pop(batch.header.order, None)
            self._bytes.pop(batch.header.name, None)

    def _save_state(self) -> None:
        with self._mutex:
            boots = {self.boot_id, *(batch.header.boot_id for batch in self._ready.values())}
            finished, self._finished_sources = self._finished_sources, set()
            self._state = prune_state(self._state, boots=boots, finished_sources=finished)
            state = self._state
        if state == self._durable:
            return
        self._directory.write_state(state)
        self._durable = state

    def _remove(self, accepted: Iterable[EntryHeader]) -> None:
        for header in accepted:
            self._directory.remove(header.name)
            with self._mutex:
                self._accepted.remove(header)
                self._bytes.pop(header.name, None)

    def _recount_parked(self) -> None:
        """Count parked batches again, because an operator may have dropped or retried some."""
        parked = {n: size for n, size in self._directory.list("parked") if is_entry(n)}
        with self._mutex:
            standing = {batch.header.name for batch in self._ready.values()}
            standing.update(header.name for header in self._accepted)
            kept = {name: size for name, size in self._bytes.items() if name in standing}
            self._bytes = {**parked, **kept}
