"""Protobuf encoded by hand, so that the field numbers of a decoder are checked."""

import struct


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def integer(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def signed(number: int, value: int) -> bytes:
    return integer(number, value << 1 ^ value >> 63)


def double(number: int, value: float) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<d", value)


def part(number: int, data: bytes | str) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def packed(number: int, values: list[int]) -> bytes:
    return part(number, b"".join(map(varint, values)))


def packed_signed(number: int, values: list[int]) -> bytes:
    return packed(number, [value << 1 ^ value >> 63 for value in values])
