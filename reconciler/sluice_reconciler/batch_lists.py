"""Lists of accepted batches: by agent in the order of identities, or the newest first by time.

The list by time reads the by-time index, so it contains a batch after the reconciler has indexed
it. Both lists are bounded in objects, whatever the size of the store.
"""

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import ACCEPTED, ACCEPTED_BY_TIME, agent_prefix, hour_path
from sluice_protocol.manifests import AcceptedManifest, decode_accepted
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_reconciler.indexes import decode_by_time, first_instant
from sluice_store.port import ObjectStore, read_bodies

READS_AT_ONCE: Final = 32
LISTED_MAX: Final = 20_000
"""Index objects that one span of time lists."""
OPENED_MAX: Final = 512
"""Index objects that one page reads, the newest of the span."""
_SPANS_S: Final = (1, 10, 60, 600, 3_600, 6 * 3_600, 86_400, 7 * 86_400)
"""Spans that are tried one after the other, until a page is full."""
_HALVINGS_MAX: Final = 20
"""Shorter spans that are tried if one has more index objects than are listed."""


class BatchPage(msgspec.Struct, frozen=True, kw_only=True):
    """Accepted batches of a store.

    Attributes:
        unreadable: Keys of manifests or index objects that cannot be read.
        since_unix_ns: The start of the time that was searched; None for a list by agent.
        next: `after` of the next page; None on the last page.
    """

    batches: tuple[AcceptedManifest, ...]
    unreadable: tuple[str, ...] = ()
    since_unix_ns: int | None = None
    next: str | None = None


class BatchSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The indexed batches of a span of time.

    Attributes:
        unreadable: Keys of index objects.
        complete_since_unix_ns: Every indexed batch that was accepted between this time and the end
            is contained; `since_unix_ns` if the whole span was read.
    """

    batches: tuple[AcceptedManifest, ...]
    unreadable: tuple[str, ...]
    since_unix_ns: int
    before_unix_ns: int
    complete_since_unix_ns: int

    @property
    def is_cut(self) -> bool:
        """Whether only the newest part of the span was read."""
        return self.complete_since_unix_ns > self.since_unix_ns


async def read_batches(
    store: ObjectStore, agent: str | None, limit: int, after: str = ""
) -> BatchPage:
    """Return accepted batches in the order of agent, boot and sequence.

    `after` is `next` of the page before.
    """
    found: list[AcceptedManifest] = []
    broken: list[str] = []
    async for keys in _chunks(store, ACCEPTED if agent is None else agent_prefix(agent), after):
        for key, one in zip(keys, await _read_all(store, keys), strict=True):
            if isinstance(one, InvalidRecord):
                broken.append(key)
            elif one is not None:
                found.append(one)
            if len(found) >= limit:
                return BatchPage(batches=tuple(found), unreadable=tuple(broken), next=key)
    return BatchPage(batches=tuple(found), unreadable=tuple(broken))


async def _chunks(
    store: ObjectStore, prefix: str, after: str
) -> AsyncIterator[tuple[ObjectKey, ...]]:
    async for page in store.list(prefix, start_after=after):
        for at in range(0, len(page.objects), READS_AT_ONCE):
            yield tuple(one.key for one in page.objects[at : at + READS_AT_ONCE])


async def _read_all(
    store: ObjectStore, keys: tuple[ObjectKey, ...]
) -> list[AcceptedManifest | InvalidRecord | None]:
    bodies = await read_bodies(store, keys)
    return [
        None if body is None else _manifest(key, body)
        for key, body in zip(keys, bodies, strict=True)
    ]


def _manifest(key: ObjectKey, body: bytes) -> AcceptedManifest | InvalidRecord:
    try:
        return decode_accepted(key, body)
    except InvalidRecord as error:
        return error


async def read_newest_batches(
    store: ObjectStore, before_ns: int, limit: int, *, ahead_s: int = 0
) -> BatchPage:
    """Return the newest indexed batches that were accepted before a time, the newest first.

    It searches longer and longer spans, at most the seven days before the time. A listing begins
    with the oldest object, so a span with more objects than are listed is made shorter. `ahead_s`
    is how much of the time before `before_ns` may be in the future.
    """
    page, before_s = BatchPage(batches=()), 0.0
    for whole_s in _SPANS_S:
        span_s = float(ahead_s + whole_s)
        listed = await _index_keys(store, before_ns - int(span_s * NS_PER_S), before_ns)
        if listed.cut:
            listed = await _shorter(store, listed, before_s, limit)
            page = await _read_entries(store, listed, limit, OPENED_MAX)
            older = _next_of(page.batches)  # the longer span has more
            return msgspec.structs.replace(page, next=older)
        page = await _read_entries(store, listed, limit, OPENED_MAX)
        if len(page.batches) >= limit:
            break
        before_s = span_s
    return page


async def _shorter(store: ObjectStore, cut: "_Listed", complete_s: float, limit: int) -> "_Listed":
    """Return the listing of a shorter span that is complete and has enough objects, if possible.

    The span of `cut` has too many objects, one of `complete_s` too few; `limit` are enough.
    """
    found, too_long_s = cut, (cut.before_ns - cut.since_ns) / NS_PER_S
    for _ in range(_HALVINGS_MAX):
        span_s = (complete_s + too_long_s) / 2
        listed = await _index_keys(store, cut.before_ns - int(span_s * NS_PER_S), cut.before_ns)
        if listed.cut:
            too_long_s = span_s
            continue
        complete_s = span_s
        if listed.keys:
            found = listed
        if len(listed.keys) >= limit:
            break
    return found


async def read_span(
    store: ObjectStore, since_ns: int, before_ns: int, limit: int, opened_max: int = OPENED_MAX
) -> BatchSpan:
    """Return the newest indexed batches that were accepted in [since, before), the newest first.

    At most `limit` batches are returned and `opened_max` index objects read.
    """
    listed = await _index_keys(store, since_ns, before_ns)
    read = await _open_newest(store, listed, limit, opened_max)
    complete_ns = before_ns if listed.cut else listed.since_ns
    if read.opened < len(listed.keys):
        complete_ns = max(complete_ns, _last_ns(listed.keys[read.opened]) + 1)
    if len(read.batches) > limit:
        complete_ns = max(complete_ns, read.batches[limit].accepted_at_unix_ns + 1)
    return BatchSpan(
        batches=tuple(read.batches[:limit]),
        unreadable=tuple(read.broken),
        since_unix_ns=listed.since_ns,
        before_unix_ns=before_ns,
        complete_since_unix_ns=min(complete_ns, max(before_ns, listed.since_ns)),
    )


async def _read_entries(
    store: ObjectStore, listed: "_Listed", limit: int, opened_max: int
) -> BatchPage:
    """Return the newest entries of index objects as a page."""
    read = await _open_newest(store, listed, limit, opened_max)
    shown = tuple(read.batches[:limit])
    more = read.opened < len(listed.keys) or len(read.batches) >= limit
    return BatchPage(
        batches=shown,
        unreadable=tuple(read.broken),
        since_unix_ns=listed.since_ns,
        next=_next_of(shown) if more else None,
    )


class _Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of the newest index objects of a span."""

    batches: list[AcceptedManifest]
    broken: list[str]
    opened: int


async def _open_newest(
    store: ObjectStore, listed: "_Listed", limit: int, opened_max: int
) -> _Opened:
    """Read index objects until there are enough entries."""
    keys = listed.keys
    found: dict[ObjectKey, AcceptedManifest] = {}
    broken: list[str] = []
    opened = 0
    for at in range(0, min(len(keys), opened_max), READS_AT_ONCE):
        some = keys[at : at + READS_AT_ONCE]
        opened += len(some)
        bodies = await read_bodies(store, some)
        for key, body in zip(some, bodies, strict=True):
            entries = {} if body is None else _entries(key, body)
            if isinstance(entries, InvalidRecord):
                broken.append(entries.key)
            else:
                found |= {
                    entry: one
                    for entry, one in entries.items()
                    if listed.since_ns <= one.accepted_at_unix_ns < listed.before_ns
                }
        if len(found) >= limit:
            break
    batches = sorted(found.values(), key=lambda one: one.accepted_at_unix_ns, reverse=True)
    return _Opened(batches=batches, broken=broken, opened=opened)


def _next_of(shown: tuple[AcceptedManifest, ...]) -> str | None:
    return str(shown[-1].accepted_at_unix_ns) if shown else None


class _Listed(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of the index objects with entries of a span, the newest first.

    It is `cut` if the newest objects are missing, because the span has too many.
    """

    since_ns: int
    before_ns: int
    keys: list[ObjectKey]
    cut: bool


async def _index_keys(store: ObjectStore, since_ns: int, before_ns: int) -> _Listed:
    """List the index objects with entries of a span."""
    since_ns = max(0, since_ns)
    after = f"{ACCEPTED_BY_TIME}{hour_path(since_ns)}/{since_ns:020d}"
    end = f"{ACCEPTED_BY_TIME}{hour_path(before_ns + 3_600 * NS_PER_S)}/~"
    found: list[ObjectKey] = []
    cut = False
    async for page in store.list(ACCEPTED_BY_TIME, start_after=after):
        for one in page.objects:
            first_ns = first_instant(one.key)
            if first_ns is not None and first_ns < before_ns:
                found.append(one.key)
        if page.objects and page.objects[-1].key > end:
            break
        cut = len(found) >= LISTED_MAX
        if cut:
            break
    return _Listed(since_ns=since_ns, before_ns=before_ns, keys=found[::-1], cut=cut)


def _last_ns(key: ObjectKey) -> int:
    """Return the last instant in an index object; it has 20 digits in both forms of the key."""
    return int(key.rpartition("/")[2][:20])


def _entries(key: ObjectKey, body: bytes) -> dict[ObjectKey, AcceptedManifest] | InvalidRecord:
    try:
        return decode_by_time(key, body)
    except InvalidRecord as error:
        return error
