"""Read whole lines, in blocks, from followed files and from a pipe."""

import errno
import math
import os
import re
import select
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from sluice_agent.inputs.columns import (
    PATH_ATTRIBUTE,
    Newlines,
    find_newlines,
)
from sluice_agent.inputs.containers import pod_attributes
from sluice_agent.inputs.file_identity import BLOCK_BYTES, PrefixDigest
from sluice_agent.inputs.file_names import shown_name, stored_path
from sluice_agent.inputs.formats import (
    HEAD_BYTES,
    LineBlock,
    OpenRecords,
    ReadRecords,
    RecordReader,
)
from sluice_agent.inputs.grouping import (
    GROUP_AGE_S,
    GROUP_BYTES_MAX,
    GROUP_WAIT_S,
    LINE_WAIT_S,
)
from sluice_agent.settings import BLOCK_READ_BYTES_MIN, BlockLimits, Zone
from sluice_agent.spool.batching import RECORD_COST_BYTES, RecordBlock, cost_bytes
from sluice_agent.spool.format import FileCheckpoint
from sluice_protocol.records import NO_ATTRIBUTES
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_protocol.utf8 import character_end

WAIT_S: Final = 0.1
LINE_BYTES_MAX: Final = 1024 * 1024
"""A longer line is split into records with the attribute `sluice.continues`."""
DEFAULT_LIMITS: Final = BlockLimits()
HOLE_BYTES_MIN: Final = 256
"""This many zero bytes inside a line are a hole, which ends the line; fewer belong to the line."""
BOM: Final = b"\xef\xbb\xbf"
_WIDE_BOMS: Final = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_WIDE_BOM: Final = b"\xff\xfe"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_GROUP_READ_BYTES: Final = GROUP_BYTES_MAX + LINE_BYTES_MAX + 1024
_HOLE: Final = bytes(HOLE_BYTES_MIN)
_HOLES: Final = re.compile(rb"\0{%d,}" % HOLE_BYTES_MIN)
_LINE_END_BYTES_MAX: Final = 2
_READ_BYTES: Final = 1024 * 1024
_SCAN_BYTES: Final = 64 * 1024 * 1024
"""Zero bytes that one poll reads to find their end; those of a sparse file are not read."""
_SAMPLE_BYTES: Final = 64 * 1024
_BINARY_SHARE: Final = 32
_TEXT: Final = bytes([7, 8, 9, 10, 11, 12, 13, 27, *range(32, 256)])
_SPARE: Final = 32
"""The share of a block by which the next read may be larger."""


class FileChange(Enum):
    """What a changed status of a file means for the bytes already read."""

    NONE = "none"
    REWRITTEN = "rewritten"
    DOUBTFUL = "doubtful"


class FollowedFile:
    """An open file, the position reached in it, and the digest of the bytes before it.

    Attributes:
        source: `<device>:<inode>`.
        idle_since_s: When it was first found without new lines; None while it has new lines.
        moved: Its path now names another file or none.
        hole_bytes: Zero bytes that were skipped since the caller last set this to 0.
    """

    def __init__(self, path: str, *, limits: BlockLimits = DEFAULT_LIMITS) -> None:
        """Open the file at its start; a read returns one block."""
        self.path = path
        self.target = os.path.realpath(path)
        self._limits = limits
        self._read_bytes = limits.read_bytes
        self._number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.source = source_of(os.fstat(self._number))
        self.idle_since_s: float | None = None
        self.moved = False
        self.retry_at_s = 0.0
        self.hole_bytes = 0
        self._seen: _Times | None = None
        self._digest = PrefixDigest()
        self._scanned = 0
        self._encoding: str | None = None
        self.records = RecordReader()
        self._open_end = -1
        self._open_since_s = 0.0
        self._opened_s = 0.0

    @property
    def record_cost_bytes(self) -> int:
        """The size of a record of this file in addition to its text."""
        return RECORD_COST_BYTES + sum(
            len(value.encode()) + 8 for value in self.attributes().values()
        )

    def attributes(self) -> dict[str, str]:
        """Return the attributes of each record: the path, and what it states of a pod."""
        path = self.shown_path
        return {PATH_ATTRIBUTE: path, **pod_attributes(path, shown_name(self.target))}

    @property
    def shown_path(self) -> str:
        """The path as text, for records and the log."""
        return shown_name(self.path)

    @property
    def offset(self) -> int:
        """The first byte not read yet."""
        return self._digest.offset

    def seek(self, digest: PrefixDigest) -> None:
        """Set the position to the end of the bytes that a digest covers."""
        self._digest = digest
        self._scanned = 0
        self._encoding = None

    def restart(self) -> None:
        """Set the position to the start of a file with other content."""
        self.seek(PrefixDigest())
        self.records.forget()

    def seek_end(self) -> None:
        """Set the position to the end of the file; only its last blocks are read."""
        size_bytes = self.status().st_size
        begin = max(0, size_bytes // BLOCK_BYTES - 1) * BLOCK_BYTES
        self.seek(PrefixDigest(begin=begin))
        self._digest.update(self.read_at(begin, size_bytes - begin))

    def advance(self, offset: int) -> None:
        """Skip bytes up to an offset, at most to the end of the file."""
        while self.offset < offset:
            data = self.read_at(self.offset, min(offset - self.offset, _READ_BYTES))
            if not data:
                return
            self._digest.update(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._number)

    def status(self) -> os.stat_result:
        """Return the status of the open file, whatever its path names now."""
        return os.fstat(self._number)

    def unread_bytes(self) -> int:
        """Return the number of bytes after the offset; half a unit of UTF-16 is none."""
        left = max(0, self.status().st_size - self.offset)
        return left & ~1 if self._wide else left

    def change(self) -> FileChange:
        """Return what changed since the last call; the last blocks before the position are read.

        A file that was modified and did not grow is doubtful: the bytes before these blocks may
        differ.
        """
        now = _times(self.status())
        before, self._seen = self._seen, now
        if now == before:
            return FileChange.NONE
        if now.size_bytes < self.offset or self._tail_changed():
            return FileChange.REWRITTEN
        if before is None or now.size_bytes > before.size_bytes:
            return FileChange.NONE
        unread = self._digest.base > self._digest.begin
        modified = now.modified_ns != before.modified_ns or now.size_bytes < before.size_bytes
        return FileChange.DOUBTFUL if unread and modified else FileChange.NONE

    def _tail_changed(self) -> bool:
        digest = self._digest.continued_from_base()
        digest.update(self.read_at(digest.base, self.offset - digest.base))
        return digest.digest() != self._digest.digest()

    def is_untouched(self, checkpoint: FileCheckpoint) -> bool:
        """Return True if nothing was written to the file since a checkpoint was made."""
        now = _times(self.status())
        stated = (checkpoint.size_bytes, checkpoint.modified_ns, checkpoint.changed_ns)
        if self.source != checkpoint.source or stated != now:
            return False
        self._seen = now
        return True

    def is_at(self, checkpoint: FileCheckpoint) -> bool:
        """Return True if the checkpoint is at the current position."""
        return checkpoint.offset == self.offset and checkpoint.sha256 == self._digest.digest().hex()

    def looks_binary(self) -> bool:
        """Return True if the first 64 KiB contain many bytes that text does not.

        Holes before and between them do not count.
        """
        sample, _ = self.head(_SAMPLE_BYTES)
        sample = _HOLES.sub(b"", sample.rstrip(b"\0"))
        return len(sample.translate(None, _TEXT)) * _BINARY_SHARE > len(sample)

    def head(self, size_bytes: int) -> tuple[bytes, int]:
        """Return the first bytes of the file in UTF-8, without a hole, and where they begin."""
        if self._wide:
            data = self.read_at(len(_WIDE_BOM), size_bytes & ~1)
            return data.decode(self._wide, errors="replace").encode(), len(_WIDE_BOM)
        start = self._hole_end(0) or 0
        data = self.read_at(start, size_bytes)
        return (data[len(BOM) :], start + len(BOM)) if data.startswith(BOM) else (data, start)

    @property
    def _wide(self) -> str:
        """The encoding of a file that begins with a byte order mark of UTF-16; else empty."""
        if self._encoding is None:
            begin = self.read_at(0, len(_WIDE_BOM))
            if len(begin) < len(_WIDE_BOM):
                return ""
            self._encoding = _WIDE_BOMS.get(begin, "")
        return self._encoding

    def peek(self, *, final: bool, whole: bool = False) -> LineBlock | None:
        """Return the next lines; None if there is no whole line yet. `take` moves the position.

        With `final` nothing will be appended, so a last line without newline is complete. With
        `whole` the block has room for a group of the largest size and the line after it.
        """
        size_bytes = max(self._read_bytes, _GROUP_READ_BYTES) if whole else self._read_bytes
        data = self._read_text(size_bytes)
        if data.startswith(b"\0") and not self._wide:
            return self.peek(final=final, whole=whole) if self._skip_hole() else None
        is_full = self.unread_bytes() > size_bytes if self._wide else len(data) >= size_bytes
        hole = -1 if self._wide else _find_hole(data)
        before_data = hole >= 0 and self._hole_end(self.offset + hole) is not None
        if hole >= 0:
            data = data[:hole]
        every = find_newlines(data)
        found = _short_lines(every)
        if len(found):
            block = self._lines(data, found, is_full=is_full, whole=whole)
            rest = len(data) - int(found[-1]) - 1
            is_ended = len(found) < len(every) or rest > LINE_BYTES_MAX or before_data
            return replace(block, is_ended=is_ended and len(block.data) == int(found[-1]) + 1)
        if 0 <= hole <= LINE_BYTES_MAX:
            return LineBlock(data=data, is_ended=True) if final or before_data else None
        if is_full or len(data) >= LINE_BYTES_MAX:
            self._read_next(2 * len(data))
            return self._long_line(final=final)
        return LineBlock(data=data) if final and data else None

    def take(self, data: bytes) -> None:
        """Move the position behind the bytes at the start of a block."""
        if self._wide:  # as in the file: half of a pair was read as U+FFFD
            data = self.read_at(self.offset, len(data.decode().encode(self._wide)))
        self._digest.update(data)
        self._open_end = -1

    def waits_for_s(self, block: LineBlock, now_s: float) -> float:
        """Return for how long the lines of a block have been the last of the file, seconds."""
        end = self.offset + len(block.data)
        if self._open_end < 0:
            self._opened_s = now_s
        if end != self._open_end:
            self._open_end, self._open_since_s = end, now_s
        if now_s - self._opened_s >= GROUP_AGE_S:  # it still grows
            return math.inf
        return now_s - self._open_since_s

    def _read_text(self, size_bytes: int) -> bytes:
        """Return the next bytes in UTF-8, behind a byte order mark at the start of the file."""
        if self._wide:
            if self.offset == 0:
                self._digest.update(self.read_at(0, len(_WIDE_BOM)))
            data = self.read_at(self.offset, max(2, size_bytes & ~1))
            return _decode_wide(data, self._wide)
        data = self.read_at(self.offset, size_bytes)
        if self.offset == 0 and data.startswith(BOM):
            self._digest.update(BOM)  # it only states that the text is UTF-8
            data = data[len(BOM) :]
        return data

    def _lines(self, data: bytes, found: Newlines, *, is_full: bool, whole: bool) -> LineBlock:
        newlines = found if whole else _within(found, self.record_cost_bytes, self._limits)
        is_cut = len(newlines) < len(found)
        # The line after them shows that the last of them is complete.
        newlines = found[: len(newlines) + is_cut]
        lines = data[: int(newlines[-1]) + 1]
        if is_cut:
            self._read_next(len(lines) + len(lines) // _SPARE)
        elif is_full and not whole:
            self._read_next(2 * len(data))
        return LineBlock(data=lines, newlines=newlines, has_more=is_cut or is_full)

    def _skip_hole(self) -> bool:
        """Skip zero bytes at the start of a line; return False if no other byte follows them yet.

        A program may still write its lines there: some allocate their file before.
        """
        end = self._hole_end(self.offset)
        if end is None:
            return False
        self.hole_bytes += end - self.offset
        while self.offset < end:
            self._digest.update(bytes(min(end - self.offset, _READ_BYTES)))
        return True

    def _hole_end(self, start: int) -> int | None:
        """Return where the zero bytes from `start` on end; None if that is not known yet."""
        at = max(start, self._scanned)
        limit = at + _SCAN_BYTES
        while at < limit:
            try:
                at = os.lseek(self._number, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # no data follows
                    return None
                if error.errno != errno.EINVAL:
                    raise
            data = self.read_at(at, _READ_BYTES)
            rest = data.lstrip(b"\0")
            if rest:
                self._scanned = 0
                return at + len(data) - len(rest)
            if not data:
                return None
            at += len(data)
        self._scanned = at
        return None

    def _read_next(self, size_bytes: int) -> None:
        """Set the size of the next read: about the lines of one block, which then are read once."""
        least_bytes = min(BLOCK_READ_BYTES_MIN, self._limits.read_bytes)
        self._read_bytes = max(least_bytes, min(size_bytes, self._limits.read_bytes))

    def _long_line(self, *, final: bool) -> LineBlock | None:
        size_bytes = LINE_BYTES_MAX + _LINE_END_BYTES_MAX
        data = self._read_text(2 * size_bytes if self._wide else size_bytes)[:size_bytes]
        cut = data.find(b"\n") + 1
        if cut and len(data[:cut].removesuffix(b"\n").removesuffix(b"\r")) <= LINE_BYTES_MAX:
            return LineBlock(data=data[:cut], has_more=True)
        if len(data) == size_bytes:
            end = character_end(data[:LINE_BYTES_MAX])
            return LineBlock(data=data[:end], continues=True)
        return LineBlock(data=data) if final else None

    def checkpoint(self, *, start: int) -> FileCheckpoint:
        """Return a checkpoint at the current offset; `start` is where its batch began."""
        times = self._seen or _Times(-1, 0, 0)
        return FileCheckpoint(
            source=self.source,
            path=stored_path(self.path),
            start=start,
            offset=self.offset,
            begin=self._digest.begin,
            base=self._digest.base,
            base_sha256=self._digest.base_digest().hex(),
            sha256=self._digest.digest().hex(),
            size_bytes=times.size_bytes,
            modified_ns=times.modified_ns,
            changed_ns=times.changed_ns,
            target="" if self.target == self.path else stored_path(self.target),
        )

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Return at most `size_bytes` bytes from an offset on."""
        return os.pread(self._number, size_bytes, offset)


class _Times(NamedTuple):
    size_bytes: int
    modified_ns: int
    changed_ns: int


def _times(status: os.stat_result) -> _Times:
    return _Times(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _decode_wide(data: bytes, encoding: str) -> bytes:
    """Return UTF-16 as UTF-8; half of a pair becomes U+FFFD, which also has two bytes."""
    text = data[: len(data) & ~1].decode(encoding, errors="surrogatepass")
    return _SURROGATE.sub("\ufffd", text).encode()


def _find_hole(data: bytes) -> int:
    """Return where the first hole begins: zero bytes at the start of a line, or many; else -1."""
    if b"\0" not in data:
        return -1
    found = (data.find(_HOLE), data.find(b"\n\0") + 1 or -1)
    return min((one for one in found if one >= 0), default=-1)


def _short_lines(newlines: Newlines) -> Newlines:
    """Return the newlines of the first lines up to the first that is too long for one record."""
    long = np.flatnonzero(np.diff(newlines, prepend=-1) > LINE_BYTES_MAX + 1)
    return newlines[: int(long[0])] if len(long) else newlines


def _within(newlines: Newlines, each_bytes: int, limits: BlockLimits) -> Newlines:
    """Return the newlines of the first lines, at least one, that are within the limits.

    `each_bytes` is the size of a record in addition to its text.
    """
    newlines = newlines[: max(1, limits.records_max)]
    count = len(newlines)
    if int(newlines[-1]) + 1 + each_bytes * count <= limits.cost_bytes_max:
        return newlines
    costs = newlines + 1 + each_bytes * np.arange(1, count + 1)
    return newlines[: max(1, int(np.searchsorted(costs, limits.cost_bytes_max, side="right")))]


def source_of(status: os.stat_result) -> str:
    """Return an identifier that a rename does not change."""
    return f"{status.st_dev}:{status.st_ino}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeRead:
    """One read from the pipe; `ended` if the writer closed it and every line was returned."""

    block: RecordBlock | None
    ended: bool


class PipeInput:
    """Reads records from a file descriptor until its end. A read blocks for at most `WAIT_S`."""

    def __init__(
        self, descriptor: int, *, zone: Zone = None, limits: BlockLimits = DEFAULT_LIMITS
    ) -> None:
        self._descriptor = descriptor
        self._limits = limits
        self._records = RecordReader(zone=zone)
        self._head = b""
        self._offset = 0
        self._rest = b""
        self._has_records = False
        self._closed = False
        self._is_start = True
        self._idle_s = 0.0
        self._opened_ns: UnixNs | None = None

    def read(self, *, now_ns: UnixNs) -> PipeRead:
        """Return records that were left by the last read, or that arrived within `WAIT_S`."""
        if not self._has_records and not self._closed:
            self._receive()
        block = self._take(now_ns)
        return PipeRead(block=block, ended=self._closed and not self._rest)

    def read_rest(self, *, now_ns: UnixNs) -> RecordBlock | None:
        """Return the lines that wait for others, when nothing more will be read."""
        self._closed = True
        return self._take(now_ns)

    def _receive(self) -> None:
        if not select.select([self._descriptor], [], [], WAIT_S)[0]:
            self._idle_s += WAIT_S
            return
        data = os.read(self._descriptor, min(self._limits.read_bytes, LINE_BYTES_MAX))
        self._idle_s = 0.0
        self._rest += data
        self._closed = not data
        if self._is_start and (self._closed or len(self._rest) >= len(BOM)):
            self._rest, self._is_start = self._rest.removeprefix(BOM), False
            data = self._rest
        if not self._records.is_decided and not self._is_start:
            self._head = (self._head + data)[:HEAD_BYTES]
            self._records.decide(self._head)

    def _take(self, now_ns: UnixNs) -> RecordBlock | None:
        """Remove the next records from what was read."""
        block = self._lines()
        found = None if block is None else self._read(block, now_ns)
        if not isinstance(found, ReadRecords):
            self._has_records = False
            return None
        self._rest = self._rest[len(found.data) :]
        self._offset += len(found.data)
        self._has_records = block is not None and block.has_more
        return RecordBlock(columns=found.columns, cost_bytes=cost_bytes(found.columns))

    def _lines(self) -> LineBlock | None:
        """Return the next lines as a block; None if there is no whole line yet."""
        every = find_newlines(self._rest)
        if not len(every):
            if self._closed:
                return LineBlock(data=self._rest) if self._rest else None
            if len(self._rest) < LINE_BYTES_MAX + _LINE_END_BYTES_MAX:
                return None
            return LineBlock(
                data=self._rest[: character_end(self._rest[:LINE_BYTES_MAX])], continues=True
            )
        newlines = _within(every, RECORD_COST_BYTES, self._limits)
        if len(newlines) < len(every):
            newlines = every[: len(newlines) + 1]
            return LineBlock(
                data=self._rest[: int(newlines[-1]) + 1], newlines=newlines, has_more=True
            )
        end = len(self._rest) if self._closed else int(every[-1]) + 1
        is_ended = len(self._rest) - end > LINE_BYTES_MAX
        return LineBlock(data=self._rest[:end], newlines=every, is_ended=is_ended)

    def _read(self, block: LineBlock, now_ns: UnixNs) -> ReadRecords | OpenRecords:
        read = partial(
            self._records.read, shared=NO_ATTRIBUTES, offset=self._offset, arrived_ns=now_ns
        )
        found = read(block, complete=block.is_ended or (self._closed and not block.has_more))
        if isinstance(found, OpenRecords) and block.has_more:
            found = read(LineBlock(data=self._rest), complete=self._closed, only_first=True)
        if isinstance(found, OpenRecords):
            if self._opened_ns is None:
                self._opened_ns = now_ns
            wait_s = LINE_WAIT_S if found.is_ordinary else GROUP_WAIT_S
            is_old = now_ns - self._opened_ns >= GROUP_AGE_S * NS_PER_S
            if self._idle_s >= wait_s or is_old or len(self._rest) > _GROUP_READ_BYTES:
                found = read(block, complete=True)
        if isinstance(found, ReadRecords):
            self._opened_ns = None
        return found
