"""Read whole lines, in blocks, from followed files and from a pipe."""

import hashlib
import os
import select
from dataclasses import dataclass
from typing import Final

import numpy as np

from sluice_agent.batch_limits import BLOCK_READ_BYTES_MIN, BlockLimits
from sluice_agent.batching import RECORD_COST_BYTES, RecordBlock
from sluice_agent.columns import Newlines, find_newlines, logs_from_block
from sluice_agent.file_names import shown_name, stored_path
from sluice_agent.settings import Zone
from sluice_agent.spool_format import FileCheckpoint
from sluice_protocol.units import UnixNs
from sluice_protocol.utf8 import character_end

WAIT_S: Final = 0.1
LINE_BYTES_MAX: Final = 1024 * 1024
"""A longer line is split into records with the attribute `sluice.continues`."""
DEFAULT_LIMITS: Final = BlockLimits()
HEAD_BYTES: Final = 1024
TAIL_BYTES: Final = 256
_SPARE: Final = 32
"""The part of a block that the next read may be larger by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBlock:
    """Lines read from a file.

    Attributes:
        data: Whole lines; at the end of the file the newline of the last is optional.
        continues: The last line continues in the next block.
        newlines: The offsets of the newlines in `data`, if they are known.
    """

    data: bytes
    continues: bool = False
    newlines: Newlines | None = None


class FollowedFile:
    """An open file, the position reached in it, and the bytes that identify it after a restart.

    Attributes:
        path: The path at which it was last found.
        source: `<device>:<inode>`.
        offset: The first byte not read yet.
        idle_since_s: When it was first found without new lines; None while it has new lines.
        moved: Its path now names another file or none.
        retry_at_s: When it is read again after an error.
    """

    def __init__(self, path: str, *, offset: int = 0, limits: BlockLimits = DEFAULT_LIMITS) -> None:
        """Open the file at `offset`; a read returns one block.

        Raises:
            OSError: It cannot be opened.
        """
        self.path = path
        self._limits = limits
        self._read_bytes = limits.read_bytes
        self._number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.source = source_of(os.fstat(self._number))
        self.idle_since_s: float | None = None
        self.moved = False
        self.retry_at_s = 0.0
        self._seen: tuple[int, int] | None = None
        self.seek(offset)

    @property
    def record_cost_bytes(self) -> int:
        """The size of a record of this file in addition to its text."""
        return RECORD_COST_BYTES + len(self.shown_path.encode())

    @property
    def shown_path(self) -> str:
        """The path as text, for records and the log."""
        return shown_name(self.path)

    def seek(self, offset: int) -> None:
        """Set the offset, and read the bytes before it that identify the file."""
        self.offset = offset
        self._head = self._bytes(0, min(offset, HEAD_BYTES))
        self._anchor = self._bytes(max(0, offset - TAIL_BYTES), min(offset, TAIL_BYTES))

    def close(self) -> None:
        """Close the file."""
        os.close(self._number)

    def status(self) -> os.stat_result:
        """Return the status of the open file."""
        return os.fstat(self._number)

    def unread_bytes(self) -> int:
        """Return the number of bytes after the offset."""
        return max(0, self.status().st_size - self.offset)

    def was_rewritten(self) -> bool:
        """Return True if it was truncated or overwritten since the last call (copytruncate)."""
        now = self.status()
        seen = (now.st_size, now.st_mtime_ns)
        if seen == self._seen:
            return False
        self._seen = seen
        if now.st_size < self.offset:
            return True
        start = self.offset - len(self._anchor)
        return self._bytes(start, len(self._anchor)) != self._anchor

    def matches(self, checkpoint: FileCheckpoint) -> bool:
        """Return True if the file has the content that it had at a checkpoint."""
        if self.status().st_size < checkpoint.offset:
            return False
        head = _sha256(self._bytes(0, checkpoint.head_bytes))
        tail = _sha256(
            self._bytes(checkpoint.offset - checkpoint.tail_bytes, checkpoint.tail_bytes)
        )
        return head == checkpoint.head_sha256 and tail == checkpoint.tail_sha256

    def is_at(self, checkpoint: FileCheckpoint) -> bool:
        """Return True if the checkpoint is at the current position."""
        return checkpoint.offset == self.offset and checkpoint.tail_sha256 == _sha256(self._anchor)

    def looks_binary(self) -> bool:
        """Return True if the first KiB contains a zero byte."""
        return b"\0" in self._bytes(0, HEAD_BYTES)

    def read(self, *, final: bool) -> LineBlock | None:
        """Read the next lines; return None if there is no whole line yet.

        Args:
            final: Nothing will be appended: a last line without newline is complete.
        """
        data = self._bytes(self.offset, self._read_bytes)
        found = _short_lines(find_newlines(data))
        if len(found):
            newlines = _within(found, self.record_cost_bytes, self._limits)
            lines = data[: int(newlines[-1]) + 1]
            if len(newlines) < len(found):
                self._read_next(len(lines) + len(lines) // _SPARE)
            elif len(data) == self._read_bytes:
                self._read_next(2 * len(data))
            return self._advance(LineBlock(data=lines, newlines=newlines))
        if len(data) >= min(self._read_bytes, LINE_BYTES_MAX):
            self._read_next(2 * len(data))
            return self._read_long(final=final)
        return self._advance(LineBlock(data=data)) if final and data else None

    def _read_next(self, size_bytes: int) -> None:
        """Set the size of the next read: about the lines of one block, which then are read once."""
        least_bytes = min(BLOCK_READ_BYTES_MIN, self._limits.read_bytes)
        self._read_bytes = max(least_bytes, min(size_bytes, self._limits.read_bytes))

    def _read_long(self, *, final: bool) -> LineBlock | None:
        data = self._bytes(self.offset, LINE_BYTES_MAX)
        cut = data.find(b"\n") + 1
        if cut:
            return self._advance(LineBlock(data=data[:cut]))
        if len(data) == LINE_BYTES_MAX:
            return self._advance(LineBlock(data=data[: character_end(data)], continues=True))
        return self._advance(LineBlock(data=data)) if final else None

    def _advance(self, block: LineBlock) -> LineBlock:
        self.offset += len(block.data)
        if len(self._head) < HEAD_BYTES:
            self._head = (self._head + block.data[:HEAD_BYTES])[:HEAD_BYTES]
        self._anchor = (self._anchor + block.data[-TAIL_BYTES:])[-TAIL_BYTES:]
        return block

    def checkpoint(self, *, start: int) -> FileCheckpoint:
        """Return a checkpoint at the current offset; `start` is where its batch began."""
        return FileCheckpoint(
            source=self.source,
            path=stored_path(self.path),
            start=start,
            offset=self.offset,
            head_bytes=len(self._head),
            head_sha256=_sha256(self._head),
            tail_bytes=len(self._anchor),
            tail_sha256=_sha256(self._anchor),
        )

    def _bytes(self, offset: int, size_bytes: int) -> bytes:
        return os.pread(self._number, size_bytes, offset)


def _short_lines(newlines: Newlines) -> Newlines:
    """Return the newlines of the first lines up to the first that is too long for one record."""
    long = np.flatnonzero(np.diff(newlines, prepend=-1) > LINE_BYTES_MAX)
    return newlines[: int(long[0])] if len(long) else newlines


def _within(newlines: Newlines, each_bytes: int, limits: BlockLimits) -> Newlines:
    """Return the newlines of the first lines, at least one, that are within the limits.

    Args:
        newlines: The offset of each newline, at least one.
        each_bytes: The size of a record in addition to its text.
        limits: The limits of a block.
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


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeRead:
    """The result of one read from the pipe.

    Attributes:
        block: Whole lines, if there are any.
        ended: The writer closed the pipe and every line was returned.
    """

    block: RecordBlock | None
    ended: bool


class PipeInput:
    """Reads lines from a file descriptor until its end. A read blocks for at most `WAIT_S`."""

    def __init__(
        self, descriptor: int, *, zone: Zone = None, limits: BlockLimits = DEFAULT_LIMITS
    ) -> None:
        self._descriptor = descriptor
        self._zone = zone
        self._limits = limits
        self._rest = b""
        self._has_lines = False
        self._closed = False

    def read(self, *, now_ns: UnixNs) -> PipeRead:
        """Return lines that were left by the last read, or that arrived within `WAIT_S`."""
        if not self._has_lines and not self._closed:
            if not select.select([self._descriptor], [], [], WAIT_S)[0]:
                return PipeRead(block=None, ended=False)
            data = os.read(self._descriptor, min(self._limits.read_bytes, LINE_BYTES_MAX))
            self._rest += data
            self._closed = not data
        block = self._take(now_ns)
        return PipeRead(block=block, ended=self._closed and not self._rest)

    def _take(self, now_ns: UnixNs) -> RecordBlock | None:
        """Remove the next lines from what was read."""
        newlines = find_newlines(self._rest)
        found, size_bytes = len(newlines), 0
        if found:
            newlines = _within(newlines, RECORD_COST_BYTES, self._limits)
            size_bytes = int(newlines[-1]) + 1
        elif self._closed:
            size_bytes = len(self._rest)
        elif len(self._rest) >= LINE_BYTES_MAX:
            size_bytes = character_end(self._rest)
        text, self._rest = self._rest[:size_bytes], self._rest[size_bytes:]
        self._has_lines = found > len(newlines)
        continues = not found and not self._closed
        return self._block(text, now_ns, continues=continues) if text else None

    def _block(self, text: bytes, now_ns: UnixNs, *, continues: bool) -> RecordBlock:
        columns = logs_from_block(text, arrived_ns=now_ns, zone=self._zone, continues=continues)
        return RecordBlock(columns=columns, cost_bytes=len(text) + RECORD_COST_BYTES * len(columns))
