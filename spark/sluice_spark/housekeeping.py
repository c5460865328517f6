"""Pure decisions of maintenance: which files are rewritten, and what is dropped on the way.

A partition is closed when its date is over by more than the grace time. Only closed partitions are
rewritten, so that maintenance and ingestion rarely meet; when they do, both are safe.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from sluice_protocol.lake import accepted_date
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S
from sluice_spark.inventory import DataFile

_DAY_S: Final = 24 * 3600
SMALL_FILES_MIN: Final = 2
"""Rewriting one small file alone gains nothing."""


def is_closed(partition: str, now_ns: int, grace_s: int) -> bool:
    """Tells whether a date is over by more than the grace time."""
    begins = datetime.combine(date.fromisoformat(partition), datetime.min.time(), UTC)
    return int(begins.timestamp()) + _DAY_S + grace_s <= now_ns // NS_PER_S


def small_files(files: Sequence[DataFile], target_bytes: int) -> list[DataFile]:
    """Gives the files of one partition that are better off together; none when it is in order."""
    small = [file for file in files if file.size_bytes < target_bytes // 2]
    return small if len(small) >= SMALL_FILES_MIN else []


def may_have_agent(file: DataFile, agent_id: str) -> bool:
    """Tells whether a file may hold rows of an agent; another tool may cut its upper one short."""
    if file.agents is None:
        return True
    first, last = file.agents
    return first <= agent_id and (agent_id <= last or agent_id.startswith(last))


def may_match(file: DataFile, record: DeleteRecord) -> bool:
    """Tells whether a file may hold rows that a delete removes, by what the log says of it."""
    if file.partition > accepted_date(record.accepted_until_unix_ns):
        return False
    if record.agent_id is not None and not may_have_agent(file, record.agent_id):
        return False
    if file.times_ns is None:
        return True
    earliest, latest = file.times_ns
    starts_late = record.from_unix_ns is not None and record.from_unix_ns > latest
    ends_early = record.to_unix_ns is not None and record.to_unix_ns <= earliest
    return not starts_late and not ends_early


def is_retention(record: DeleteRecord) -> bool:
    """Tells whether a delete is of everything before some time, whatever it is."""
    narrower = record.agent_id or record.contains or record.attributes
    return not narrower and record.from_unix_ns is None and record.to_unix_ns is not None


def falls_wholly(file: DataFile, record: DeleteRecord) -> bool:
    """Tells whether a delete of old times removes every row of a file, so that none is read.

    That is how retention drops whole partitions.
    """
    if not is_retention(record) or record.to_unix_ns is None:
        return False
    day_after = date.fromisoformat(file.partition) + timedelta(days=1)
    ends_ns = int(datetime.combine(day_after, datetime.min.time(), UTC).timestamp()) * NS_PER_S
    accepted_before = ends_ns <= record.accepted_until_unix_ns
    return accepted_before and file.times_ns is not None and file.times_ns[1] < record.to_unix_ns


def quoted(text: str) -> str:
    """Gives a text as a literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


AT_NS: Final = "coalesce(ts_ns, unix_micros(accepted_at) * 1000)"
"""The time of a record; one without a time counts by the acceptance of its batch."""


def delete_condition(record: DeleteRecord) -> str:
    """Gives the condition of Spark SQL under which a row is removed; never null."""
    parts = [f"unix_micros(accepted_at) * 1000 <= {record.accepted_until_unix_ns}"]
    if record.from_unix_ns is not None:
        parts.append(f"{AT_NS} >= {record.from_unix_ns}")
    if record.to_unix_ns is not None:
        parts.append(f"{AT_NS} < {record.to_unix_ns}")
    if record.agent_id is not None:
        parts.append(f"agent_id = {quoted(record.agent_id)}")
    if record.contains is not None:
        text = quoted(record.contains)
        parts.append(f"name = {text}" if record.kind == "metrics" else f"contains(body, {text})")
    for key, value in record.attributes.items():
        name, text = quoted(key), quoted(value)
        parts.append(f"(attributes[{name}] = {text} OR resource[{name}] = {text})")
    return f"coalesce({' AND '.join(parts)}, false)"


def any_condition(records: Iterable[DeleteRecord]) -> str | None:
    """Gives the condition under which any of the deletes removes a row; None without deletes."""
    parts = [delete_condition(record) for record in records]
    return f"({' OR '.join(parts)})" if parts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Sequence numbers of an agent's life that more than one accepted batch claims."""

    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int

    @property
    def condition(self) -> str:
        """The condition of Spark SQL that a row lies in it."""
        return (
            f"(agent_id = {quoted(self.agent_id)} AND boot_id = {quoted(self.boot_id)}"
            f" AND seq BETWEEN {self.seq_start} AND {self.seq_end})"
        )

    def may_touch(self, file: DataFile) -> bool:
        """Tells whether a file may hold rows of it."""
        return may_have_agent(file, self.agent_id)
