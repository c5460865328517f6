"""Store URLs: parsing them and opening the store that one names."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from types import ModuleType
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from sluice_protocol.errors import BadUsage
from sluice_protocol.store_backends import BACKENDS, Backend, find_backend, is_local
from sluice_store.local.disk_space import describe_disk_problem, read_disk_space
from sluice_store.mode import StoreMode, local_folder
from sluice_store.port import ObjectStore


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
    return import_module(f"sluice_store.{backend.folder}.backend")


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
    return describe_disk_problem(read_disk_space(folder), needed_bytes)


@asynccontextmanager
async def open_store(url: str, mode: StoreMode = StoreMode.WRITE) -> AsyncIterator[ObjectStore]:
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
