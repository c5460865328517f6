"""Index chunks: summaries of data files, with which a search for a text or an id skips files.

For each file a chunk contains its time range, its agents and a filter: one bitmap of its texts and
ids. Of texts it has the minimizers: of every 5 neighbouring 6-byte grams, the one with the smallest
hash. A to Z count as a to z, so one bitmap serves searches with and without regard to case. The
minimizers of a text of at least 10 bytes depend only on its own bytes. A file without one of them
cannot contain the text, neither as a word nor as part of a word. Shorter texts skip no file. Of ids
it has 4 hashes of each whole value, so a part of an id skips no file. Their grams would need twice
the bytes, and one of nine unknown ids would pass a file with a million ids.

| bytes | field |
|---|---|
| 4 | magic `LMI3` |
| 4 | length of the head, little-endian |
| … | head: JSON, canonical |
| … | the filters, one after another, in the order of the head |

The object is the zstd of these bytes. A chunk is a function of its files, and files never change,
so two writers produce the same chunk. Late data is another file and therefore another chunk.
Source: ADR 33.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from sluice_protocol.compression import ZstdError, compress_zstd, decompress_zstd
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.manifests import decode_record, encode_record

MAGIC: Final = b"LMI3"
GRAM_BYTES: Final = 6
WINDOW_GRAMS: Final = 5
TEXT_BYTES_MIN: Final = GRAM_BYTES + WINDOW_GRAMS - 1
"""A shorter text has no minimizer that depends only on its own bytes."""
AGENTS_MAX: Final = 256
"""For a file of more agents the chunk contains no list of agents."""
CHUNK_BYTES_MAX: Final = 256 * 1024 * 1024
ID_HASHES: Final = 4
"""A file without an id is read for one lookup in 256, with a bitmap that is a quarter full."""
FILL_MAX: Final = 0.25
"""A bitmap with a larger share of set bits is rebuilt at twice the size."""
_BITS_LOG2_MIN: Final = 13
_BITS_LOG2_MAX: Final = 30
_SLICE_BYTES: Final = 4 * 1024 * 1024
_HEAD: Final = struct.Struct("<4sI")
_GRAM_MASK: Final = np.uint64(2 ** (8 * GRAM_BYTES) - 1)
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)

Hashes = npt.NDArray[np.uint64]


class IndexedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The entry of one data file in a chunk.

    Times are Unix ns, None without any. `agents` are in order, None when there are more than
    `AGENTS_MAX`. The filter has two to the power of `bits_log2` bits.
    """

    path: str
    size_bytes: int
    records: int
    min_ts_ns: int | None
    max_ts_ns: int | None
    agents: tuple[str, ...] | None
    bits_log2: int

    @property
    def filter_bytes(self) -> int:
        """Length of the filter."""
        return (1 << self.bits_log2) // 8


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    schema: Literal["sluice.index.v1"] = "sluice.index.v1"
    table: str
    files: tuple[IndexedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileIndex:
    """A file's entry and its filter."""

    file: IndexedFile
    filter: bytes | memoryview

    def may_contain(self, text: bytes) -> bool:
        """Return True if the file may contain a text, in any case; False is certain."""
        return self._may_have(np.unique(minimizers(text)))

    def may_have(self, value: bytes) -> bool:
        """Return True if the file may have an id; False is certain."""
        return self._may_have(id_hashes([value]))

    def _may_have(self, found: Hashes) -> bool:
        bits = np.frombuffer(self.filter, np.uint8)
        places = _places(found, self.file.bits_log2)
        return bool(np.all(bits[places >> np.uint64(3)] >> (places & np.uint64(7)) & 1))


def id_hashes(values: Sequence[bytes]) -> Hashes:
    """Return the hashes of whole values, `ID_HASHES` of each."""
    found = b"".join([hashlib.blake2b(one, digest_size=8 * ID_HASHES).digest() for one in values])
    return np.frombuffer(found, "<u8").astype(np.uint64)


def minimizers(data: bytes | memoryview) -> Hashes:
    """Return the hashes of a text's minimizers, with repetitions; none for a short text."""
    count = len(data) - GRAM_BYTES + 1
    if count < WINDOW_GRAMS:
        return np.zeros(0, np.uint64)
    padded = bytes(data).lower() + bytes(8 - GRAM_BYTES)  # of ASCII only
    grams = np.ndarray((count,), "<u8", padded, strides=(1,)) & _GRAM_MASK
    grams *= _FACTOR
    grams ^= grams >> np.uint64(32)
    grams *= _FACTOR
    least = grams[: count - WINDOW_GRAMS + 1].copy()
    for shift in range(1, WINDOW_GRAMS):
        np.minimum(least, grams[shift : shift + len(least)], out=least)
    return least[np.concatenate(([True], least[1:] != least[:-1]))]


def _places(hashes: Hashes, bits_log2: int) -> Hashes:
    return (hashes * _FACTOR) >> np.uint64(64 - bits_log2)


def _slices(texts: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    """Cut texts so that every window is whole in one slice."""
    for text in texts:
        view = memoryview(text)
        for start in range(0, max(len(view), 1), _SLICE_BYTES):
            yield view[start : start + _SLICE_BYTES + TEXT_BYTES_MIN - 1]


def build_filter(
    texts: Sequence[bytes | memoryview], ids: Sequence[bytes] = ()
) -> tuple[int, bytes]:
    """Build the filter of texts and ids; return the binary logarithm of its bits, and the bitmap.

    The texts are concatenated bodies; no body is cut between two of them. The ids are distinct.
    """
    size_bytes = sum(len(text) for text in texts)
    own = id_hashes(ids)
    bits_log2 = max(_BITS_LOG2_MIN, (size_bytes // 8 + 2 * len(own)).bit_length())
    while True:
        bits = np.zeros(2**bits_log2, np.bool_)
        bits[_places(own, bits_log2)] = True
        for piece in _slices(texts):
            bits[_places(minimizers(piece), bits_log2)] = True
        if bits_log2 >= _BITS_LOG2_MAX or np.count_nonzero(bits) <= FILL_MAX * len(bits):
            return bits_log2, np.packbits(bits, bitorder="little").tobytes()
        bits_log2 += 1


def chunk_id(paths: Iterable[str]) -> str:
    """Return the id of the chunk over these files: a function of their names."""
    return hashlib.sha256("\n".join(sorted(paths)).encode()).hexdigest()[:32]


def encode_chunk(table: str, files: Sequence[FileIndex]) -> bytes:
    """Encode a chunk, with the files in the order of their paths."""
    ordered = sorted(files, key=lambda one: one.file.path)
    head = encode_record(_Head(table=table, files=tuple(one.file for one in ordered)))
    body = b"".join([_HEAD.pack(MAGIC, len(head)), head, *(one.filter for one in ordered)])
    return compress_zstd(body, level=3)


def decode_chunk(key: str, body: bytes) -> tuple[FileIndex, ...]:
    """Decode a chunk.

    Raises:
        InvalidRecord: The bytes are not a chunk, are cut short, or have another version than this
            build's. A search then reads the files of the chunk without pruning.
    """
    raw = _decompress(key, body)
    magic, size_bytes = _HEAD.unpack_from(raw)
    if magic != MAGIC:
        raise InvalidRecord(key, "index chunk does not begin with LMI3")
    at = _HEAD.size + size_bytes
    head = decode_record(key, raw[_HEAD.size : at], _Head)
    # Views: a copy of every filter costs as much as decompressing the chunk.
    view, found = memoryview(raw), []
    for file in head.files:
        found.append(FileIndex(file=file, filter=view[at : at + file.filter_bytes]))
        at += file.filter_bytes
    if at != len(raw):
        raise InvalidRecord(key, "index chunk does not end where its head states")
    return tuple(found)


def _decompress(key: str, body: bytes) -> bytes:
    try:
        raw = decompress_zstd(body, CHUNK_BYTES_MAX)
    except ZstdError as error:
        raise InvalidRecord(key, f"index chunk is not zstd: {error}") from error
    if len(raw) < _HEAD.size:
        raise InvalidRecord(key, "index chunk is shorter than its head")
    return raw
