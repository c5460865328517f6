"""`s3://` URLs: a bucket and a prefix as a store."""

from contextlib import AbstractAsyncContextManager

from sluice_store.port import ObjectStore
from sluice_store.s3.settings import parse_s3_url
from sluice_store.url import StoreMode

check_url = parse_s3_url


def open_url(url: str, mode: StoreMode) -> AbstractAsyncContextManager[ObjectStore]:
    """Open the store; a bucket must exist, and is not changed by opening it in any mode."""
    del mode
    from sluice_store.s3.sdk import open_s3_store  # noqa: PLC0415 - an extra, and slow to import

    return open_s3_store(parse_s3_url(url))
