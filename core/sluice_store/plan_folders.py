"""The folders of deletion plans, in the order in which the plans were begun.

Plans are permanent, and each costs a request, so the newest ones are found without a request for
each plan ever made. A folder without `plan.json` is a plan that was not completed.
"""

import re
from collections.abc import AsyncIterator
from typing import Final

from sluice_protocol.clock import ulid_time_prefix
from sluice_protocol.keys import AUTHORITY_SETTINGS, GC_PLANS
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_store.port import ObjectStore

_DAY_S: Final = 86_400
_BACK_S: Final = (2 * _DAY_S, 16 * _DAY_S, 128 * _DAY_S)
"""How far back plans are listed before all of them are."""


_PLAN_ID: Final = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}", re.ASCII)


def is_plan_id(text: str) -> bool:
    """Return True if a text has the form of a plan's id, so that it names one folder."""
    return _PLAN_ID.fullmatch(text) is not None


async def read_first_key(store: ObjectStore, prefix: str, after: str) -> ObjectKey | None:
    """Return the first key under a prefix after `after`, or None.

    Raises:
        StoreError: The store is unreachable or refused a request.
    """
    async for page in store.list(prefix, start_after=after):
        for one in page.objects:
            return one.key
        if page.last:
            return None
    return None


async def plan_folders(store: ObjectStore, *, after: str = "") -> AsyncIterator[str]:
    """Yield the ids of plans, oldest first.

    Args:
        store: The deployment.
        after: Only ids after this text; the start of a ULID limits them by time.

    Raises:
        StoreError: The store is unreachable or refused a request.
    """
    key = await read_first_key(store, GC_PLANS, f"{GC_PLANS}{after}" if after else "")
    while key is not None:
        plan_id = key.removeprefix(GC_PLANS).partition("/")[0]
        yield plan_id
        # A plan's folder has thousands of files: skip to behind the last one that is possible.
        key = await read_first_key(store, GC_PLANS, f"{GC_PLANS}{plan_id}/~")


async def plan_folders_newest_first(store: ObjectStore, *, since: str = "") -> AsyncIterator[str]:
    """Yield the ids of plans, newest first; those of the last days are listed first.

    An id contains the time at which its plan was begun.

    Args:
        store: The deployment.
        since: A plan; only it and later ones are listed. Empty for all plans.

    Raises:
        StoreError: The store is unreachable or refused a request.
    """
    if since:
        for plan_id in reversed([one async for one in plan_folders(store, after=since)]):
            yield plan_id
        return
    now_ns = (await store.head(AUTHORITY_SETTINGS)).date_ns
    oldest: str | None = None
    for back_s in (*_BACK_S, None):
        after = "" if back_s is None else ulid_time_prefix(now_ns - back_s * NS_PER_S)
        found = [plan_id async for plan_id in plan_folders(store, after=after)]
        for plan_id in reversed(found):
            if oldest is None or plan_id < oldest:
                yield plan_id
        oldest = found[0] if found else oldest
