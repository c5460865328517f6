"""The newest keys of the chain of certificates, without a list of a long chain.

The chain is permanent and grows with each audit. Its positions are contiguous, so the end of a
chain of more than one page is found with a number of HEAD requests that is logarithmic in its
length. They only choose where the last listing begins. That listing decides: it begins at or before
a position that exists and has no end. It therefore contains the newest key, also of a chain in
which positions are missing.
"""

from collections import deque

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import AUDIT_CHAIN, chain_key
from sluice_protocol.outcomes import ObjectInfo
from sluice_protocol.units import ObjectKey
from sluice_store.port import ListPage, ObjectStore


def chain_position(key: ObjectKey) -> int:
    """Return the position that a key of the chain names.

    Raises:
        InvalidRecord: The key is not a position.
    """
    name = key.removeprefix(AUDIT_CHAIN).removesuffix(".json")
    if not name.isdecimal() or chain_key(int(name)) != key:
        raise InvalidRecord(key, "key is not a position in the chain of certificates")
    return int(name)


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
