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


def has_group(body: bytes) -> bool:
    """Return whether a message, or a message that may be inside, has the start of a group."""
    at = 0
    while at < len(body):
        tag, at = _varint(body, at)
        match tag & 7:
            case 0:
                _, at = _varint(body, at)
            case 1:
                at += 8
            case 2:
                size, at = _varint(body, at)
                if has_group(body[at : at + size]):
                    return True
                at += size
            case 3:
                return True
            case 5:
                at += 4
            case _:
                return False
    return False


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(body):
        value |= (body[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if body[at - 1] < 128:
            break
    return value, at
