"""The verified sha256 of a local object, kept in an extended attribute where the disk has them.

It is bound to the stamp: a file that someone changed by hand has another modification time, and its
attribute counts no longer. Without attributes a HEAD tells no checksum, and readers hash the bytes.
"""

import os
from contextlib import suppress
from typing import Final

from sluice_protocol.keys import parse_digest
from sluice_protocol.units import Digest

_NAME: Final = "user.sluice.sha256"


def write_sha256(fd: int, stamp: int, sha256: Digest) -> None:
    """Keeps the digest of a file, as far as the file system can."""
    if hasattr(os, "setxattr"):
        with suppress(OSError):
            os.setxattr(fd, _NAME, f"{stamp}:{sha256}".encode())


def read_sha256(fd: int, stamp: int) -> Digest | None:
    """Gives the digest that was verified when this very state was written, or None."""
    if not hasattr(os, "getxattr"):
        return None
    try:
        written, _, digest = os.getxattr(fd, _NAME).decode().partition(":")
        return parse_digest(digest) if written == str(stamp) else None
    except (OSError, ValueError):
        return None
