"""The order in which a stream reads files and pending batches, and when a record is certain.

Sources are read in waves, those that may contain the newest records first. A wave is bounded by its
cost, so the first records do not wait for a long backlog. A record is certain to be the next one as
soon as no source of a later wave can contain a newer record. Everything here is pure.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sluice_lake.data_files import DataFile
from sluice_protocol.manifests import AcceptedManifest
from sluice_query.pending import end_ns
from sluice_query.pruning import time_bound_ns

FIRST_WAVE_BYTES: Final = 8 << 20
WAVE_BYTES_MAX: Final = 256 << 20
BATCH_COST_BYTES: Final = 256 << 10
"""What one pending batch costs in addition to its size: a request to the store, and decoding.

At most 32 batches are therefore in the first wave, however small they are.
"""
_GROWTH: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Sources that are read together.

    Attributes:
        files: Files of the lake.
        batches: Pending batches.
        until_ns: All records of later waves are before this time; None for the last wave.
    """

    files: tuple[DataFile, ...]
    batches: tuple[AcceptedManifest, ...]
    until_ns: float | None


RecordKey = tuple[int, str, str, int]
"""Time, agent, boot and sequence number of a record; the order of a search."""
KeyedRow = tuple[RecordKey, tuple[object, ...]]
_Source = DataFile | AcceptedManifest


def plan_waves(files: Sequence[DataFile], batches: Sequence[AcceptedManifest] = ()) -> list[Wave]:
    """Divide sources into waves of growing cost, the newest records first; at least one wave."""
    sources: list[_Source] = [*batches, *files]
    groups: list[list[_Source]] = [[]]
    bound_bytes, cost_bytes = FIRST_WAVE_BYTES, 0
    for source in sorted(sources, key=_bound_ns, reverse=True):
        if groups[-1] and cost_bytes + _cost_bytes(source) > bound_bytes:
            groups.append([])
            bound_bytes, cost_bytes = min(bound_bytes * _GROWTH, WAVE_BYTES_MAX), 0
        groups[-1].append(source)
        cost_bytes += _cost_bytes(source)
    later = [*(_bound_ns(group[0]) for group in groups[1:]), None]
    return [
        Wave(
            files=tuple(one for one in group if isinstance(one, DataFile)),
            batches=tuple(one for one in group if isinstance(one, AcceptedManifest)),
            until_ns=until,
        )
        for group, until in zip(groups, later, strict=True)
    ]


def _bound_ns(source: _Source) -> float:
    return time_bound_ns(source) if isinstance(source, DataFile) else end_ns(source)


def _cost_bytes(source: _Source) -> int:
    if isinstance(source, DataFile):
        return source.size_bytes
    return source.frame_bytes + BATCH_COST_BYTES


class NewestFirst:
    """Records of waves, merged: returned when no later wave can contain a newer one."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._held: list[KeyedRow] = []
        self.more = False

    def add(self, found: Sequence[KeyedRow], until_ns: float | None) -> list[tuple[object, ...]]:
        """Add the rows of a wave, sorted; return the rows that are now certain to be next.

        Args:
            found: Keys and rows, the newest first.
            until_ns: All rows of later waves are before this time; None if there are none.
        """
        held = list(heapq.merge(self._held, found, key=_order, reverse=True))
        certain = len(held)
        if until_ns is not None:
            certain = next((n for n, (key, _) in enumerate(held) if key[0] < until_ns), certain)
        taken = min(certain, self._left)
        self._left -= taken
        # One row over the limit shows whether there are more; further ones are never returned.
        self._held = held[taken : taken + self._left + 1]
        self.more = self._left == 0 and bool(self._held)
        return [row for _, row in held[:taken]]

    @property
    def wanted(self) -> int:
        """How many rows of a further wave can be needed."""
        return self._left + 1


def _order(item: KeyedRow) -> RecordKey:
    return item[0]
