"""The newest keys of the chain of certificates, without a list of the whole chain.

The chain is permanent and grows with each audit. Its positions are contiguous, so the newest one
is found with a number of HEAD requests that is logarithmic in the length of the chain.
"""

from collections import deque

from sluice_protocol.keys import AUDIT_CHAIN, chain_key
from sluice_protocol.outcomes import ObjectInfo
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore


async def list_newest_certificate_keys(
    store: ObjectStore, limit: int, *, known: int = -1
) -> tuple[ObjectKey, ...]:
    """Return the keys of the newest certificates, the newest first.

    Args:
        store: The deployment.
        limit: How many keys are returned at most.
        known: A position that was seen earlier, from which the search begins; -1 for none.

    Raises:
        StoreError: The store is unreachable or refused a request.
    """
    first = await _find_last(store, known) - limit
    found = await _list_last(store, limit, chain_key(first) if first >= 0 else "")
    if first >= 0 and len(found) < limit:  # positions are missing: only the whole list is exact
        return await _list_last(store, limit, "")
    return found


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
