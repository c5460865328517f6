"""Selection of the data files of `metrics` that a source range of rollups is computed from.

A run reads the files that were added since the previous range, not the whole table. The previous
range names a version of the table that contains no later row. Every file of that version is
therefore without points of this range, whatever compaction did since.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from sluice_lake.data_files import STATS_SLACK_NS, DataFile
from sluice_lake.source_ranges import SourceRange
from sluice_protocol.units import NS_PER_S

_HOUR_NS: Final = 3600 * NS_PER_S


def select_point_files(
    files: Iterable[DataFile],
    source: SourceRange,
    *,
    lanes: int,
    known: Collection[str] | None,
    hours: Sequence[int] = (),
) -> list[DataFile]:
    """Return the files that may contain points of a source range or of some hours.

    Args:
        files: The data files of `metrics`.
        source: The source range.
        lanes: Number of lanes.
        known: Paths of the files of a version that contains no point of this range; None if no such
            version is known.
        hours: Hours since 1970 that are aggregated again, sorted.
    """
    ends = [source.ends(lane) for lane in range(lanes)]
    return [
        file
        for file in files
        if (_may_contain_later(file, ends) and (known is None or file.path not in known))
        or _may_contain_hour(file, hours)
    ]


def _may_contain_later(file: DataFile, ends: Sequence[tuple[int, int]]) -> bool:
    moved = [(after, through) for after, through in ends if through > after]
    if file.sequences is None:
        return bool(moved)
    first, last = file.sequences
    return any(first <= through and last > after for after, through in moved)


def _may_contain_hour(file: DataFile, hours: Sequence[int]) -> bool:
    if not hours or file.ts.range_ns is None:
        return bool(hours)
    earliest, latest = file.ts.range_ns
    place = bisect_left(hours, (earliest - STATS_SLACK_NS) // _HOUR_NS)
    return place < len(hours) and hours[place] <= (latest + STATS_SLACK_NS) // _HOUR_NS
