"""Index chunks: filters of row groups, with which a search for a text or a value skips most.

A chunk describes some data files. Each of their row groups has two filters:

- `texts`: every 6-byte gram of the searched texts, folded to lower case. A row group without one of
  the grams of a text cannot contain the text, with or without regard to case. Shorter texts skip
  nothing.
- `values`: `VALUE_HASHES` hashes of each distinct value of an indexed field, and of an attribute of
  the record or its resource, together with the field or label. A part of a value skips nothing.

A term, which is a gram or a hash, is a number of 23 bits. The filters of row groups that need about
the same number of bits are one block. A block is a matrix: its row `term * bits >> 23` has one bit
for each of its row groups, set if that row group has the term. A search therefore reads one page
for each term that it looks up, and not the chunk.

| bytes | field |
|---|---|
| 4 | magic `LMI3` |
| 4, 4 | length and CRC-32 of the head, little-endian |
| … | head: zstd of JSON, canonical |
| … | the blocks, in the order of the head |

A block is a sequence of pages of 4096 bytes. A page has as many whole rows as fit into 4092 bytes,
bits in little-endian order, and then their CRC-32. A damaged page makes a search read the files of
the chunk as if they had none.

A chunk is a function of its files, and files never change, so two writers produce the same chunk.
Late data is another file and therefore another chunk. Source: ADR 33.
"""

import hashlib
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Final, Literal
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from sluice_protocol.compression import ZstdError, compress_zstd, decompress_zstd
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.fields import TEXT_BYTES_MIN, label_of
from sluice_protocol.manifests import decode_record, encode_record

MAGIC: Final = b"LMI3"
LOOKED_UP_MAX: Final = 24
"""Grams of one text that a search looks up, each for one page. With half of the bits set, one row
group in 65,000 has 16 unrelated grams by chance.
"""
TEXT_SHARE_MAX: Final = 0.06
"""The filter of texts has at most this share of their bytes: more bits of it are set if they are
random, as in long hexadecimal ids.
"""
VALUE_HASHES: Final = 8
PAGE_BYTES: Final = 4096
HEAD_BYTES_MAX: Final = 16 * 1024 * 1024
FILL_MAX: Final = 0.5
"""Share of bits set in a filter: with half of them a bit is worth most. Sizes are rounded up.

With 0.55 a filter is a sixth smaller, and ten times as many row groups pass an absent text.
"""
_TERM_BITS: Final = 23
_ROWS_BYTES: Final = PAGE_BYTES - 4
_MEMBERS_MAX: Final = 8192
_BITS_MIN: Final = 1024
_STEPS: Final = 4
"""Filters are enlarged to the next of four sizes in each doubling, so that blocks are few."""
_SLICE_BYTES: Final = 128 * 1024
"""Fits into a processor's cache together with what is computed of it."""
_BAND_BYTES: Final = 16 * 1024 * 1024
_START: Final = struct.Struct("<4sII")
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_GRAM_SHIFT: Final = np.uint64(64 - 8 * TEXT_BYTES_MIN)
_TERM_SHIFT: Final = np.uint64(64 - _TERM_BITS)
_HALF: Final = np.uint64(32)
_LETTERS: Final = ((b"\xe2\x84\xaa", b"k"), (b"\xc5\xbf", b"s"), (b"\xc4\xb0", b"i"))
"""The characters outside of ASCII that a comparison without case takes for a letter of ASCII."""

Terms = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.uint64]
Found = npt.NDArray[np.bool_]


class Filter(StrEnum):
    """The filters of a row group."""

    TEXTS = "texts"
    VALUES = "values"


class IndexedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A data file in a chunk; `groups` has the number of records of each of its row groups."""

    path: str
    size_bytes: int
    groups: tuple[int, ...]


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of some row groups, of `bits` bits each.

    `members` are numbers of row groups, counted through all files of the chunk.
    """

    filter: Filter
    bits: int
    members: tuple[int, ...]

    @property
    def rows_per_page(self) -> int:
        """How many rows a page has."""
        return _ROWS_BYTES * 8 // len(self.members)

    @property
    def pages(self) -> int:
        """The number of pages."""
        return -(-self.bits // self.rows_per_page)

    def row_of(self, term: int) -> int:
        """Return the row of a term."""
        return term * self.bits >> _TERM_BITS

    def page_of(self, term: int) -> int:
        """Return the number of the page with the row of a term."""
        return self.row_of(term) // self.rows_per_page

    def members_with(self, term: int, page: bytes) -> Found:
        """Return, for each member, whether it has a term, from the page of the term."""
        count = len(self.members)
        first = self.row_of(term) % self.rows_per_page * count
        start = first // 8
        found = np.frombuffer(page[start : (first + count + 7) // 8], np.uint8)
        bits = np.unpackbits(found, bitorder="little")[first - start * 8 :][:count]
        return bits.astype(np.bool_)


class ChunkHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk contains, in order."""

    schema: Literal["sluice.index.v2"] = "sluice.index.v2"
    table: str
    files: tuple[IndexedFile, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTerms:
    """The distinct terms of one row group, in order, and the size of its texts."""

    texts: Terms
    values: Terms
    text_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTerms:
    """A data file, and the terms of each of its row groups."""

    file: IndexedFile
    groups: tuple[GroupTerms, ...]


def folded(text: bytes) -> bytes:
    """Return a text in lower case, the same for all texts that differ in case of ASCII only.

    Each character is replaced separately, so a part of a text is a part of the folded one.
    """
    lower = text.lower()
    if not lower.isascii():
        for character, letter in _LETTERS:
            lower = lower.replace(character, letter)
    return lower


def _grams(text: bytes) -> Hashes:
    """Return the grams of a folded text as terms, with repetitions."""
    count = len(text) - TEXT_BYTES_MIN + 1
    if count < 1:
        return np.zeros(0, np.uint64)
    padded = text + bytes(8 - TEXT_BYTES_MIN)
    grams = np.ndarray((count,), "<u8", padded, strides=(1,)) << _GRAM_SHIFT
    grams *= _FACTOR
    grams >>= _TERM_SHIFT
    return grams


def looked_up(text: str, *, ignore_case: bool) -> tuple[int, ...]:
    """Return terms that a row group has if one of its texts contains `text`; none if it is short.

    Other characters than ASCII have several forms without case, so they end a part of the text.
    """
    parts = re.findall(r"[\x00-\x7f]+", text) if ignore_case else [text]
    found = sorted({int(term) for part in parts for term in _grams(folded(part.encode()))})
    step = max(1, len(found) / LOOKED_UP_MAX)
    return tuple(found[int(n * step)] for n in range(min(len(found), LOOKED_UP_MAX)))


def text_terms(texts: Sequence[bytes | memoryview]) -> Terms:
    """Return the terms of texts, which are concatenated bodies; no body is cut between two."""
    if sum(map(len, texts)) < _SLICE_BYTES:
        found = [_grams(folded(bytes(text))) for text in texts]
        return np.unique(np.concatenate([np.zeros(0, np.uint64), *found])).astype(np.int32)
    seen = np.zeros(1 << _TERM_BITS, np.bool_)
    for text in texts:
        whole = folded(bytes(text))
        for start in range(0, max(len(whole), 1), _SLICE_BYTES):
            piece = whole[start : start + _SLICE_BYTES + TEXT_BYTES_MIN - 1]
            seen[_grams(piece).view(np.int64)] = True
    return np.flatnonzero(seen).astype(np.int32)


_PLACE_BASE: Final = 0xD6E8FEB86659FD93
_BYTE_HASHES: Final = (np.arange(1, 257, dtype=np.uint64) * _FACTOR) ^ (
    np.arange(1, 257, dtype=np.uint64) << np.uint64(41)
)


def _mixed(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> _HALF)) * _FACTOR
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _FACTOR
    return hashes ^ (hashes >> _HALF)


def hash_texts(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Hashes:
    """Return a hash of each of several texts: the bytes of `data` between neighbouring offsets."""
    lengths = np.diff(offsets)
    found = np.zeros(len(lengths), np.uint64)
    powers = np.full(int(lengths.max(initial=0)) + 1, _PLACE_BASE, np.uint64)
    powers[0] = 1
    np.multiply.accumulate(powers, out=powers)
    at = 0
    while at < len(lengths):
        # As many texts as one slice has, and at least one.
        end = max(at + 1, int(np.searchsorted(offsets, offsets[at] + _SLICE_BYTES, "right")) - 1)
        part = lengths[at:end]
        first, last = int(offsets[at]), int(offsets[end])
        if last > first:
            starts = np.repeat(offsets[at:end], part)
            products = _BYTE_HASHES[data[first:last]] * powers[np.arange(first, last) - starts]
            some = part > 0  # `reduceat` has no sum of nothing
            found[at:end][some] = np.add.reduceat(products, offsets[at:end][some] - first)
        at = end
    return _mixed(found + lengths.astype(np.uint64))


def hash_text(text: bytes) -> Hashes:
    """Return the hash of one text, in an array."""
    ends = np.array([0, len(text)], np.int64)
    return hash_texts(np.frombuffer(text, np.uint8), ends)


def label_place(key: str) -> str:
    """Return the place of an attribute of a record or its resource: several keys may share it."""
    return f"labels.{label_of(key)}"


def value_terms(place: str, hashes: Hashes) -> Terms:
    """Return the terms of values, given by their hashes, of one place; one row for each value.

    A place is the name of a field, or that of `label_place`.
    """
    own = _mixed(hashes ^ hash_text(place.encode()))
    first, step = own >> _HALF, (own << _HALF >> _HALF) | np.uint64(1)
    numbers = np.arange(VALUE_HASHES, dtype=np.uint64)
    terms = (first[:, None] + numbers * step[:, None]) & np.uint64((1 << _TERM_BITS) - 1)
    return terms.astype(np.int32)


def chunk_id(paths: Iterable[str]) -> str:
    """Return the id of the chunk over these files: a function of their names."""
    return hashlib.sha256("\n".join(sorted(paths)).encode()).hexdigest()[:32]


def _bits_for(name: Filter, group: GroupTerms) -> int:
    bits = len(getattr(group, name)) / -math.log(1 - FILL_MAX)
    if name is Filter.TEXTS:
        bits = min(bits, 8 * TEXT_SHARE_MAX * group.text_bytes)
    bits = max(bits, _BITS_MIN)
    step = math.ceil(_STEPS * math.log2(bits / _BITS_MIN))
    return min(int(_BITS_MIN * 2 ** (step / _STEPS)), 1 << _TERM_BITS)


def encode_chunk(table: str, files: Sequence[FileTerms]) -> bytes:
    """Encode a chunk, with the files in the order of their paths."""
    ordered = sorted(files, key=lambda one: one.file.path)
    groups = [group for one in ordered for group in one.groups]
    blocks: list[Block] = []
    bodies: list[bytes] = []
    for name in Filter:
        members: dict[int, list[int]] = {}
        for number, group in enumerate(groups):
            members.setdefault(_bits_for(name, group), []).append(number)
        for bits, every in sorted(members.items()):
            for start in range(0, len(every), _MEMBERS_MAX):
                some = every[start : start + _MEMBERS_MAX]
                block = Block(filter=name, bits=bits, members=tuple(some))
                blocks.append(block)
                bodies += _encode_block(block, [getattr(groups[number], name) for number in some])
    files_ = tuple(one.file for one in ordered)
    head = compress_zstd(
        encode_record(ChunkHead(table=table, files=files_, blocks=tuple(blocks))), 3
    )
    return b"".join([_START.pack(MAGIC, len(head), crc32(head)), head, *bodies])


def _encode_block(block: Block, terms: Sequence[Terms]) -> Iterator[bytes]:
    count, rows_per_page = len(terms), block.rows_per_page
    rows = [one.astype(np.int64) * block.bits >> _TERM_BITS for one in terms]
    band_pages = max(1, _BAND_BYTES // (rows_per_page * count))
    for first_page in range(0, block.pages, band_pages):
        pages = min(band_pages, block.pages - first_page)
        first = first_page * rows_per_page
        band = np.zeros((pages * rows_per_page, count), np.bool_)
        for member, own in enumerate(rows):
            start, end = np.searchsorted(own, [first, first + len(band)])
            band[own[start:end] - first, member] = True
        packed = np.packbits(band.reshape(pages, -1), axis=1, bitorder="little")
        whole = np.zeros((pages, _ROWS_BYTES), np.uint8)
        whole[:, : packed.shape[1]] = packed
        for page in whole:
            body = page.tobytes()
            yield body + crc32(body).to_bytes(4, "little")


def head_size(key: str, start: bytes) -> int:
    """Return how many bytes of a chunk its head and what is before it have.

    Raises:
        InvalidRecord: The bytes are not the start of a chunk of this version.
    """
    if len(start) < _START.size:
        raise InvalidRecord(key, "index chunk is shorter than its head")
    magic, size_bytes, _ = _START.unpack_from(start)
    if magic != MAGIC:
        raise InvalidRecord(key, f"index chunk does not begin with {MAGIC.decode()}")
    return int(_START.size + size_bytes)


def decode_chunk_head(key: str, start: bytes) -> ChunkHead:
    """Decode the head of a chunk from its first bytes, at least `head_size` of them.

    Raises:
        InvalidRecord: It is damaged, cut short, or of another version than this build's. A search
            then reads the files of the chunk without pruning.
    """
    size_bytes = head_size(key, start)
    body = start[_START.size : size_bytes]
    if len(start) < size_bytes or crc32(body) != _START.unpack_from(start)[2]:
        raise InvalidRecord(key, "head of the index chunk is damaged")
    try:
        return decode_record(key, decompress_zstd(body, HEAD_BYTES_MAX), ChunkHead)
    except ZstdError as error:
        raise InvalidRecord(key, f"head of the index chunk is not zstd: {error}") from error


def check_page(key: str, page: bytes) -> bytes:
    """Return a page if it is whole; raise `InvalidRecord` if not."""
    if len(page) != PAGE_BYTES or crc32(page[:_ROWS_BYTES]).to_bytes(4, "little") != page[-4:]:
        raise InvalidRecord(key, "page of the index chunk is damaged")
    return page


PageId = tuple[int, int]
"""The number of a block, and of a page in it."""


@dataclass(frozen=True, slots=True)
class TermsWanted:
    """Terms of which a row group must have all, in one filter."""

    filter: Filter
    terms: tuple[int, ...]


Wanted = Sequence[Sequence[TermsWanted]]
"""Conditions that must all be met, each by at least one of its alternatives."""


def pages_wanted(head: ChunkHead, wanted: Wanted) -> dict[PageId, int]:
    """Return the pages that decide which row groups meet conditions, each with its first byte.

    The bytes are counted from the end of the head.
    """
    starts = list(accumulate((block.pages * PAGE_BYTES for block in head.blocks), initial=0))
    return {
        (number, page): starts[number] + page * PAGE_BYTES
        for number, block in enumerate(head.blocks)
        for condition in wanted
        for one in condition
        if one.filter is block.filter
        for page in sorted({block.page_of(term) for term in one.terms})
    }


def groups_meeting(head: ChunkHead, pages: Mapping[PageId, bytes], wanted: Wanted) -> Found:
    """Return, for each row group of a chunk, whether it may have what all conditions want."""
    count = sum(len(file.groups) for file in head.files)
    every = np.ones(count, np.bool_)
    for condition in wanted:
        some = np.zeros(count, np.bool_)
        for one in condition:
            has = np.ones(count, np.bool_)
            for number, block in enumerate(head.blocks):
                if block.filter is one.filter:
                    members = np.array(block.members)
                    for term in one.terms:
                        page = pages[number, block.page_of(term)]
                        has[members] &= block.members_with(term, page)
            some |= has
        every &= some
    return every
