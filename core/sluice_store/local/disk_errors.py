"""Errors of the operating system as errors of the port."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sluice_protocol.errors import (
    StoreDenied,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)

FULL: Final = "the disk is full: free space or move the store"
READ_ONLY: Final = "the directory is read-only: mount it writable"
_FORM: Final = "a file is where a folder is required, or the reverse: check the path"
_DENIED: Final = "no permission: give this user the directory"
_GONE: Final = "a folder of the store was removed or moved away: move it back"
_FILES: Final = "too many open files: raise the limit (ulimit -n)"

_TABLE: Final[dict[int, tuple[type[StoreError], str]]] = {
    errno.ENOSPC: (StoreMisconfigured, FULL),
    errno.EDQUOT: (StoreMisconfigured, FULL),
    errno.EROFS: (StoreMisconfigured, READ_ONLY),
    errno.ENOTDIR: (StoreMisconfigured, _FORM),
    errno.EISDIR: (StoreMisconfigured, _FORM),
    errno.EEXIST: (StoreMisconfigured, _FORM),
    errno.ENOENT: (StoreUnavailable, _GONE),
    errno.ENAMETOOLONG: (StoreMisconfigured, "the path is too long: use a shorter root"),
    errno.EACCES: (StoreDenied, _DENIED),
    errno.EPERM: (StoreDenied, _DENIED),
    errno.EMFILE: (StoreUnavailable, _FILES),
    errno.ENFILE: (StoreUnavailable, _FILES),
}


def store_error(error: OSError, operation: str, key: str) -> StoreError:
    """Return the error of the port for an error of the operating system."""
    kind, reason = _TABLE.get(
        error.errno or 0, (StoreUnavailable, (f"input or output error: {error}"))
    )
    return kind(operation, key, reason)


@contextmanager
def translated(operation: str, key: str) -> Iterator[None]:
    """Translate every `OSError` inside the context.

    Raises:
        StoreError: Instead of an `OSError`, which is its cause.
    """
    try:
        yield
    except OSError as error:
        raise store_error(error, operation, key) from error
