"""The input of log files: find files by pattern and follow them through every kind of rotation.

Rotations:
- *rename* (`app.log` to `app.log.1`, and a new `app.log`): the open file is read to its end and
  then closed. After a restart its inode is searched for in the directory of its last known path.
- *copytruncate*: the file became shorter, or the bytes before the position changed; it is read from
  its start. Lines written between the last read and the truncation exist in the copy only; if the
  patterns match the copy, it is read from that position (`copytruncate.py`).
- *reused inode*: the first and the last bytes read are compared; a different file is read from 0.

Source: ADR 0032.
"""

import contextlib
import errno
import fnmatch
import glob
import math
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from sluice_agent.batching import RecordBlock
from sluice_agent.columns import logs_from_block
from sluice_agent.copytruncate import CopyDetector
from sluice_agent.file_names import parse_stored_path, shown_name
from sluice_agent.line_readers import FollowedFile, source_of
from sluice_agent.settings import FileSettings
from sluice_agent.spool_format import FileCheckpoint
from sluice_protocol.units import UnixNs

POLL_BYTES_MAX: Final = 4 * 1024 * 1024
DISCOVER_S: Final = 1.0
UNREADABLE_S: Final = 30.0
"""Time after which a file that could not be read is tried again."""
_log: Final = structlog.get_logger("sluice.agent.files")


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """The result of one poll of all files.

    Attributes:
        blocks: Records, in the order of their files.
        finished: Sources that are read and sealed to their end and can be forgotten.
        new_checkpoints: Positions at which reading begins; they must be made durable first.
    """

    blocks: tuple[RecordBlock, ...]
    finished: tuple[str, ...]
    new_checkpoints: tuple[FileCheckpoint, ...] = ()


class _Seen(NamedTuple):
    """A file as it was when its first bytes were read; another one may have its inode later."""

    path: str
    size_bytes: int
    modified_ns: int


def _seen(path: str, status: os.stat_result) -> _Seen:
    return _Seen(path, status.st_size, status.st_mtime_ns)


class FileInput:
    """Follows files. Its methods block and must be called by one thread at a time."""

    def __init__(self, settings: FileSettings, checkpoints: Mapping[str, FileCheckpoint]) -> None:
        self._settings = settings
        self._checkpoints = dict(checkpoints)
        self._files: dict[str, FollowedFile] = {}
        self._skipped: dict[str, _Seen] = {}
        self._unreadable: dict[str, float] = {}
        self._discovered_s: float | None = None
        self._from_end = settings.from_end and not checkpoints
        self._polls = 0
        self._new_checkpoints: list[FileCheckpoint] = []
        self._copies = CopyDetector()

    def close(self) -> None:
        """Close every file."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def poll(
        self,
        *,
        now_s: float,
        now_ns: UnixNs,
        sealed: Mapping[str, FileCheckpoint],
        final: bool = False,
    ) -> PollResult:
        """Check every file once and read at most a few MiB.

        Args:
            now_s: The monotonic clock.
            now_ns: The wall clock; the time of lines without a timestamp.
            sealed: The durable checkpoint of each source.
            final: Nothing will be appended: a last line without newline is complete.
        """
        if self._discovered_s is None or now_s - self._discovered_s >= DISCOVER_S:
            self._discover(now_s)
        blocks: list[RecordBlock] = []
        taken = 0
        for file in self._rotated():
            if taken >= POLL_BYTES_MAX:
                break
            if now_s < file.retry_at_s:
                continue
            try:
                block = self._read(file, now_s=now_s, now_ns=now_ns, final=final)
            except OSError as error:
                self._postpone(file, error, now_s)
                continue
            if block is not None:
                blocks.append(block)
                taken += block.cost_bytes
        new_checkpoints, self._new_checkpoints = tuple(self._new_checkpoints), []
        finished = self._close_finished(now_s, sealed)
        return PollResult(blocks=tuple(blocks), finished=finished, new_checkpoints=new_checkpoints)

    def _rotated(self) -> Iterator[FollowedFile]:
        """Return the files in an order that rotates, so that a busy file delays no other."""
        files = list(self._files.values())
        self._polls += 1
        start = self._polls % len(files) if files else 0
        yield from files[start:] + files[:start]

    # -- reading -------------------------------------------------------------------------

    def _read(
        self, file: FollowedFile, *, now_s: float, now_ns: UnixNs, final: bool
    ) -> RecordBlock | None:
        if file.was_rewritten():
            self._rewind(file, now_s)
        if self._copies.is_waiting(file):
            if not self._copies.resolve(file, now_s=math.inf if final else now_s):
                return None
            self._new_checkpoints.append(file.checkpoint(start=file.offset))
        start = file.offset
        block = file.read(final=final or self._is_finished(file, now_s))
        if block is None:
            file.idle_since_s = now_s if file.idle_since_s is None else file.idle_since_s
            return None
        file.idle_since_s = None
        columns = logs_from_block(
            block.data,
            arrived_ns=now_ns,
            zone=self._settings.zone,
            path=file.shown_path,
            continues=block.continues,
            newlines=block.newlines,
        )
        return RecordBlock(
            columns=columns,
            cost_bytes=len(block.data) + file.record_cost_bytes * len(columns),
            checkpoints=(file.checkpoint(start=start),),
            may_wait=True,
        )

    def _postpone(self, file: FollowedFile, error: OSError, now_s: float) -> None:
        """Read a file later that cannot be read; other files must not wait for it.

        The handle of a file on NFS may become stale: then it is opened again by its path.
        """
        _log.warning("file_unreadable", path=file.shown_path, reason=error.strerror)
        file.retry_at_s = now_s + UNREADABLE_S
        if error.errno == errno.ESTALE:
            self._checkpoints[file.source] = file.checkpoint(start=file.offset)
            del self._files[file.source]
            with contextlib.suppress(OSError):
                file.close()

    def _rewind(self, file: FollowedFile, now_s: float) -> None:
        _log.warning("file_rewritten", path=file.shown_path, read_bytes=file.offset)
        self._copies.record_truncation(file.checkpoint(start=file.offset), now_s=now_s)
        file.seek(0)

    def _is_finished(self, file: FollowedFile, now_s: float) -> bool:
        idle_s = file.idle_since_s
        waited = idle_s is not None and now_s - idle_s >= self._settings.rotated_wait_s
        return file.moved and waited

    def _close_finished(
        self, now_s: float, sealed: Mapping[str, FileCheckpoint]
    ) -> tuple[str, ...]:
        """Close renamed files whose last line is durable in the spool; return their sources."""
        finished = []
        for source, file in list(self._files.items()):
            checkpoint = sealed.get(source)
            durable = file.offset == 0 or (checkpoint is not None and file.is_at(checkpoint))
            if now_s < file.retry_at_s:
                continue
            if self._is_finished(file, now_s) and durable and not file.unread_bytes():
                _log.info("file_finished", path=file.shown_path, read_bytes=file.offset)
                file.close()
                del self._files[source]
                finished.append(source)
        return tuple(finished)

    # -- discovery -----------------------------------------------------------------------

    def _discover(self, now_s: float) -> None:
        first = self._discovered_s is None
        self._discovered_s = now_s
        found = dict(self._matching())
        for source, seen in sorted(
            found.items(), key=lambda item: item[0] not in self._checkpoints
        ):
            if source in self._files:
                self._files[source].path = seen.path
            elif self._skipped.get(source) != seen and now_s >= self._unreadable.get(source, now_s):
                self._open(seen.path, now_s)
        self._skipped = {one: seen for one, seen in self._skipped.items() if one in found}
        self._unreadable = {one: at for one, at in self._unreadable.items() if now_s < at}
        for source, file in self._files.items():
            file.moved = source not in found
        if first:
            self._report_unmatched()
            self._find_renamed_while_stopped(now_s)
            self._from_end = False

    def _report_unmatched(self) -> None:
        """Log each pattern that matches nothing at the start: it may be mistyped."""
        for pattern in self._settings.patterns:
            if next(glob.iglob(pattern, recursive=True), None) is None:  # noqa: PTH207 - patterns are absolute
                _log.warning("pattern_without_files", pattern=pattern)

    def _matching(self) -> Iterator[tuple[str, _Seen]]:
        for pattern in self._settings.patterns:
            for path in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207 - patterns are absolute
                if any(fnmatch.fnmatch(path, each) for each in self._settings.exclude):
                    continue
                try:
                    status = os.stat(path)  # noqa: PTH116 - paths are strings throughout
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield source_of(status), _seen(path, status)

    def _open(self, path: str, now_s: float) -> FollowedFile | None:
        try:
            file = FollowedFile(path, limits=self._settings.block)
        except OSError as error:
            _log.warning("file_unreadable", path=shown_name(path), reason=error.strerror)
            return None
        if file.source in self._files:  # renamed between the stat and the open
            file.close()
            return None
        try:
            if file.source not in self._checkpoints and file.looks_binary():
                self._skip(file)
                file.close()
                return None
            self._resume(file, now_s)
        except OSError as error:
            _log.warning("file_unreadable", path=file.shown_path, reason=error.strerror)
            self._unreadable[file.source] = now_s + UNREADABLE_S
            file.close()
            return None
        self._files[file.source] = file
        return file

    def _skip(self, file: FollowedFile) -> None:
        """Do not read a binary file until it changes: its inode may then be that of a log file."""
        known = self._skipped.get(file.source)
        if known is None or known.path != file.path:
            _log.warning("binary_file_skipped", path=file.shown_path)
        self._skipped[file.source] = _seen(file.path, file.status())

    def _resume(self, file: FollowedFile, now_s: float) -> None:
        """Set where reading begins, and save it so that a restart finds the file."""
        checkpoint = self._checkpoints.get(file.source)
        is_same = checkpoint is not None and file.matches(checkpoint)
        self._checkpoints.pop(file.source, None)
        if checkpoint is not None and is_same:
            file.seek(checkpoint.offset)
            return
        if checkpoint is not None:
            _log.warning("file_rewritten", path=file.shown_path, read_bytes=checkpoint.offset)
            self._copies.record_truncation(checkpoint, now_s=now_s)
        elif self._copies.detect(file, self._files.values(), now_s=now_s):
            _log.info("file_copy_detected", path=file.shown_path, known_bytes=file.offset)
            if self._copies.is_waiting(file):
                return  # no position is known until the copy is resolved
        elif self._from_end:
            file.seek(file.unread_bytes())
        self._new_checkpoints.append(file.checkpoint(start=file.offset))

    def _find_renamed_while_stopped(self, now_s: float) -> None:
        """Find files that were renamed out of the patterns while no agent was running."""
        for checkpoint in list(self._checkpoints.values()):
            known = parse_stored_path(checkpoint.path)
            path = _find_inode(Path(known).parent, checkpoint.source)
            file = self._open(path, now_s) if path else None
            if file is None:
                _log.warning("file_missing", path=shown_name(known), read_bytes=checkpoint.offset)
            else:
                file.moved = True


def _find_inode(folder: Path, source: str) -> str:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file() and source_of(entry.stat()) == source:
                    return entry.path
    except OSError:
        return ""
    return ""
