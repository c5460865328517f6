"""`file://` URLs: a directory as a store."""

from contextlib import AbstractAsyncContextManager

from sluice_store.local.store import open_local_store
from sluice_store.mode import StoreMode, parse_local_path
from sluice_store.port import ObjectStore

check_url = parse_local_path


def open_url(url: str, mode: StoreMode) -> AbstractAsyncContextManager[ObjectStore]:
    """Open the store; see `sluice_store.url.open_store`."""
    return open_local_store(parse_local_path(url), mode=mode)
