"""The input of log files: finds them by patterns, follows them through rotation, never loses place.

How each rotation is met:
- *rename* (`app.log` to `app.log.1`, a new `app.log`): the open file is read to its end, then
  closed; after a restart its inode is looked for beside the path under which it was last seen.
- *copytruncate*: the file shrank, or the bytes before the place do not stand there any more; it is
  read from its start. What was written between the last read and the truncation is in the copy
  alone; where the patterns match the copy, it is read from there on (`copies.py`).
- *inode used again*: the first and the last bytes read are compared; another file starts at 0.

Source: ADR 0032.
"""

import fnmatch
import glob
import math
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from sluice_agent.copies import Copies
from sluice_agent.entry import FileMark
from sluice_agent.lines import logs_from_block
from sluice_agent.parts import RECORD_COST_BYTES, Part
from sluice_agent.tail import Tail, source_of
from sluice_agent.timestamps import Zone
from sluice_protocol.units import UnixNs

POLL_BYTES_MAX: Final = 4 * 1024 * 1024
DISCOVER_S: Final = 1.0
_LOG: Final = structlog.get_logger("sluice.agent.files")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Which files are followed.

    Attributes:
        patterns: Glob patterns, `**` too.
        exclude: fnmatch patterns of paths to leave out.
        from_end: Files that stand there when the spool is new are read from their end.
        zone: Zone of timestamps that name none; none is the machine's own.
        rotated_wait_s: A file whose path names another one is closed after so long without news.
    """

    patterns: tuple[str, ...]
    exclude: tuple[str, ...] = ("*.gz", "*.xz", "*.bz2", "*.zst", "*.zip")
    from_end: bool = False
    zone: Zone = None
    rotated_wait_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """What one look at the files gave.

    Attributes:
        parts: Records, in the order of their files.
        gone: Sources that are read and sealed to their end and that nobody will ask for again.
        placed: Marks of files that are read from their end on, to be kept before anything else.
    """

    parts: tuple[Part, ...]
    gone: tuple[str, ...]
    placed: tuple[FileMark, ...] = ()


class FileInput:
    """Follows files. Its methods block and are called by one thread at a time."""

    def __init__(self, settings: FileSettings, marks: Mapping[str, FileMark]) -> None:
        """Takes up every file where the spool left it."""
        self._settings = settings
        self._marks = dict(marks)
        self._tails: dict[str, Tail] = {}
        self._skipped: set[str] = set()
        self._discovered_s: float | None = None
        self._from_end = settings.from_end and not marks
        self._turn = 0
        self._placed: list[FileMark] = []
        self._copies = Copies()

    def close(self) -> None:
        """Closes every file."""
        for tail in self._tails.values():
            tail.close()
        self._tails.clear()

    def poll(
        self, *, now_s: float, now_ns: UnixNs, sealed: Mapping[str, FileMark], final: bool = False
    ) -> Polled:
        """Looks once at every file and reads at most a few MiB.

        Args:
            now_s: The monotonic clock.
            now_ns: The wall clock, the time of lines without one.
            sealed: How far each file is durable.
            final: Nothing will be appended any more: last lines without newline count too.
        """
        if self._discovered_s is None or now_s - self._discovered_s >= DISCOVER_S:
            self._discover(now_s)
        parts: list[Part] = []
        taken = 0
        for tail in self._in_turn():
            if taken >= POLL_BYTES_MAX:
                break
            part = self._read(tail, now_s=now_s, now_ns=now_ns, final=final)
            if part is not None:
                parts.append(part)
                taken += part.cost_bytes
        placed, self._placed = tuple(self._placed), []
        gone = self._close_finished(now_s, sealed)
        return Polled(parts=tuple(parts), gone=gone, placed=placed)

    def _in_turn(self) -> Iterator[Tail]:
        """Begins with another file each time, so that a busy one starves nobody."""
        tails = list(self._tails.values())
        self._turn += 1
        start = self._turn % len(tails) if tails else 0
        yield from tails[start:] + tails[:start]

    # -- reading -------------------------------------------------------------------------

    def _read(self, tail: Tail, *, now_s: float, now_ns: UnixNs, final: bool) -> Part | None:
        if tail.was_rewritten():
            self._rewind(tail, now_s)
        if self._copies.is_held(tail):
            if not self._copies.release(tail, now_s=math.inf if final else now_s):
                return None
            self._placed.append(tail.mark(start=tail.offset))
        start = tail.offset
        block = tail.read(final=final or self._is_finished(tail, now_s))
        if block is None:
            tail.idle_since_s = now_s if tail.idle_since_s is None else tail.idle_since_s
            return None
        tail.idle_since_s = None
        columns = logs_from_block(
            block.data,
            arrived_ns=now_ns,
            zone=self._settings.zone,
            path=tail.path,
            continues=block.continues,
        )
        each = RECORD_COST_BYTES + len(tail.path)
        return Part(
            columns=columns,
            cost_bytes=len(block.data) + each * len(columns),
            marks=(tail.mark(start=start),),
        )

    def _rewind(self, tail: Tail, now_s: float) -> None:
        _LOG.warning("file_rewritten", path=tail.path, read_bytes=tail.offset)
        self._copies.truncated(tail.mark(start=tail.offset), now_s=now_s)
        tail.seek(0)

    def _is_finished(self, tail: Tail, now_s: float) -> bool:
        idle_s = tail.idle_since_s
        waited = idle_s is not None and now_s - idle_s >= self._settings.rotated_wait_s
        return tail.moved and waited

    def _close_finished(self, now_s: float, sealed: Mapping[str, FileMark]) -> tuple[str, ...]:
        """Lets go of rotated files, but only once their last line is durable in the spool."""
        gone = []
        for source, tail in list(self._tails.items()):
            mark = sealed.get(source)
            durable = tail.offset == 0 or (mark is not None and tail.stands_at(mark))
            if self._is_finished(tail, now_s) and durable and not tail.unread_bytes():
                _LOG.info("file_finished", path=tail.path, read_bytes=tail.offset)
                tail.close()
                del self._tails[source]
                gone.append(source)
        return tuple(gone)

    # -- finding -------------------------------------------------------------------------

    def _discover(self, now_s: float) -> None:
        first = self._discovered_s is None
        self._discovered_s = now_s
        found = dict(self._matching())
        for source, path in sorted(found.items(), key=lambda item: item[0] not in self._marks):
            if source in self._tails:
                self._tails[source].path = path
            elif source not in self._skipped:
                self._open(path, now_s)
        for source, tail in self._tails.items():
            tail.moved = source not in found
        if first:
            self._find_rotated_while_away(now_s)
            self._from_end = False

    def _matching(self) -> Iterator[tuple[str, str]]:
        for pattern in self._settings.patterns:
            for path in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207 - absolute ones
                if any(fnmatch.fnmatch(path, each) for each in self._settings.exclude):
                    continue
                try:
                    status = os.stat(path)  # noqa: PTH116 - the path is a text all the way
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield source_of(status), path

    def _open(self, path: str, now_s: float) -> Tail | None:
        try:
            tail = Tail(path)
        except OSError as error:
            _LOG.warning("file_unreadable", path=path, reason=error.strerror)
            return None
        if tail.source in self._tails:  # it was renamed between the stat and the open
            tail.close()
            return None
        if tail.source not in self._marks and tail.looks_binary():
            _LOG.warning("file_looks_binary", path=path)
            self._skipped.add(tail.source)
            tail.close()
            return None
        self._place(tail, now_s)
        self._tails[tail.source] = tail
        return tail

    def _place(self, tail: Tail, now_s: float) -> None:
        """Finds where to begin, and has it kept: a file once seen is found after a restart."""
        mark = self._marks.pop(tail.source, None)
        if mark is not None and tail.knows(mark):
            tail.seek(mark.offset)
            return
        if mark is not None:
            _LOG.warning("file_rewritten", path=tail.path, read_bytes=mark.offset)
            self._copies.truncated(mark, now_s=now_s)
        elif self._copies.place(tail, self._tails.values(), now_s=now_s):
            _LOG.info("file_is_a_copy", path=tail.path, known_bytes=tail.offset)
            if self._copies.is_held(tail):
                return  # nothing to keep until it is known what it is
        elif self._from_end:
            tail.seek(tail.unread_bytes())
        self._placed.append(tail.mark(start=tail.offset))

    def _find_rotated_while_away(self, now_s: float) -> None:
        """Looks for files that were renamed out of the patterns while no agent ran."""
        for mark in list(self._marks.values()):
            path = _find_inode(Path(mark.path).parent, mark.source)
            tail = self._open(path, now_s) if path else None
            if tail is None:
                _LOG.warning("file_gone", path=mark.path, read_bytes=mark.offset)
            else:
                tail.moved = True


def _find_inode(folder: Path, source: str) -> str:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file() and source_of(entry.stat()) == source:
                    return entry.path
    except OSError:
        return ""
    return ""
