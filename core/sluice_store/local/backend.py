"""`file://` URLs: a directory as a store."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from urllib.parse import unquote

from sluice_protocol.errors import BadUsage
from sluice_store.local.store import open_local_store
from sluice_store.mode import StoreMode
from sluice_store.port import ObjectStore


def parse_local_path(url: str) -> Path:
    """Return the directory of a `file://` URL: absolute, or relative as in `file://./.sluice`."""
    path = unquote(url.removeprefix("file://"))
    if not path.startswith(("/", "./", "../")) or "?" in url:
        raise BadUsage(
            f"invalid store URL: use file:///absolute/path or file://./relative, url=`{url}`"
        )
    return Path(path).absolute()


check_url = parse_local_path


def open_url(url: str, mode: StoreMode) -> AbstractAsyncContextManager[ObjectStore]:
    """Open the store; see `sluice_store.url.open_store`."""
    return open_local_store(parse_local_path(url), mode=mode)
