"""Covers: which points a rollup chunk is made of, decided once and for ever by conditional create.

Cover n says, lane by lane, after which queue sequence it begins and with which it ends; it begins
where cover n - 1 ended. Whoever creates it first decides the ends; every other owner then makes the
same chunks. So no point is counted twice or left out, whoever runs, and late data is in a later
cover, never in a changed chunk. A cover also says which deletes the rollups honour from it on.
"""

from collections.abc import Collection, Mapping

import msgspec

from sluice_protocol.keys import ROLLUP
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Applied, Exists, Found
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import ObjectKey
from sluice_store import ObjectStore
from sluice_store.retry import Backoff, create_known

COVERS = f"{ROLLUP}covers/"


class Cover(msgspec.Struct, frozen=True, kw_only=True):
    """One cover; a lane that is not named stands at 0.

    Attributes:
        number: 1, 2, 3 … without gaps.
        after: Lane to the last sequence that is not in it any more.
        through: Lane to the last sequence that is in it.
        deletes: The deletes that every row up to this cover honours, in order; the ones that the
            cover before lacks made its owner do the touched hours again (ADR 0057).
    """

    schema: str = "sluice.rollup_cover.v1"
    number: int
    after: dict[str, int]
    through: dict[str, int]
    deletes: tuple[str, ...] = ()

    def ends(self, lane: int) -> tuple[int, int]:
        """Gives the ends of a lane: after the first, through the second."""
        return self.after.get(str(lane), 0), self.through.get(str(lane), 0)


def cover_key(number: int) -> ObjectKey:
    """Gives the key of a cover."""
    return ObjectKey(f"{COVERS}{number:020d}.json")


async def read_cover(store: ObjectStore, number: int) -> Cover | None:
    """Reads a cover, or gives None where there is none.

    Raises:
        InvalidRecord: It is not of this schema.
        StoreError: The store did not answer.
    """
    key = cover_key(number)
    answer = await store.get(key)
    return decode_record(key, answer.body, Cover) if isinstance(answer, Found) else None


async def next_cover(
    store: ObjectStore,
    previous: Cover | None,
    ends: Mapping[int, int],
    deletes: Collection[str] = (),
) -> Cover | None:
    """Gives the cover after `previous`: the one that stands, or one up to `ends`.

    Returns:
        None where nothing has come: neither points nor, after a first cover, deletes.

    Raises:
        OutcomeUnknown: The bounds are spent.
        StoreError: The store did not answer.
    """
    number = previous.number + 1 if previous is not None else 1
    standing = await read_cover(store, number)
    if standing is not None:
        return standing
    after = dict(previous.through) if previous is not None else {}
    through = after | {
        str(lane): end for lane, end in ends.items() if end > after.get(str(lane), 0)
    }
    known = frozenset(previous.deletes) if previous is not None else frozenset(deletes)
    honoured = tuple(sorted(known.union(deletes)))
    if through == after and known.issuperset(deletes):
        return None
    wanted = Cover(number=number, after=after, through=through, deletes=honoured)
    backoff = Backoff.seeded_by(SystemClock())
    match await create_known(store, cover_key(number), encode_record(wanted), backoff):
        case Applied():
            return wanted
        case Exists():
            return await read_cover(store, number)
