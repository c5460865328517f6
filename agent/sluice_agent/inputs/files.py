"""The input of log files: find files by pattern and follow them through every kind of rotation.

A file is known by its inode and by a digest of all bytes that were read of it (`file_identity`). If
a file no longer contains what was read, it is read from its start: a line is sent again rather than
lost, and `FileCounts` counts it. `docs/agent.md` has the table of events and promises.

- *rename* (`app.log` to `app.log.1`, and a new `app.log`): the open file is read to its end and
  then closed. After a restart its inode is searched for in the directories of its last known path
  and of the file that this path led to.
- *copytruncate*: the file became shorter, or the bytes before the position changed; it is read from
  its start. Lines written between the last read and the truncation exist in the copy only; if the
  patterns match the copy, it is read from that position. A new file is such a copy if all its bytes
  up to the position that the agent reached in another file are those of that file. If the other
  file is not truncated within a minute, the new one is an ordinary copy and is read from its start.
  A file shorter than 1 KiB is never treated as a copy: sending a line twice is better than losing
  one.
- *another inode*: a new file that begins with all bytes read of a file that is gone continues it.

Lines are read by groups: the position is before a group until it is complete, so a kill reads it
again as a whole.

Source: ADR 17.
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
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from sluice_agent.inputs.file_identity import PrefixComparison, PrefixDigest, best, tail_digest
from sluice_agent.inputs.file_names import parse_stored_path, shown_name
from sluice_agent.inputs.file_report import FileCounts
from sluice_agent.inputs.formats import (
    HEAD_BYTES,
    LineBlock,
    OpenRecords,
    ReadRecords,
    RecordReader,
    pattern_matches,
)
from sluice_agent.inputs.grouping import GROUP_WAIT_S, LINE_WAIT_S
from sluice_agent.inputs.line_readers import FileChange, FollowedFile, source_of
from sluice_agent.settings import FileSettings, Format, split_format
from sluice_agent.spool.batching import RecordBlock, cost_bytes
from sluice_agent.spool.format import FileCheckpoint
from sluice_protocol.units import UnixNs

COPY_BYTES_MIN: Final = 1024
"""Shorter files may begin alike, for example with the same header."""
COPY_WAIT_S: Final = 60.0
"""The longest time between copy and truncation in one copytruncate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCopy:
    """A copy whose original is not truncated yet.

    `until_s` is monotonic; then the file is read from its start.
    """

    checkpoint: FileCheckpoint
    until_s: float


class CopyDetector:
    """Remembers recent truncations and the copies that are not read yet."""

    def __init__(self) -> None:
        self._truncated: list[tuple[float, FileCheckpoint]] = []
        self._waiting: dict[str, WaitingCopy] = {}

    def record_truncation(self, checkpoint: FileCheckpoint, *, now_s: float) -> None:
        """Record the position of a file when it was truncated or overwritten."""
        self._truncated = [(t, m) for t, m in self._truncated if now_s - t < COPY_WAIT_S]
        self._truncated.append((now_s, checkpoint))

    def truncated(self, *, now_s: float) -> list[FileCheckpoint]:
        """Return the positions of the files that were truncated within the last minute."""
        return [one for since_s, one in self._truncated if now_s - since_s < COPY_WAIT_S]

    def wait(self, file: FollowedFile, checkpoint: FileCheckpoint, *, now_s: float) -> None:
        """Do not read a copy until its original is truncated, or the time is up."""
        self._waiting[file.source] = WaitingCopy(checkpoint=checkpoint, until_s=now_s + COPY_WAIT_S)

    def is_waiting(self, file: FollowedFile) -> bool:
        """Return True if a file is a copy that must not be read yet."""
        return file.source in self._waiting

    def resolve(self, file: FollowedFile, *, now_s: float) -> bool:
        """Return True if a copy may be read now, and set its position.

        If its original was truncated, it is read from the position reached there. If the time is
        up, it is an ordinary copy and is read from its start.
        """
        waiting = self._waiting[file.source]
        for _, checkpoint in self._truncated:
            if (
                checkpoint.source == waiting.checkpoint.source
                and checkpoint.offset >= waiting.checkpoint.offset
            ):
                file.advance(checkpoint.offset)
                del self._waiting[file.source]
                return True
        if now_s < waiting.until_s:
            return False
        file.seek(PrefixDigest())
        del self._waiting[file.source]
        return True


def may_be_copy(file: FollowedFile, checkpoint: FileCheckpoint) -> bool:
    """Return True if a position in another file is far enough to recognize a copy by it."""
    return file.source != checkpoint.source and checkpoint.offset >= COPY_BYTES_MIN


POLL_BYTES_MAX: Final = 4 * 1024 * 1024
DISCOVER_S: Final = 1.0
UNREADABLE_S: Final = 30.0
"""Time after which a file that could not be read is tried again."""
_OTHERS: Final = 2
_GONE: Final = 3
_log: Final = structlog.get_logger("sluice.agent.files")


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """The result of one poll of all files.

    Attributes:
        finished: Sources that are read and sealed to their end and can be forgotten.
        new_checkpoints: Positions at which reading begins; they must be made durable first.
        busy: A file is being compared: the next poll continues.
    """

    blocks: tuple[RecordBlock, ...]
    finished: tuple[str, ...]
    new_checkpoints: tuple[FileCheckpoint, ...] = ()
    busy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    """A comparison that decides where a file is read from; until then it is not read.

    The candidates are the file's `own` position before, and positions in files that were
    `truncated` lately, are followed (`others`) or are `gone`.

    Attributes:
        own: The file's own position before, if it has one.
        only_known: The file does not match the patterns: it is read only if it is the known one.
    """

    comparison: PrefixComparison
    own: FileCheckpoint | None = None
    truncated: tuple[FileCheckpoint, ...] = ()
    others: tuple[FileCheckpoint, ...] = ()
    gone: tuple[FileCheckpoint, ...] = ()
    only_known: bool = False


class _Seen(NamedTuple):
    """A file as it was when its first bytes were read; another file may get its inode later."""

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
        self._failed: dict[str, str] = {}
        self._discovered_s: float | None = None
        self._is_first = True
        self._found: dict[str, _Seen] = {}
        self._patterns = [split_format(one, settings.format) for one in settings.patterns]
        self._formats: dict[str, Format] = {}
        self._matches = pattern_matches(settings.multiline_start)
        self._from_end = settings.from_end and not checkpoints
        self._polls = 0
        self._new_checkpoints: list[FileCheckpoint] = []
        self._copies = CopyDetector()
        self._checks: dict[str, _Check] = {}
        self._gone: list[str] = []
        self.counts = FileCounts()

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

        `now_s` is monotonic; `now_ns` is the time of lines without a timestamp; `sealed` has the
        durable checkpoint of each source. With `final` nothing will be appended, so a last line
        without newline is complete.
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
        finished = (*self._close_finished(now_s, sealed), *self._gone)
        self._gone = []
        self._count_skipped(now_s)
        return PollResult(
            blocks=tuple(blocks),
            finished=finished,
            new_checkpoints=new_checkpoints,
            busy=bool(self._checks),
        )

    def _count_skipped(self, now_s: float) -> None:
        self.counts.binary = tuple(sorted(shown_name(one.path) for one in self._skipped.values()))
        failing = [one.shown_path for one in self._files.values() if now_s < one.retry_at_s]
        self.counts.unreadable = tuple(sorted({*failing, *self._failed.values()}))

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
        if not self._is_known(file, now_s):
            return None
        if self._copies.is_waiting(file):
            if not self._copies.resolve(file, now_s=math.inf if final else now_s):
                return None
            self._new_checkpoints.append(file.checkpoint(start=file.offset))
        start = file.offset
        is_last = final or self._is_finished(file, now_s)
        block = file.peek(final=is_last)
        self.counts.hole_bytes += file.hole_bytes
        file.hole_bytes = 0
        if block is not None and not file.records.is_decided:
            file.records.decide(*file.head(HEAD_BYTES))
        read = None if block is None else self._records(file, block, now_s, now_ns, final=is_last)
        if read is None:
            file.idle_since_s = now_s if file.idle_since_s is None else file.idle_since_s
            return None
        file.idle_since_s = None
        file.take(read.data)
        return RecordBlock(
            columns=read.columns,
            cost_bytes=cost_bytes(read.columns),
            checkpoints=(file.checkpoint(start=start),),
            may_wait=True,
        )

    def _records(
        self, file: FollowedFile, block: LineBlock, now_s: float, now_ns: UnixNs, *, final: bool
    ) -> ReadRecords | None:
        """Return the complete records at the start of a block, at least one; None if there is none.

        The last records of a file are complete once no line followed them for some time.
        """
        read = partial(
            file.records.read, shared=file.attributes(), offset=file.offset, arrived_ns=now_ns
        )
        found = read(block, complete=block.is_ended or (final and not block.has_more))
        if isinstance(found, OpenRecords) and block.has_more:
            block = file.peek(final=final, whole=True) or block
            complete = block.is_ended or (final and not block.has_more)
            found = read(block, complete=complete, only_first=True)
        if isinstance(found, OpenRecords):
            wait_s = LINE_WAIT_S if found.is_ordinary else GROUP_WAIT_S
            if block.has_more or file.waits_for_s(block, now_s) >= wait_s:
                found = read(block, complete=True)
        return None if isinstance(found, OpenRecords) else found

    def _is_known(self, file: FollowedFile, now_s: float) -> bool:
        """Return True if the bytes before the position are those that were read, or none are."""
        if file.source in self._checks and not self._settle(file, now_s):
            return False
        match file.change():
            case FileChange.NONE:
                return True
            case FileChange.REWRITTEN:
                self._rewind(file, now_s)
                return True
            case FileChange.DOUBTFUL:
                own = file.checkpoint(start=file.offset)
                comparison = PrefixComparison([own], file.read_at)
                self._checks[file.source] = _Check(comparison=comparison, own=own)
                return self._settle(file, now_s)

    def _postpone(self, file: FollowedFile, error: OSError, now_s: float) -> None:
        """Retry an unreadable file later, so that other files do not wait for it.

        The handle of a file on NFS may become stale: then it is opened again by its path.
        """
        _log.warning("file_unreadable", path=file.shown_path, reason=error.strerror)
        file.retry_at_s = now_s + UNREADABLE_S
        if error.errno == errno.ESTALE:
            check = self._checks.pop(file.source, None)
            known = file.checkpoint(start=file.offset) if check is None else check.own
            if known is not None:
                self._checkpoints[file.source] = known
            del self._files[file.source]
            with contextlib.suppress(OSError):
                file.close()

    def _rewind(self, file: FollowedFile, now_s: float) -> None:
        self._report_rewritten(file, file.checkpoint(start=file.offset), now_s)
        file.restart()
        self._new_checkpoints.append(file.checkpoint(start=0))

    def _report_rewritten(
        self, file: FollowedFile, checkpoint: FileCheckpoint, now_s: float
    ) -> None:
        _log.warning("file_rewritten", path=file.shown_path, read_bytes=checkpoint.offset)
        self.counts.rewritten += 1
        self.counts.resent_bytes += min(checkpoint.offset, file.status().st_size)
        self._copies.record_truncation(checkpoint, now_s=now_s)

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
            if now_s < file.retry_at_s or source in self._checks:
                continue
            if self._is_finished(file, now_s) and durable and not file.unread_bytes():
                _log.info("file_finished", path=file.shown_path, read_bytes=file.offset)
                file.close()
                del self._files[source]
                finished.append(source)
        return tuple(finished)

    # -- discovery -----------------------------------------------------------------------

    def _discover(self, now_s: float) -> None:
        self._is_first = self._discovered_s is None
        self._discovered_s = now_s
        found = self._found = dict(self._matching())
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
        if self._is_first:
            self._report_unmatched()
            self._find_renamed_while_stopped(now_s)
            self._from_end = self._from_end and bool(self._checks)

    def _report_unmatched(self) -> None:
        """Log each pattern that matches no file at the start: it may be mistyped, or a folder."""
        for _, pattern in self._patterns:
            matches = glob.iglob(pattern, recursive=True)  # noqa: PTH207 - patterns are absolute
            first = next(matches, None)
            if first is None:
                _log.warning("pattern_without_files", pattern=pattern)
            elif all(map(os.path.isdir, chain((first,), matches))):
                _log.warning("pattern_without_files", pattern=pattern, meant=f"{pattern}/*")

    def _matching(self) -> Iterator[tuple[str, _Seen]]:
        self._formats = {}
        for form, pattern in self._patterns:
            for path in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207 - patterns are absolute
                if any(fnmatch.fnmatch(path, each) for each in self._settings.exclude):
                    continue
                try:
                    status = os.stat(path)  # noqa: PTH116 - paths are strings throughout
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    self._formats.setdefault(path, form)
                    yield source_of(status), _seen(path, status)

    def _open(self, path: str, now_s: float, *, known: FileCheckpoint | None = None) -> bool:
        """Open a file, and begin to decide where it is read from.

        A file with a `known` checkpoint was found by its inode outside of the patterns, and is read
        only if it is the file of this checkpoint.
        """
        try:
            file = FollowedFile(path, limits=self._settings.block)
            form = self._format_of(path, known)
            file.records = RecordReader(form, zone=self._settings.zone, matches=self._matches)
        except OSError as error:
            _log.warning("file_unreadable", path=shown_name(path), reason=error.strerror)
            return False
        if file.source in self._files:  # renamed between the stat and the open
            file.close()
            return False
        try:
            if file.source not in self._checkpoints and file.looks_binary():
                self._skip(file)
                file.close()
                return False
            self._files[file.source] = file
            self._identify(file, now_s, only_known=known is not None)
        except OSError as error:
            _log.warning("file_unreadable", path=file.shown_path, reason=error.strerror)
            self._unreadable[file.source] = now_s + UNREADABLE_S
            self._failed[file.source] = file.shown_path
            check = self._checks.pop(file.source, None)
            if check is not None and check.own is not None:
                self._checkpoints[file.source] = check.own
            self._files.pop(file.source, None)
            file.close()
            return False
        self._failed.pop(file.source, None)
        self._skipped.pop(file.source, None)
        return file.source in self._files

    def _format_of(self, path: str, known: FileCheckpoint | None) -> Format:
        """Return the format of a file; that of its last path if no pattern matches it now."""
        if known is not None:
            path = parse_stored_path(known.path)
        if path in self._formats:
            return self._formats[path]
        matching = (form for form, pattern in self._patterns if fnmatch.fnmatch(path, pattern))
        return next(matching, self._settings.format)

    def _skip(self, file: FollowedFile) -> None:
        """Skip a binary file until it changes, because its inode may then be a log file's."""
        known = self._skipped.get(file.source)
        if known is None or known.path != file.path:
            _log.warning("binary_file_skipped", path=file.shown_path)
        self._skipped[file.source] = _seen(file.path, file.status())

    def _identify(self, file: FollowedFile, now_s: float, *, only_known: bool) -> None:
        """Resume a file that was not written to; begin a comparison for every other."""
        own = self._checkpoints.get(file.source)
        if own is not None and file.is_untouched(own):
            digest = tail_digest(own, file.read_at)
            if digest is not None:
                self._checkpoints.pop(file.source)
                file.seek(digest)
                return
        self._checkpoints.pop(file.source, None)
        others = [
            one.checkpoint(start=one.offset)
            for one in self._files.values()
            if one is not file and one.source not in self._checks
        ]
        groups: list[tuple[FileCheckpoint, ...]] = [
            tuple(one for one in group if own is None and may_be_copy(file, one))
            for group in (
                self._copies.truncated(now_s=now_s),
                others,
                self._absent(file) if self._is_first else (),
            )
        ]
        wanted = ([] if own is None else [own]) + [one for group in groups for one in group]
        self._checks[file.source] = _Check(
            comparison=PrefixComparison(wanted, file.read_at),
            own=own,
            truncated=groups[0],
            others=groups[1],
            gone=groups[2],
            only_known=only_known,
        )
        self._settle(file, now_s)

    def _absent(self, file: FollowedFile) -> Iterator[FileCheckpoint]:
        """Return the positions of files that no path has any longer."""
        for source, checkpoint in self._checkpoints.items():
            if source != file.source and source not in self._found and not _find(checkpoint):
                yield checkpoint

    def _settle(self, file: FollowedFile, now_s: float) -> bool:
        """Continue a comparison; return True once it is complete and the file can be read."""
        check = self._checks[file.source]
        if not check.comparison.step():
            return False
        del self._checks[file.source]
        own = () if check.own is None else (check.own,)
        found = best(check.comparison, (own, check.truncated, check.others, check.gone))
        if found is not None:
            number, checkpoint, digest = found
            file.seek(digest)
            if number == 0 or self._continue_copy(file, number, checkpoint, now_s):
                return True
        elif check.own is None:
            if self._from_end and self._is_first:
                file.seek_end()
        elif check.only_known:
            self._report_missing(check.own)
            self._files.pop(file.source)
            file.close()
            return False
        else:
            self._report_rewritten(file, check.own, now_s)
            file.restart()
        self._new_checkpoints.append(file.checkpoint(start=file.offset))
        return True

    def _continue_copy(
        self, file: FollowedFile, number: int, checkpoint: FileCheckpoint, now_s: float
    ) -> bool:
        """Return True if the file must wait, and no position is known until then."""
        _log.info("file_copy_detected", path=file.shown_path, known_bytes=file.offset)
        if number == _OTHERS:
            self._copies.wait(file, checkpoint, now_s=now_s)
            return True
        if number == _GONE:
            self._checkpoints.pop(checkpoint.source, None)
            self._gone.append(checkpoint.source)
        return False

    def _find_renamed_while_stopped(self, now_s: float) -> None:
        """Find files that were renamed out of the patterns while no agent was running.

        A link may have moved: then the file is in the directory that the link led to.
        """
        for checkpoint in list(self._checkpoints.values()):
            if checkpoint.source not in self._checkpoints:
                continue
            path = _find(checkpoint)
            if path and self._open(path, now_s, known=checkpoint):
                self._files[checkpoint.source].moved = True
            elif checkpoint.source in self._checkpoints:
                self._report_missing(checkpoint)

    def _report_missing(self, checkpoint: FileCheckpoint) -> None:
        known = parse_stored_path(checkpoint.path)
        _log.warning("file_missing", path=shown_name(known), read_bytes=checkpoint.offset)
        self.counts.missing += 1


def _find(checkpoint: FileCheckpoint) -> str:
    """Return a path to the inode of a checkpoint; empty if there is none."""
    names = [parse_stored_path(one) for one in (checkpoint.path, checkpoint.target) if one]
    folders = dict.fromkeys(Path(one).parent for one in names)
    return next(filter(None, (_find_inode(one, checkpoint.source) for one in folders)), "")


def _find_inode(folder: Path, source: str) -> str:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file() and source_of(entry.stat()) == source:
                    return entry.path
    except OSError:
        return ""
    return ""
