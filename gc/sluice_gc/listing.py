"""Lists one key range to its end and shows that it did."""

from collections.abc import AsyncIterator

from sluice_gc.coverage import KeyRange
from sluice_gc.errors import AuditIncomplete
from sluice_gc.merkle import MerkleTree, listed_leaf
from sluice_store.port import ListedIncarnation, ListedObject, ObjectStore


class RangeListing:
    """One pass over a key range; `shown` is the proof of it once the pass ended."""

    def __init__(
        self, store: ObjectStore, prefix: str, start_after: str, end_at: str | None
    ) -> None:
        """Takes the range: `start_after < key <= end_at` under `prefix`."""
        self._store = store
        self._prefix = prefix
        self._start_after = start_after
        self._end_at = end_at
        self._tree = MerkleTree()
        self._pages = 0
        self._dates: list[int] = []
        self._last_key = start_after
        self._ended = False

    async def objects(self) -> AsyncIterator[tuple[ListedObject, ...]]:
        """Lists current objects, page by page.

        Raises:
            AuditIncomplete: The listing left its range or its order.
            StoreError: No answer, or a refusal.
        """
        pages = self._store.list(self._prefix, start_after=self._start_after, end_at=self._end_at)
        async for page in pages:
            for one in page.objects:
                self._follow(one.key, again=False)
                self._tree.add(listed_leaf(one.key, one.etag))
            self._page(page.date_ns, last=page.last)
            yield page.objects

    async def incarnations(self) -> AsyncIterator[tuple[ListedIncarnation, ...]]:
        """Lists every incarnation and marker, page by page.

        Raises:
            AuditIncomplete: The listing left its range or its order.
            StoreError: No answer, or a refusal.
        """
        pages = self._store.list_incarnations(
            self._prefix, start_after=self._start_after, end_at=self._end_at
        )
        async for page in pages:
            for one in page.incarnations:
                self._follow(one.key, again=True)
                self._tree.add(listed_leaf(one.key, f"{one.incarnation}\x00{one.etag}"))
            self._page(page.date_ns, last=page.last)
            yield page.incarnations

    def shown(self) -> KeyRange:
        """Gives what was listed.

        Raises:
            AuditIncomplete: The store never said that nothing follows.
        """
        if not self._ended:
            raise AuditIncomplete(self._prefix, f"the listing ended after `{self._last_key}`")
        return KeyRange(
            start_after=self._start_after,
            end_at=self._end_at,
            pages=self._pages,
            objects=self._tree.leaves,
            root=self._tree.root(),
            first_date_unix_ns=self._dates[0],
            last_date_unix_ns=max(self._dates),
        )

    def _page(self, date_ns: int, *, last: bool) -> None:
        self._pages += 1
        self._dates.append(date_ns)
        self._ended = last

    def _follow(self, key: str, *, again: bool) -> None:
        """Checks that keys rise: a page that repeats or skips back would hide others."""
        now, before = key.encode(), self._last_key.encode()
        past = self._end_at is not None and now > self._end_at.encode()
        falls = now < before or (now == before and (not again or key == self._start_after))
        if falls or past or not key.startswith(self._prefix):
            raise AuditIncomplete(self._prefix, f"`{key}` is listed out of order")
        self._last_key = key
