"""The runs of a lane's state: which are merged, their objects, and which of these are deleted.

Every few hundred batches add a run. Runs of about the same size are merged (a log-structured merge
tree, size-tiered): `FAN_IN` runs of one tier, and all later ones, become one run of the next tier,
or a smaller one if they contain the same boots. A changed boot is thereby rewritten once per tier,
and a boot that does not change is rewritten only with as many that do.

Only adjacent runs are merged, and the result takes their place, so a newer state of a boot is
always in a later run than an older one.
"""

import contextlib
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from typing import Final

from sluice_protocol.errors import StoreError
from sluice_protocol.units import ObjectKey
from sluice_queue.lane import Runtime
from sluice_reconciler.lanes.state import part_name, term_of_part
from sluice_store.port import ObjectStore
from sluice_store.retry import WRITE_RETRY, CurrentDeletion, create_known, delete_current_version

RECENT_MAX: Final = 512
"""Recent batches in the lane state above which the next write moves them into a part."""

FAN_IN: Final = 8
"""Runs of one tier that are merged."""

PART_BOOTS_MAX: Final = 65_536
"""Boots in one part at most, about 3 MB. A larger run has several parts."""


def tier_of(boots: int) -> int:
    """Return the tier of a run; a run of the next one has up to `FAN_IN` times as many boots."""
    tier, bound = 0, 2 * RECENT_MAX
    while boots > bound:
        tier, bound = tier + 1, bound * FAN_IN
    return tier


def plan_merge(boots: Sequence[int]) -> int:
    """Return how many of the newest runs are merged now; 0 for none.

    The numbers of boots are the oldest run first.
    """
    newest_first = [tier_of(one) for one in reversed(boots)]
    # A run in front of a larger one is merged together with it.
    tiers = list(accumulate(newest_first, max))
    for tier in sorted(set(tiers)):
        if tiers.count(tier) >= FAN_IN:
            return sum(one <= tier for one in tiers)
    return 0


def nameable(listed: Iterable[str], named: Collection[str], owner_term: int) -> set[str]:
    """Return the listed objects that a lane state names now, or that some owner may yet name.

    An owner names only objects that it wrote, or that the state named when it took the lane over.
    The owner of `owner_term` has swapped a state in, so no other owner of its term or an earlier
    one can swap again. An object of an earlier term that this state does not name is therefore
    never named. Those of this term and of later ones are kept: their writers may be about to name
    them. `named` are the names in the state that the owner of this term swapped in.
    """
    return {name for name in listed if name in named or not _is_before(name, owner_term)}


def _is_before(name: str, owner_term: int) -> bool:
    term = term_of_part(name)
    return term is not None and term < owner_term


class OwnedObjects:
    """The objects that one owner writes for the states of its lane, under fresh names."""

    def __init__(self, store: ObjectStore, prefix: str, term: int, runtime: Runtime) -> None:
        self._store = store
        self._prefix = prefix
        self._term = term
        self._runtime = runtime
        self._known: set[str] = set()
        self._unnamed: set[str] = set()

    async def create(self, body: bytes) -> str:
        """Store an object, and return its name for the next lane state."""
        name = part_name(self._term, self._runtime.ids.ulid())
        self._known.add(name)
        backoff = self._runtime.backoff(WRITE_RETRY)
        key = ObjectKey(self._prefix + name)
        await create_known(self._store, key, body, backoff, retry_unsent=True)
        return name

    def swapped(self, named: set[str]) -> None:
        """Note that the current state names these objects, and that none will name another."""
        self._unnamed |= self._known - named
        self._known = named

    async def delete_unnamed(self) -> None:
        """Delete what this owner replaced, after readers had the time of some flushes."""
        if await self._delete(self._unnamed):
            self._unnamed.clear()

    async def collect(self, named: Collection[str]) -> None:
        """Delete what earlier owners left and no lane state will ever name.

        An error is left to the next owner, because no work depends on the deletion.
        """
        with contextlib.suppress(StoreError):
            async for page in self._store.list(self._prefix):
                listed = {one.key.removeprefix(self._prefix) for one in page.objects}
                await self._delete(listed - nameable(listed, named, self._term))

    async def _delete(self, names: Iterable[str]) -> bool:
        """Delete objects; return False after an error, for which the next call tries the rest."""
        with contextlib.suppress(StoreError):
            for name in sorted(names):
                key = ObjectKey(self._prefix + name)
                if await delete_current_version(self._store, key) is CurrentDeletion.UNVERSIONED:
                    break  # the others cannot be deleted either
                self._unnamed.discard(name)
            return True
        return False
