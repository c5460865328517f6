"""Pages of a list that is longer than one response."""

from collections.abc import Mapping
from typing import Final, Generic, TypeVar

import msgspec

from sluice_protocol.errors import BadUsage
from sluice_web.parameters import TextParameter

AFTER: Final = TextParameter(name="after")
"""The cursor: `next` of the page before."""

_Item = TypeVar("_Item")


class Page(msgspec.Struct, Generic[_Item], frozen=True, kw_only=True):
    """A page in key order; `next` is null on the last page."""

    items: tuple[_Item, ...]
    next: str | None


def read_cursor(query: Mapping[str, str], prefix: str) -> str:
    """Return the cursor of a query, which must have `prefix`; empty for the first page."""
    after = AFTER.read(query) or ""
    if after and not after.startswith(prefix):
        raise BadUsage(f"after must be the `next` of an earlier page, after=`{after[:80]}`")
    return after
