"""Store URLs: parsing them and opening the store that one names."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from sluice_protocol.errors import BadUsage
from sluice_store.local import open_local_store
from sluice_store.local.disk_space import describe_disk_problem, read_disk_space
from sluice_store.mode import StoreMode
from sluice_store.port import ObjectStore
from sluice_store.s3.settings import parse_s3_url


def parse_local_path(url: str) -> Path:
    """Return the directory of a `file://` URL: absolute, or relative as in `file://./.sluice`.

    Raises:
        BadUsage: The URL does not name a directory.
    """
    path = unquote(url.removeprefix("file://"))
    if not path.startswith(("/", "./", "../")) or "?" in url:
        raise BadUsage(
            f"invalid store URL: use file:///absolute/path or file://./relative, url=`{url}`"
        )
    return Path(path).absolute()


def check_store_url(url: str) -> None:
    """Check the form of a store's URL; nothing is opened.

    Raises:
        BadUsage: It is not of that form; the error names the URL of a path or an endpoint.
    """
    if url.startswith("file://"):
        parse_local_path(url)
    elif url.startswith("s3://"):
        parse_s3_url(url)
    else:
        meant = "use file:///path or s3://bucket/prefix,"
        if url.startswith(("http://", "https://")):
            server = "://".join(urlsplit(url)[:2])
            meant = f"a bucket of another server is s3://bucket/prefix?endpoint={server},"
        elif url and "://" not in url:
            meant = f"did you mean {_url_of_path(url)}?"
        raise BadUsage(f"invalid store URL: {meant} url=`{url}`")


def _url_of_path(path: str) -> str:
    return f"file://{path if path.startswith(('/', './', '../')) else f'./{path}'}"


def with_profile(url: str, profile: str) -> str:
    """Return the URL of the same bucket with the credentials of a profile.

    Raises:
        BadUsage: The URL names a directory, which has no credentials.
    """
    if not profile:
        return url
    if not url.startswith("s3://"):
        raise BadUsage(
            f"a directory has no credentials: remove the profile, profile=`{profile}`, url=`{url}`"
        )
    parts = urlsplit(url)
    options = [one for one in parse_qsl(parts.query) if one[0] != "profile"]
    return urlunsplit(parts._replace(query=urlencode([*options, ("profile", profile)])))


def read_disk_problem(url: str, needed_bytes: int) -> str:
    """Return why an object of a size cannot be written into a directory store; empty if it can.

    A bucket has no such limit.

    Raises:
        StoreError: The directory cannot be read.
    """
    if not url.startswith("file://"):
        return ""
    return describe_disk_problem(read_disk_space(parse_local_path(url)), needed_bytes)


@asynccontextmanager
async def open_store(url: str, mode: StoreMode = StoreMode.WRITE) -> AsyncIterator[ObjectStore]:
    """Open the store that a URL names.

    Args:
        url: `file:///path`, `file://./path`, or `s3://bucket/prefix?endpoint=…&region=…`.
        mode: Whether a directory is created, and whether it is written. A bucket must exist, and
            is not changed by opening it.

    Raises:
        BadUsage: The URL is malformed, or a new store would be inside or around another one.
        NoStore: The directory contains no store, and none is created.
        StoreError: The store cannot be opened.
    """
    check_store_url(url)
    if url.startswith("file://"):
        async with open_local_store(parse_local_path(url), mode=mode) as local:
            yield local
    else:
        from sluice_store.s3.sdk import open_s3_store  # noqa: PLC0415 - an extra, and slow to import

        async with open_s3_store(parse_s3_url(url)) as remote:
            yield remote
