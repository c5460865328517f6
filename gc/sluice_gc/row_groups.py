"""Rows of one evidence file, read by row group: what a page shows needs a part of the file only.

A file is opened by its last bytes. Then one row group at a time is read, as one range of bytes. A
part has no sha256. Instead, the number of rows is compared with the record of the file, and pages
that have a checksum are verified. `read_table` verifies a whole file.
"""

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sluice_gc.evidence_files import EvidenceFile
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore

_TAIL_BYTES: Final = 64 << 10
_END: Final = 8
"""Bytes of the length of the footer and of the magic, at the end of a file."""
_DAMAGED: Final = "the file is damaged or of another version: make a new plan"


class RowGroups:
    """An opened evidence file."""

    def __init__(self, store: ObjectStore, key: ObjectKey, size_bytes: int, tail: bytes) -> None:
        """Decode the footer.

        Args:
            store: The store.
            key: The key of the file.
            size_bytes: Its length.
            tail: Its last bytes, with the whole footer.

        Raises:
            InvalidRecord: The footer is damaged.
        """
        self._store = store
        self._key = key
        self._size_bytes = size_bytes
        self._tail = {size_bytes - len(tail): tail}
        try:
            self._metadata = self._open({}).metadata
            self.schema = self._metadata.schema.to_arrow_schema()
        except (ValueError, OSError, pa.ArrowException) as error:
            raise InvalidRecord(key, f"{_DAMAGED}: {error}") from error

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return int(self._metadata.num_rows)

    async def rows(self, first: int) -> AsyncIterator[tuple[int, pa.Table]]:
        """Yield the row groups that contain row `first` or a later one, each with its first row.

        Raises:
            InvalidRecord: A row group is damaged, or the file disappeared.
            StoreError: The store is unreachable or refused a request.
        """
        at = 0
        for group in range(self._metadata.num_row_groups):
            count = self._metadata.row_group(group).num_rows
            if at + count > first:
                yield at, await self._read(group)
            at += count

    async def rows_between(self, low: bytes, high: bytes) -> AsyncIterator[pa.Table]:
        """Yield the row groups that may contain a digest from `low` to `high`, both inclusive.

        Raises:
            InvalidRecord: A row group is damaged, or the file disappeared.
            StoreError: The store is unreachable or refused a request.
        """
        for group in range(self._metadata.num_row_groups):
            found = self._metadata.row_group(group).column(0).statistics
            if found is None or not found.has_min_max or (found.min <= high and found.max >= low):
                yield await self._read(group)

    async def _read(self, group: int) -> pa.Table:
        columns = self._metadata.row_group(group)
        starts, ends = [], []
        for at in range(columns.num_columns):
            column = columns.column(at)
            start = column.dictionary_page_offset or column.data_page_offset
            starts.append(start)
            ends.append(start + column.total_compressed_size)
        read = await self._store.get(self._key, first=min(starts), last=max(ends) - 1)
        if not isinstance(read, Found):
            raise InvalidRecord(self._key, "the file was removed meanwhile: reload the list")
        try:
            return await asyncio.to_thread(self._decode, {min(starts): read.body}, group)
        except (ValueError, OSError, pa.ArrowException) as error:
            raise InvalidRecord(self._key, f"{_DAMAGED}: {error}") from error

    def _decode(self, part: dict[int, bytes], group: int) -> pa.Table:
        return self._open(part).read_row_group(group, use_threads=False)

    def _open(self, part: dict[int, bytes]) -> pq.ParquetFile:
        parts = _Parts(self._size_bytes, part | self._tail)
        return pq.ParquetFile(pa.PythonFile(parts, mode="r"), page_checksum_verification=True)


async def open_row_groups(
    store: ObjectStore, file: EvidenceFile, schema: pa.Schema
) -> RowGroups | None:
    """Open an evidence file by its last bytes; None if it does not exist.

    Raises:
        InvalidRecord: It is damaged, has other columns, or is not the file of the record.
        StoreError: The store is unreachable or refused a request.
    """
    opened = await open_listed(store, file.key, schema)
    if opened is not None and opened.row_count != file.rows:
        reason = f"{_DAMAGED}: rows={opened.row_count} expected={file.rows}"
        raise InvalidRecord(file.key, reason)
    return opened


async def open_listed(store: ObjectStore, key: ObjectKey, schema: pa.Schema) -> RowGroups | None:
    """Open a file that no record describes, as `open_row_groups`.

    Raises:
        InvalidRecord: It is damaged or has other columns.
        StoreError: The store is unreachable or refused a request.
    """
    info = await store.head(key)
    if not isinstance(info, ObjectInfo):
        return None
    size_bytes = info.size_bytes
    tail = await _read_tail(store, key, size_bytes, _TAIL_BYTES)
    footer = int.from_bytes(tail[-_END:-4], "little") + _END
    if len(tail) < footer <= size_bytes:
        tail = await _read_tail(store, key, size_bytes, footer)
    opened = RowGroups(store, key, size_bytes, tail)
    if not opened.schema.equals(schema):
        raise InvalidRecord(key, f"{_DAMAGED}: wrong columns, columns={opened.schema.names}")
    return opened


async def _read_tail(store: ObjectStore, key: ObjectKey, size_bytes: int, length: int) -> bytes:
    if not size_bytes:
        raise InvalidRecord(key, f"{_DAMAGED}: it is empty")
    read = await store.get(key, first=max(0, size_bytes - length), last=size_bytes - 1)
    return read.body if isinstance(read, Found) else b""


class _Parts(io.RawIOBase):
    """A file of which only some parts are present; a read of any other byte fails."""

    def __init__(self, size: int, parts: dict[int, bytes]) -> None:
        super().__init__()
        self._size = size
        self._parts = parts
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> Any:  # noqa: ANN401 - the type of the base class
        end = self._size if size < 0 else min(self._at + size, self._size)
        for start, part in self._parts.items():
            if start <= self._at and end <= start + len(part):
                found = part[self._at - start : end - start]
                self._at = end
                return found
        raise OSError(f"bytes {self._at} to {end} are outside of what the footer describes")
