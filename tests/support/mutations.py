"""Seeded damage to frames: flipped, cut, doubled and swapped bytes, below the header too."""

import random
import struct
from collections.abc import Iterator

import zstandard
from support.frames import all_kinds, identity

from sluice_protocol.frame import HEADER_BYTES, decode_head, encode_frame, frame_version

_INTERESTING = (0, 1, 0x17, 0x18, 0x1B, 0x1F, 0x3B, 0x40, 0x5B, 0x5F, 0x7F, 0x80, 0x9F, 0xA0, 0xBF)
_BYTES = (*_INTERESTING, 0xC0, 0xD8, 0xDB, 0xF4, 0xF9, 0xFF)


def seeds() -> list[bytes]:
    """Return valid frames of every kind and version, plain and compressed."""
    return [
        encode_frame(
            identity=identity(3),
            columns=columns,
            resource=(("h", "x"),),
            compress=compress,
            version=version,
        )
        for columns in all_kinds()
        for compress in (False, True)
        for version in (1, 2)
    ]


def damaged(rng: random.Random, count: int, good: list[bytes] | None = None) -> Iterator[bytes]:
    """Yield `count` frames, each a valid one with one to four changes."""
    good = good or seeds()
    for _ in range(count):
        data = rng.choice(good)
        yield rng.choice((_anywhere, _in_parts, _in_parts))(rng, data)


def _anywhere(rng: random.Random, data: bytes) -> bytes:
    return _wounded(rng, data)


def _in_parts(rng: random.Random, data: bytes) -> bytes:
    """Change envelope or payload below the header, and make the header match again."""
    head = decode_head(data)
    envelope = data[HEADER_BYTES : head.payload_start]
    stored = data[head.payload_start :]
    raw = zstandard.ZstdDecompressor().decompress(stored) if head.flags else stored
    if rng.random() < 0.3:
        envelope = _wounded(rng, envelope)
    else:
        raw = _wounded(rng, raw)
    flags = rng.randrange(2)
    stored = zstandard.ZstdCompressor().compress(raw) if flags else raw
    raw_bytes = len(raw) if rng.random() < 0.95 else rng.choice((1, 2**26, 2**32 - 1))
    sizes = (len(envelope), len(stored), raw_bytes, 0)
    return struct.pack("<4sHHIIII", b"LMB1", frame_version(data), flags, *sizes) + envelope + stored


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
