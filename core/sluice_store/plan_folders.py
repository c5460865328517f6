"""Deletion plans, their approvals and the chain of certificates: what is newest in long folders.

Plans are permanent, and each costs a request, so the newest ones are found without a request for
each plan ever made. A folder without `plan.json` is a plan that was not completed.

The chain of certificates is permanent and grows with each audit. Its positions are contiguous, so
the end of a chain of more than one page is found with a number of HEAD requests that is logarithmic
in its length. They only choose where the last listing begins. That listing decides: it begins at or
before a position that exists and has no end. It therefore contains the newest key, also of a chain
in which positions are missing.
"""

import re
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from sluice_protocol.blob_deletion import PlanApproval, approval_key
from sluice_protocol.clock import ulid_time_prefix
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import AUDIT_CHAIN, GC_PLANS, chain_key
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_store.authority import read_store_time
from sluice_store.port import ListPage, ObjectStore

_DAY_S: Final = 86_400
_BACK_S: Final = (2 * _DAY_S, 16 * _DAY_S, 128 * _DAY_S)
"""How far back plans are listed before all of them are."""


_PLAN_ID: Final = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}", re.ASCII)


def is_plan_id(text: str) -> bool:
    """Return True if a text has the form of a plan's id, so that it names one folder."""
    return _PLAN_ID.fullmatch(text) is not None


async def read_first_key(store: ObjectStore, prefix: str, after: str) -> ObjectKey | None:
    """Return the first key under a prefix after `after`, or None."""
    async for page in store.list(prefix, start_after=after):
        for one in page.objects:
            return one.key
        if page.last:
            return None
    return None


async def plan_folders(store: ObjectStore, *, after: str = "") -> AsyncIterator[str]:
    """Yield the ids of plans, oldest first, after an id or the start of one, which is a time."""
    key = await read_first_key(store, GC_PLANS, f"{GC_PLANS}{after}" if after else "")
    while key is not None:
        plan_id = key.removeprefix(GC_PLANS).partition("/")[0]
        yield plan_id
        # A plan's folder has thousands of files: skip to behind the last one that is possible.
        key = await read_first_key(store, GC_PLANS, f"{GC_PLANS}{plan_id}/~")


async def plan_folders_newest_first(store: ObjectStore, *, since: str = "") -> AsyncIterator[str]:
    """Yield the ids of plans, newest first; those of the last days are listed first.

    An id contains the time at which its plan was begun. With `since`, only that plan and later ones
    are listed.
    """
    if since:
        for plan_id in reversed([one async for one in plan_folders(store, after=since)]):
            yield plan_id
        return
    now_ns = await read_store_time(store)
    oldest: str | None = None
    for back_s in (*_BACK_S, None):
        after = "" if back_s is None else ulid_time_prefix(now_ns - back_s * NS_PER_S)
        found = [plan_id async for plan_id in plan_folders(store, after=after)]
        for plan_id in reversed(found):
            if oldest is None or plan_id < oldest:
                yield plan_id
        oldest = found[0] if found else oldest


def chain_position(key: ObjectKey) -> int:
    """Return the position that a key of the chain names."""
    name = key.removeprefix(AUDIT_CHAIN).removesuffix(".json")
    if not name.isdecimal() or chain_key(int(name)) != key:
        raise InvalidRecord(key, "key is not a position in the chain of certificates")
    return int(name)


async def list_newest_certificate_keys(
    store: ObjectStore, limit: int, *, known: int = -1
) -> tuple[ObjectKey, ...]:
    """Return the newest keys of certificates, newest first; `known` is a position seen earlier."""
    if known < 0:
        page = await anext(aiter(store.list(AUDIT_CHAIN)))
        if page.last:
            return tuple(one.key for one in page.objects[: -limit - 1 : -1])
        known = _known_position(page)
    first = await _find_last(store, known) - limit
    found = await _list_last(store, limit, chain_key(first) if first >= 0 else "")
    if first >= 0 and len(found) < limit:  # positions are missing: only the whole list is exact
        return await _list_last(store, limit, "")
    return found


def _known_position(page: ListPage) -> int:
    """Return the position of the last key of a page; -1 if it is none."""
    try:
        return chain_position(page.objects[-1].key) if page.objects else -1
    except InvalidRecord:
        return -1


async def _list_last(store: ObjectStore, limit: int, after: str) -> tuple[ObjectKey, ...]:
    newest: deque[ObjectKey] = deque(maxlen=limit)
    async for page in store.list(AUDIT_CHAIN, start_after=after):
        newest.extend(one.key for one in page.objects)
    return tuple(reversed(newest))


async def _find_last(store: ObjectStore, known: int) -> int:
    """Return a position whose successor is missing: the last one, unless positions are missing."""
    last = known if known >= 0 and await _exists(store, known) else -1
    step = 1
    while await _exists(store, last + step):
        last += step
        step *= 2
    missing = last + step
    while missing - last > 1:
        middle = (last + missing) // 2
        if await _exists(store, middle):
            last = middle
        else:
            missing = middle
    return last


async def _exists(store: ObjectStore, position: int) -> bool:
    return isinstance(await store.head(chain_key(position)), ObjectInfo)


async def read_approval(store: ObjectStore, plan_id: str) -> PlanApproval | None:
    """Return the approval of a plan, or None if there is none."""
    key = approval_key(plan_id)
    found = await store.get(key)
    return decode_record(key, found.body, PlanApproval) if isinstance(found, Found) else None
