"""Which deletes may remove rows of a data file, without a comparison of each file with each delete.

A file of a date contains only rows that were accepted on that date, so a delete with an earlier
cut-off cannot remove one. Deletes are sorted by agent and by the date of their cut-off. For a file
of recent records, only deletes that are as recent are compared.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from sluice_lake.data_files import DataFile
from sluice_lake.tables import accepted_date
from sluice_protocol.record_deletes import DeleteRecord
from sluice_spark.file_selection import may_contain_deleted


class _ByCutOff:
    """Deletes, sorted by the date of their cut-off."""

    def __init__(self, records: Iterable[DeleteRecord]) -> None:
        dated = sorted(
            ((accepted_date(one.accepted_until_unix_ns), one) for one in records),
            key=lambda pair: pair[0],
        )
        self._dates = [day for day, _ in dated]
        self._records = [one for _, one in dated]

    def since(self, partition: str) -> Iterator[DeleteRecord]:
        """Yield the deletes whose cut-off is on a date or later."""
        first = bisect_left(self._dates, partition)
        return (self._records[place] for place in range(first, len(self._records)))


class DeleteIndex:
    """Deletes of one kind."""

    def __init__(self, records: Sequence[DeleteRecord]) -> None:
        """Sort the deletes."""
        groups: dict[str, list[DeleteRecord]] = defaultdict(list)
        for one in records:
            if one.agent_id is not None:
                groups[one.agent_id].append(one)
        self._any_agent = _ByCutOff(one for one in records if one.agent_id is None)
        self._agents = sorted(groups)
        self._by_agent = [_ByCutOff(groups[agent]) for agent in self._agents]

    def touching(self, file: DataFile) -> list[DeleteRecord]:
        """Return the deletes that, by the statistics of a file, may remove rows of it."""
        return [
            record
            for group in (self._any_agent, *self._groups_of(file))
            for record in group.since(file.partition)
            if may_contain_deleted(file, record)
        ]

    def _groups_of(self, file: DataFile) -> Sequence[_ByCutOff]:
        if file.agents is None:
            return self._by_agent
        first, last = file.agents
        end = bisect_right(self._agents, last)
        # Statistics may be truncated: agents that begin with the last one may follow it.
        while end < len(self._agents) and self._agents[end].startswith(last):
            end += 1
        return self._by_agent[bisect_left(self._agents, first) : end]
