"""The kinds of store that a URL can name: one line for each, and a folder in `sluice_store`.

The help of `--store`, the checks of URLs, the opening of a store and the conformance tests read
this table. The module `backend` of the folder defines `check_url(url)` and `open_url(url, mode)`.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One kind of store.

    Attributes:
        form: A URL as the help shows it.
        scratch: A URL of an empty store below `{folder}` that needs no server, for tests.
        is_local: Whether it is on this machine. Then a gateway examines it at its start, a few
            concurrent requests are the fastest, and its requests have no price.
    """

    scheme: str
    folder: str
    form: str
    scratch: str = ""
    is_local: bool


BACKENDS: Final = (
    Backend(
        scheme="file",
        folder="local",
        form="file:///path",
        scratch="file://{folder}/store",
        is_local=True,
    ),
    Backend(
        scheme="s3",
        folder="s3",
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
