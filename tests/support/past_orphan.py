"""An orphan with a timestamp in the past, so that a demonstration need not wait a week.

The store is opened with a clock that runs in the past, and assigns that time to the blob. Nothing
bypasses the store and no rule is shortened: the authority keeps its retry horizon, and the audit,
the plan and the run of the demonstration are the ordinary ones.
"""

from pathlib import Path

from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import blob_key, digest_of
from sluice_protocol.outcomes import Applied
from sluice_protocol.units import NS_PER_S, Digest, UnixNs
from sluice_store.local import open_local_store


class _PastClock:
    """A clock that is `behind_ns` behind another clock."""

    def __init__(self, clock: Clock, behind_ns: int) -> None:
        self._clock = clock
        self._behind_ns = behind_ns

    def now_ns(self) -> UnixNs:
        return UnixNs(self._clock.now_ns() - self._behind_ns)

    def monotonic_ns(self) -> int:
        return self._clock.monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


async def plant_past_orphan(root: Path, frame: bytes, *, age_s: int, clock: Clock) -> Digest:
    """Write a blob without a manifest, with a timestamp `age_s` seconds in the past.

    `root` is the directory of an empty local store without an authority: timestamps of a store
    never decrease, so this blob must be its first object. Raise `BadUsage` if the store has a later
    timestamp, or the blob exists.
    """
    digest = digest_of(frame)
    past = _PastClock(clock, age_s * NS_PER_S)
    async with open_local_store(root, clock=past) as store:
        written = await store.create(blob_key(digest), frame)
    if not isinstance(written, Applied):
        raise BadUsage(f"cannot plant orphan: the blob exists, root=`{root}`")
    if written.date_ns > clock.now_ns() - age_s * NS_PER_S + NS_PER_S:
        raise BadUsage(f"cannot plant orphan: the store has later timestamps, root=`{root}`")
    return digest
