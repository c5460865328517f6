"""How a store is opened, which folder a URL names, and which folder is a store.

Only `sluice init`, the start of `sluice up` and a gateway's new spool create a store. Every other
open refuses a folder without one, and an open for reading writes nothing at all: no lock, no clock
file, no folder. So a mistyped path stays as it was, and a store on a read-only mount or a full disk
can be searched. A store whose folder was moved away for a moment is not replaced by an empty one.

A folder is a store if it contains the settings of an authority, or the clock file that the first
open of every store creates. The folder of `sluice up` contains its store as `.sluice`, the name
that each store also gives to its internal folder; that store's settings tell the two apart.
"""

import os
from collections import deque
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from sluice_protocol.errors import BadUsage, NoStore
from sluice_protocol.keys import AUTHORITY_SETTINGS

HIDDEN: Final = ".sluice"
"""The folder of a store's internal state, and the default name of the folder of a store."""
_FOLDERS_MAX: Final = 2_000
"""Folders that are searched for a store below a new one; a larger tree is not searched in full."""


def parse_local_path(url: str) -> Path:
    """Return the directory of a `file://` URL: absolute, or relative as in `file://./.sluice`."""
    path = unquote(url.removeprefix("file://"))
    if not path.startswith(("/", "./", "../")) or "?" in url:
        raise BadUsage(
            f"invalid store URL: use file:///absolute/path or file://./relative, url=`{url}`"
        )
    return Path(path).absolute()


def local_folder(url: str) -> Path | None:
    """Return the directory of a store; None for a store that is no directory."""
    return parse_local_path(url) if url.startswith("file://") else None


class StoreMode(StrEnum):
    """What an open may do."""

    CREATE = "create"
    WRITE = "write"
    READ = "read"


def is_store(folder: Path) -> bool:
    """Return True if a folder contains a store."""
    if _is_file(folder / AUTHORITY_SETTINGS):
        return True
    inner = folder / HIDDEN
    return _is_file(inner / "clock") and not _is_file(inner / AUTHORITY_SETTINGS)


def require_store(folder: Path) -> None:
    """Check that a folder contains a store; the error names one in it or above it."""
    if not is_store(folder):
        raise NoStore(str(folder), _describe_absence(folder))


def refuse_nested_store(folder: Path) -> None:
    """Check that a new store would be neither inside nor around another one."""
    if is_store(folder):
        return
    above = next(filter(is_store, folder.parents), None)
    if above is not None:
        raise BadUsage(
            f"cannot create a store inside another one: use a folder outside, store=`{above}`,"
            f" path=`{folder}`"
        )
    below = _store_below(folder)
    if below is not None:
        raise BadUsage(
            f"cannot create a store around another one: use that one with `--store file://{below}`,"
            f" or choose an empty folder, store=`{below}`, path=`{folder}`"
        )


def _describe_absence(folder: Path) -> str:
    if is_store(folder / HIDDEN):
        return f"there is one in {HIDDEN}: use `--store file://{folder / HIDDEN}`"
    above = next(filter(is_store, folder.parents), None)
    if above is not None:
        return f"this folder is inside one: use `--store file://{above}`"
    if folder.is_dir():
        return f"correct the path, or create one with `sluice init --store file://{folder}`"
    if folder.exists():
        return "this is a file, and a store is a folder: correct the path"
    return (
        "change to its folder, pass `--store`, or create one with `sluice init --store"
        f" file://{folder}`"
    )


def _store_below(folder: Path) -> Path | None:
    """Return a store below a folder, nearest first, or None."""
    pending, seen = deque([folder]), 0
    while pending and seen < _FOLDERS_MAX:
        seen += 1
        try:
            with os.scandir(pending.popleft()) as entries:
                inner = [Path(one.path) for one in entries if one.is_dir(follow_symlinks=False)]
        except OSError:
            continue  # it does not exist yet, or belongs to another user
        found = next((one for one in sorted(inner) if is_store(one)), None)
        if found is not None:
            return found
        pending.extend(inner)
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except PermissionError:  # reported by the open, which names the folder
        return False
