"""Search every file below a folder for a text, in whatever coding the product stores it.

Frames, Parquet, zstd, gzip, zlib and Arrow streams are decoded completely, and what they contain is
searched again. The raw bytes are searched too: footers and statistics are not compressed.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from sluice_protocol.columns import EntryColumns
from sluice_protocol.compression import decompress_zstd
from sluice_protocol.frame import decode_frame
from sluice_protocol.ndjson import ndjson_from_columns

_BYTES_MAX = 64 << 20


def files_with(root: Path, text: str) -> list[str]:
    """Return the paths below `root` of the files that contain a text."""
    found = [one for one in sorted(root.rglob("*")) if one.is_file()]
    return [str(one.relative_to(root)) for one in found if contains(one.read_bytes(), text)]


def contains(body: bytes, text: str) -> bool:
    """Return True if some bytes, or what they decode to, contain a text."""
    wanted = (text.encode(), text.encode().hex().encode())
    return any(one in layer for layer in _layers(body, 0) for one in wanted)


def _layers(body: bytes, depth: int) -> Iterator[bytes]:
    yield body
    if depth == 4:
        return
    for inner in _decoded(body):
        yield from _layers(inner, depth + 1)


def _decoded(body: bytes) -> Iterator[bytes]:
    if body[:4] == b"LMB1":
        frame = decode_frame(body)
        yield "\n".join(ndjson_from_columns(frame.columns)).encode()
        yield str(frame.envelope.resource).encode()
        if isinstance(frame.columns, EntryColumns):  # base64 in the lines
            yield bytes(frame.columns.key.data)
            yield bytes(frame.columns.value.data)
    elif body[:4] == b"PAR1":
        yield from _tables(pq.read_table(io.BytesIO(body), partitioning=None))
    elif body[:4] == b"\x28\xb5\x2f\xfd":
        yield decompress_zstd(body, _BYTES_MAX)
    elif body[:4] == b"LMI3":
        size = int.from_bytes(body[4:8], "little")
        yield decompress_zstd(body[12 : 12 + size], _BYTES_MAX)
    elif body[:2] == b"\x1f\x8b":
        yield gzip.decompress(body)
    elif body[:4] == b"\xff\xff\xff\xff":
        yield from _tables(pa.ipc.open_stream(body).read_all())
    elif body[:1] == b"\x78":
        with suppress(zlib.error):
            yield zlib.decompress(body)


def _tables(rows: pa.Table) -> Iterator[bytes]:
    yield repr(rows.to_pylist()).encode("utf-8", "backslashreplace")
