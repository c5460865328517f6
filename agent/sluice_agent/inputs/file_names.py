"""Names of files and mount points that are not valid UTF-8.

Linux allows any bytes in a name. Python writes those that are not UTF-8 as lone surrogates, which
neither a frame nor a checkpoint can contain.
"""

import os
from typing import Final

_STORED: Final = "bytes:"
"""Before the hexadecimal digits of a path; every other path in a checkpoint begins with `/`."""


def shown_name(name: str) -> str:
    r"""Return a name of the system as valid text; bytes that are not UTF-8 become `\xff`."""
    return name if _is_text(name) else os.fsencode(name).decode(errors="backslashreplace")


def stored_path(path: str) -> str:
    """Return a path as a checkpoint contains it."""
    return path if _is_text(path) else f"{_STORED}{os.fsencode(path).hex()}"


def parse_stored_path(stored: str) -> str:
    """Return the path of a checkpoint, with which its file can be opened."""
    if not stored.startswith(_STORED):
        return stored
    try:
        return os.fsdecode(bytes.fromhex(stored.removeprefix(_STORED)))
    except ValueError:
        return stored


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
