"""An index of deletes that finds out whether one of them implies another delete.

Comparing every pair of 100 000 deletes would take an hour. Deletes are therefore grouped by their
conditions of equality. A group keeps only time ranges that no other range of the group contains, so
that one bisection decides. Texts are found by looking up the parts of the narrower text.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Final

from sluice_protocol.record_deletes import DeleteRecord

_SUBSETS_MAX: Final = 6
"""Attributes up to which every part of them is looked up."""
_EARLIEST: Final = float("-inf")
_LATEST: Final = float("inf")

_Conditions = tuple[str, str | None, str | None, frozenset[tuple[str, str]]]
"""Kind, agent, name of a metric and attributes of a delete."""


@dataclass(slots=True)
class TimeRanges:
    """Time ranges, without those that another one contains; sorted by start and by end."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def contain(self, start: float, end: float) -> bool:
        """Return True if one of the ranges contains a range."""
        place = bisect_right(self.starts, start)
        return place > 0 and self.ends[place - 1] >= end

    def add(self, start: float, end: float) -> None:
        """Add a range that no other one contains."""
        first, last = bisect_left(self.starts, start), bisect_right(self.ends, end)
        self.starts[first:last] = [start]
        self.ends[first:last] = [end]


@dataclass(slots=True)
class _Group:
    """The deletes of the same conditions of equality, by the text that a log must contain."""

    any_text: TimeRanges = field(default_factory=TimeRanges)
    by_text: dict[str, TimeRanges] = field(default_factory=dict)
    lengths: set[int] = field(default_factory=set)

    def ranges_of(self, text: str | None) -> TimeRanges:
        if text is None:
            return self.any_text
        self.lengths.add(len(text))
        return self.by_text.setdefault(text, TimeRanges())

    def wider_ranges(self, text: str | None) -> Iterator[TimeRanges]:
        yield self.any_text
        if text is None:
            return
        places = sum(len(text) - length + 1 for length in self.lengths if length <= len(text))
        if places > len(self.by_text):
            yield from (found for one, found in self.by_text.items() if one in text)
            return
        for length in self.lengths:
            for start in range(len(text) - length + 1):
                found = self.by_text.get(text[start : start + length])
                if found is not None:
                    yield found


@dataclass(slots=True)
class WiderDeletes:
    """Deletes, added by descending cut-off; equal ones with those that imply others first."""

    _groups: dict[_Conditions, _Group] = field(default_factory=dict)

    def add(self, record: DeleteRecord) -> None:
        """Add a delete that none of the others implies."""
        start, end = _time_range(record)
        group = self._groups.setdefault(_conditions_of(record), _Group())
        group.ranges_of(_text_of(record)).add(start, end)

    def imply(self, record: DeleteRecord) -> bool:
        """Return True if an added delete implies one with the same or an earlier cut-off."""
        start, end = _time_range(record)
        text = _text_of(record)
        return any(
            ranges.contain(start, end)
            for group in self._wider_groups(record)
            for ranges in group.wider_ranges(text)
        )

    def _wider_groups(self, record: DeleteRecord) -> Iterator[_Group]:
        kind, agent, name, attributes = _conditions_of(record)
        if len(attributes) > _SUBSETS_MAX:
            parts = (one for one in self._attributes() if one <= attributes)
        else:
            parts = (frozenset(one) for one in _subsets(attributes))
        for part in parts:
            for one_agent, one_name in product({agent, None}, {name, None}):
                found = self._groups.get((kind, one_agent, one_name, part))
                if found is not None:
                    yield found

    def _attributes(self) -> set[frozenset[tuple[str, str]]]:
        return {key[3] for key in self._groups}


def _subsets(pairs: Collection[tuple[str, str]]) -> Iterator[tuple[tuple[str, str], ...]]:
    for size in range(len(pairs) + 1):
        yield from combinations(pairs, size)


def _conditions_of(record: DeleteRecord) -> _Conditions:
    name = record.contains if record.kind == "metrics" else None
    return record.kind, record.agent_id, name, frozenset(record.attributes.items())


def _text_of(record: DeleteRecord) -> str | None:
    return None if record.kind == "metrics" else record.contains


def _time_range(record: DeleteRecord) -> tuple[float, float]:
    start, end = record.from_unix_ns, record.to_unix_ns
    return _EARLIEST if start is None else start, _LATEST if end is None else end
