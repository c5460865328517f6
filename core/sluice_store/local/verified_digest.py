"""The sha256 of an object that was verified when it was written, in an attribute of its file.

The value contains the timestamp of the state: a file that was edited has another modification time,
and its attribute is ignored. Readers then hash the bytes.

A value has 40 bytes, so that it fits into an inode of 256 bytes, the default of ext4. A value of
more than 56 bytes needs a separate block of 4 KiB for each object. Source: "Extended Attributes" in
https://docs.kernel.org/filesystems/ext4/ (ADR 8).
"""

import os
import struct
from contextlib import suppress
from typing import Final

from sluice_protocol.units import Digest

ATTRIBUTE: Final = "user.sluice.sha256"
"""The name of the attribute."""
_VALUE: Final = struct.Struct(">q32s")


def encode_verified(stamp: int, sha256: Digest) -> bytes:
    """Return the value for a state: its timestamp in nanoseconds, then its sha256 in bytes."""
    return _VALUE.pack(stamp, bytes.fromhex(sha256))


def decode_verified(value: bytes, stamp: int) -> Digest | None:
    """Return the sha256 that a value states, or None if it is damaged or of another state."""
    if len(value) != _VALUE.size:
        return None
    written, digest = _VALUE.unpack(value)
    return Digest(digest.hex()) if written == stamp else None


def write_verified(fd: int, stamp: int, sha256: Digest) -> None:
    """Store the digest of a file, where the file system has attributes."""
    if hasattr(os, "setxattr"):
        with suppress(OSError):
            os.setxattr(fd, ATTRIBUTE, encode_verified(stamp, sha256))


def read_verified(fd: int, stamp: int) -> Digest | None:
    """Return the digest that was verified when this state of a file was written, or None."""
    if not hasattr(os, "getxattr"):
        return None
    try:
        return decode_verified(os.getxattr(fd, ATTRIBUTE), stamp)
    except OSError:
        return None
