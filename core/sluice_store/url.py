"""Store URLs: the kinds of store, which folder is a store, and opening the one that a URL names.

The help of `--store`, the checks of URLs, the opening of a store and the conformance tests read
`BACKENDS`: one line for each kind, which has a folder in `sluice_store`.

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
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from sluice_protocol.errors import BadUsage, NoStore
from sluice_protocol.keys import AUTHORITY_SETTINGS

if TYPE_CHECKING:
    from sluice_store.port import ObjectStore

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One kind of store.

    Attributes:
        module: Where `check_url(url)` and `open_url(url, mode)` are, in `sluice_store`.
        form: A URL as the help shows it.
        scratch: A URL of an empty store below `{folder}` that needs no server, for tests.
        is_local: Whether it is on this machine. Then a gateway examines it at its start, a few
            concurrent requests are the fastest, and its requests have no price.
    """

    scheme: str
    module: str
    form: str
    scratch: str = ""
    is_local: bool


BACKENDS: Final = (
    Backend(
        scheme="file",
        module="local.store",
        form="file:///path",
        scratch="file://{folder}/store",
        is_local=True,
    ),
    Backend(
        scheme="s3",
        module="s3.backend",
        form="s3://bucket/prefix?endpoint=…&region=…",
        is_local=False,
    ),
)
"""Every kind of store; a new one is a line here and its folder."""

URL_FORMS: Final = " or ".join(one.form for one in BACKENDS)


def find_backend(url: str) -> Backend | None:
    """Return the kind of store that a URL names, or None if there is none."""
    return next((one for one in BACKENDS if url.startswith(f"{one.scheme}://")), None)


def is_local(url: str) -> bool:
    """Return True for a store on this machine."""
    found = find_backend(url)
    return found is not None and found.is_local


def check_store_url(url: str) -> None:
    """Check the form of a store's URL; nothing is opened."""
    backend = find_backend(url)
    if backend is not None:
        _module(backend).check_url(url)
        return
    meant = f"use {' or '.join(one.form.partition('?')[0] for one in BACKENDS)},"
    if url.startswith(("http://", "https://")):
        server = "://".join(urlsplit(url)[:2])
        meant = f"a bucket of another server is s3://bucket/prefix?endpoint={server},"
    elif url and "://" not in url:
        meant = f"did you mean {_url_of_path(url)}?"
    raise BadUsage(f"invalid store URL: {meant} url=`{url}`")


def _module(backend: Backend) -> ModuleType:
    return import_module(f"sluice_store.{backend.module}")


def absolute_url(url: str) -> str:
    """Return a URL that does not depend on the working directory, for other processes."""
    folder = local_folder(url)
    return url if folder is None else f"file://{folder}"


def _url_of_path(path: str) -> str:
    return f"file://{path if path.startswith(('/', './', '../')) else f'./{path}'}"


def with_profile(url: str, profile: str) -> str:
    """Return the URL of the same bucket with the credentials of a profile."""
    if not profile:
        return url
    if is_local(url):
        raise BadUsage(
            f"a directory has no credentials: remove the profile, profile=`{profile}`, url=`{url}`"
        )
    parts = urlsplit(url)
    options = [one for one in parse_qsl(parts.query) if one[0] != "profile"]
    return urlunsplit(parts._replace(query=urlencode([*options, ("profile", profile)])))


def read_disk_problem(url: str, needed_bytes: int) -> str:
    """Return why a directory store has no room for an object of this size; empty for a bucket."""
    folder = local_folder(url)
    if folder is None:
        return ""
    from sluice_store.local.disk_space import (  # noqa: PLC0415 - rarely needed
        describe_disk_problem,
        read_disk_space,
    )

    return describe_disk_problem(read_disk_space(folder), needed_bytes)


@asynccontextmanager
async def open_store(url: str, mode: StoreMode = StoreMode.WRITE) -> AsyncIterator["ObjectStore"]:
    """Open the store that a URL names.

    The URL is `file:///path`, `file://./path`, or `s3://bucket/prefix?endpoint=…&region=…`. A
    bucket must exist, and is not changed by opening it.
    """
    check_store_url(url)
    backend = find_backend(url)
    assert backend is not None  # the check above raises otherwise  # noqa: S101
    opening: AbstractAsyncContextManager[ObjectStore] = _module(backend).open_url(url, mode)
    async with opening as store:
        yield store
