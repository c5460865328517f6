"""The bytes of a part: what a lane was given of many boots, sorted, in one immutable object.

A boot is one start of one agent. A part contains the whole state of each of its boots, so of
several parts with the same boot only the newest counts. It is searched as it is stored, without
decoding: about 50 bytes of memory per boot. All integers are little-endian and unsigned:

    magic `SLP1` | version u16 | flags u16 | boots u32 | bytes of values u32
    boots x u64   first part of the key: the hash of the agent, which decides its lane
    boots x u64   second part: 8 bytes of the boot's hash
    boots x u32   last part: the next 4 bytes of the boot's hash
    boots x u32   where the value ends
    boots x u32   Unix time in seconds, at or after the last enqueueing
    values        `BootRanges` in MessagePack

The object is one zstd frame of these bytes. Pure. Source: `docs/reconciler.md`, State; ADR 24.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NewType

import msgspec
import numpy as np
import numpy.typing as npt

from sluice_protocol.compression import ZstdError, compress_zstd, decompress_zstd
from sluice_protocol.errors import InvalidRecord, UnsupportedVersion
from sluice_protocol.keys import hash_of_agent
from sluice_protocol.units import ObjectKey
from sluice_reconciler.lanes.sequence_ranges import BootRanges

Boot = tuple[str, str]
"""Agent id and boot id."""

BootKey = NewType("BootKey", tuple[int, int, int])
"""The three columns of a boot's key; parts are sorted by it."""

PART_BYTES_MAX: Final = 1 << 30
MAGIC: Final = b"SLP1"
VERSION: Final = 3
_HEADER: Final = struct.Struct("<4sHHII")
_BOOT_BYTES: Final = 8 + 8 + 4 + 4 + 4

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(BootRanges)

_U64 = npt.NDArray[np.uint64]
_U32 = npt.NDArray[np.uint32]


def key_of_boot(boot: Boot) -> BootKey:
    """Return the key of a boot. All boots of an agent are adjacent in the order of keys."""
    agent, boot_id = (one.encode() for one in boot)
    salted = len(agent).to_bytes(4, "big") + agent + boot_id
    of_boot = hashlib.blake2b(salted, digest_size=12).digest()
    return BootKey(
        (
            hash_of_agent(boot[0]),
            int.from_bytes(of_boot[:8], "big"),
            int.from_bytes(of_boot[8:], "big"),
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePart:
    """The boots of one part, in memory, with the three columns of each key, ascending.

    `ends` has the place where each value ends.

    Attributes:
        seen: When each boot was last given a batch, or later, seconds.
    """

    heads: _U64
    mids: _U64
    lows: _U32
    ends: _U32
    seen: _U32
    values: bytes

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last head."""
        return int(self.heads[0]), int(self.heads[-1])

    @property
    def memory_bytes(self) -> int:
        """The memory that the part needs."""
        return len(self) * _BOOT_BYTES + len(self.values)

    def find(self, key: BootKey) -> BootRanges | None:
        """Return a new copy of a boot's state, or None if the part does not contain the boot."""
        return self._find_from(key, int(np.searchsorted(self.heads, np.uint64(key[0]))))

    def find_all(self, keys: Sequence[BootKey]) -> dict[BootKey, BootRanges]:
        """Return new copies of the states of those boots that the part contains."""
        heads = np.array([key[0] for key in keys], dtype=np.uint64)
        places = np.searchsorted(self.heads, heads)
        hits = self.heads[np.minimum(places, len(self) - 1)] == heads
        found: dict[BootKey, BootRanges] = {}
        for number in np.flatnonzero(hits).tolist():
            ranges = self._find_from(keys[number], int(places[number]))
            if ranges is not None:
                found[keys[number]] = ranges
        return found

    def _find_from(self, key: BootKey, at: int) -> BootRanges | None:
        """Return the state of a boot whose head is at this place or behind it."""
        head, mid, low = key
        end = at + 1
        if end < len(self.heads) and int(self.heads[end]) == head:  # several boots of the agent
            end = int(np.searchsorted(self.heads, np.uint64(head), side="right"))
            at += int(np.searchsorted(self.mids[at:end], np.uint64(mid)))
        while at < min(end, len(self.heads)) and int(self.mids[at]) == mid:
            if int(self.heads[at]) == head and int(self.lows[at]) == low:
                start = int(self.ends[at - 1]) if at else 0
                return _DECODER.decode(self.values[start : int(self.ends[at])])
            at += 1
        return None

    def of_lane(self, lane: int, lanes: int) -> "LanePart | None":
        """Return the boots that belong to a lane of so many lanes; None if there are none."""
        chosen = np.flatnonzero(self.heads % np.uint64(lanes) == np.uint64(lane))
        if not len(chosen):
            return None
        ends = self.ends.tolist()
        values = [self.values[ends[at - 1] if at else 0 : ends[at]] for at in chosen.tolist()]
        return LanePart(
            heads=self.heads[chosen],
            mids=self.mids[chosen],
            lows=self.lows[chosen],
            ends=np.cumsum([len(one) for one in values], dtype="<u4"),
            seen=self.seen[chosen],
            values=b"".join(values),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BootCounts:
    """The boots in the parts of a lane.

    A boot that several runs contain is counted for each; `idle` boots were given no batch since the
    settled time.
    """

    total: int
    idle: int


def make_part(ranges_of: Mapping[Boot, BootRanges], seen_s: int) -> LanePart:
    """Return a part with the state of these boots, which were given no batch after `seen_s`."""
    unsorted = ((key_of_boot(boot), ranges) for boot, ranges in ranges_of.items())
    keyed = sorted(unsorted, key=lambda one: one[0])
    values = [_ENCODER.encode(ranges) for _, ranges in keyed]
    return LanePart(
        heads=np.array([key[0] for key, _ in keyed], dtype="<u8"),
        mids=np.array([key[1] for key, _ in keyed], dtype="<u8"),
        lows=np.array([key[2] for key, _ in keyed], dtype="<u4"),
        ends=np.cumsum([len(one) for one in values], dtype="<u4"),
        seen=np.full(len(keyed), seen_s, dtype="<u4"),
        values=b"".join(values),
    )


def merge_parts(
    parts: Sequence[LanePart], boots_max: int, *, retired_before_s: int = 0
) -> Iterator[LanePart]:
    """Merge parts, oldest first, into parts in the order of keys, of at most `boots_max` boots.

    Of a boot that several parts contain, the state in the last of them is kept. If boots are
    retired, the parts must be all of the lane: otherwise an older state of a retired boot would
    count again. Boots last given a batch before `retired_before_s` are left out.
    """
    heads = np.concatenate([one.heads for one in parts])
    mids = np.concatenate([one.mids for one in parts])
    lows = np.concatenate([one.lows for one in parts])
    age = np.repeat(np.arange(len(parts), 0, -1, dtype=np.int64), [len(one) for one in parts])
    order = np.lexsort((age, lows, mids, heads))
    heads, mids, lows = heads[order], mids[order], lows[order]
    first = np.ones(len(order), dtype=bool)
    same = (heads[1:] == heads[:-1]) & (mids[1:] == mids[:-1]) & (lows[1:] == lows[:-1])
    first[1:] = ~same
    seen = np.concatenate([one.seen for one in parts])[order]
    first &= seen >= retired_before_s
    chosen = order[first]
    values = np.frombuffer(b"".join(one.values for one in parts), dtype=np.uint8)
    sizes = np.concatenate([np.diff(one.ends, prepend=np.uint32(0)) for one in parts])
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    heads, mids, lows, seen = heads[first], mids[first], lows[first], seen[first]
    for at in range(0, len(chosen), boots_max):
        here = slice(at, at + boots_max)
        lengths = sizes[chosen[here]].astype(np.int64)
        ends = np.cumsum(lengths)
        where = np.repeat(starts[chosen[here]] - (ends - lengths), lengths) + np.arange(ends[-1])
        yield LanePart(
            heads=heads[here].copy(),
            mids=mids[here].copy(),
            lows=lows[here].copy(),
            ends=ends.astype("<u4"),
            seen=seen[here].astype("<u4"),
            values=values[where].tobytes(),
        )


def encode_part(part: LanePart) -> bytes:
    """Return the stored bytes of a part."""
    columns = [
        part.heads.astype("<u8").tobytes(),
        part.mids.astype("<u8").tobytes(),
        part.lows.astype("<u4").tobytes(),
        part.ends.astype("<u4").tobytes(),
        part.seen.astype("<u4").tobytes(),
    ]
    header = _HEADER.pack(MAGIC, VERSION, 0, len(part), len(part.values))
    raw = b"".join([header, *columns, part.values])
    return compress_zstd(raw, level=1)


def decode_part(key: ObjectKey, body: bytes) -> LanePart:
    """Decode the stored bytes of a part."""
    try:
        raw = decompress_zstd(body, PART_BYTES_MAX)
    except ZstdError as error:
        raise InvalidRecord(key, f"not a zstd frame: {error}") from error
    if len(raw) < _HEADER.size or raw[:4] != MAGIC:
        raise InvalidRecord(key, "not a part of a lane state")
    _, version, _, boots, value_bytes = _HEADER.unpack_from(raw)
    if version != VERSION:
        raise UnsupportedVersion("part of a lane state", version, VERSION, key)
    if len(raw) != _HEADER.size + boots * _BOOT_BYTES + value_bytes or not boots:
        raise InvalidRecord(key, f"has {len(raw)} bytes, which is not the size of {boots} boots")
    at = _HEADER.size
    heads = np.frombuffer(raw, dtype="<u8", count=boots, offset=at)
    mids = np.frombuffer(raw, dtype="<u8", count=boots, offset=at + 8 * boots)
    lows = np.frombuffer(raw, dtype="<u4", count=boots, offset=at + 16 * boots)
    ends = np.frombuffer(raw, dtype="<u4", count=boots, offset=at + 20 * boots)
    seen = np.frombuffer(raw, dtype="<u4", count=boots, offset=at + 24 * boots)
    if int(ends[-1]) != value_bytes or bool(np.any(heads[1:] < heads[:-1])):
        raise InvalidRecord(key, "its columns do not agree")
    return LanePart(
        heads=heads,
        mids=mids,
        lows=lows,
        ends=ends,
        seen=seen,
        values=raw[at + _BOOT_BYTES * boots :],
    )
