"""Seeded damage to frames: flipped, cut, doubled and swapped bytes, below the checksums too."""

import random
import struct
import zlib
from collections.abc import Iterator

import cbor2
import zstandard
from support.frames import all_kinds, identity

from sluice_protocol.frame import HEADER_BYTES, decode_head, encode_frame

_INTERESTING = (0, 1, 0x17, 0x18, 0x1B, 0x1F, 0x3B, 0x40, 0x5B, 0x5F, 0x7F, 0x80, 0x9F, 0xA0, 0xBF)
_BYTES = (*_INTERESTING, 0xC0, 0xD8, 0xDB, 0xF4, 0xF9, 0xFF)
_ZSTD = 2


def seeds() -> list[bytes]:
    """Return valid frames of every kind, plain and compressed."""
    return [
        encode_frame(
            identity=identity(3), columns=columns, resource=(("h", "x"),), compress=compress
        )
        for columns in all_kinds()
        for compress in (False, True)
    ]


def damaged(rng: random.Random, count: int, good: list[bytes] | None = None) -> Iterator[bytes]:
    """Yield `count` frames, each a valid one with one to four changes."""
    good = good or seeds()
    for _ in range(count):
        data = rng.choice(good)
        yield rng.choice((_wounded, _in_envelope, _in_column, _in_column))(rng, data)


def _in_envelope(rng: random.Random, data: bytes) -> bytes:
    """Change the envelope, and make its length in the header match again."""
    end = decode_head(data).body_start
    envelope = _wounded(rng, data[HEADER_BYTES:end])[: 2**16 - 1]
    return data[:6] + struct.pack("<H", len(envelope)) + envelope + data[end:]


def _in_column(rng: random.Random, data: bytes) -> bytes:
    """Change the bytes of one column, and make its entry in the directory match again."""
    head = decode_head(data)
    fields = cbor2.loads(data[HEADER_BYTES : head.body_start])
    items: list[object] = []
    body = b""
    hurt = rng.randrange(len(head.columns))
    for place, one in enumerate(head.columns):
        start = head.body_start + one.offset
        stored = data[start : start + one.length]
        coding, raw_bytes = one.coding, one.uncompressed_length
        if place == hurt:
            is_packed = coding & _ZSTD
            raw = zstandard.ZstdDecompressor().decompress(stored) if is_packed else stored
            raw = _wounded(rng, raw)
            coding = (coding & ~_ZSTD) | rng.choice((0, _ZSTD))
            stored = zstandard.ZstdCompressor().compress(raw) if coding & _ZSTD else raw
            raw_bytes = len(raw) if coding & _ZSTD else 0
            if rng.random() < 0.05:
                raw_bytes = rng.choice((0, 1, 2**26, 2**32 - 1))
        checksum = struct.pack("<I", zlib.crc32(stored))
        items += [one.name, one.type, coding, len(body), len(stored), checksum, raw_bytes]
        body += stored
    fields[-1] = items
    envelope = cbor2.dumps(fields)
    return data[:6] + struct.pack("<H", len(envelope)) + envelope + body


def _wounded(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out)) if out else 0
        match rng.randrange(7):
            case 0 if out:
                out[at] ^= 1 << rng.randrange(8)
            case 1 if out:
                out[at] = rng.choice(_BYTES)
            case 2:
                out[at:at] = bytes((rng.choice(_BYTES),))
            case 3:
                del out[at : at + rng.randint(1, 4)]
            case 4:
                other = rng.randrange(len(out)) if out else 0
                out[at:at] = out[other : other + rng.randint(1, 16)]
            case 5:
                width = rng.choice((1, 2, 4, 8))
                value = rng.choice((0, 1, 2**31, 2**63, 2**64 - 1)) & ((1 << 8 * width) - 1)
                out[at : at + width] = value.to_bytes(width, "big")
            case _:
                del out[rng.randrange(len(out) + 1) :]
    return bytes(out)
