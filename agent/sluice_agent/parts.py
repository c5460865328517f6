"""What inputs hand on, and how it is gathered into batches, as pure values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sluice_agent.entry import FileMark
from sluice_agent.joining import join_logs, join_metrics
from sluice_protocol.columns import Columns, LogColumns, MetricColumns
from sluice_protocol.errors import BadUsage

RECORD_COST_BYTES = 28
"""What a record takes beside its text: time, offsets and one attribute's indexes."""
BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Above this a batch of bytes that do not compress could outgrow a frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some records of one input.

    Attributes:
        columns: The records, at least one.
        cost_bytes: About how many bytes they take in a frame before compression.
        marks: How far their files stand after them; none for inputs that cannot be read again.
        sealed: Called with True once the records are durable, with False when they were dropped;
            for inputs that answer somebody.
    """

    columns: LogColumns | MetricColumns
    cost_bytes: int
    marks: tuple[FileMark, ...] = ()
    sealed: "Sealed | None" = None


Sealed = Callable[[bool], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What a batch is made of.

    Attributes:
        columns: The records.
        marks: How far their files stand after them.
        sealed: Whom to tell what became of them.
    """

    columns: Columns
    marks: tuple[FileMark, ...]
    sealed: tuple[Sealed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """When a batch is cut.

    Attributes:
        bytes_max: Bytes before compression, about; at most 8 MiB.
        records_max: Records.
        age_s_max: Seconds since its first record.

    Raises:
        BadUsage: A limit that could make frames which no gateway takes.
    """

    bytes_max: int = 4 * 1024 * 1024
    records_max: int = 100_000
    age_s_max: float = 1.0

    def __post_init__(self) -> None:
        """Refuses limits that cannot work."""
        if not 1 <= self.bytes_max <= BATCH_BYTES_MAX:
            raise BadUsage(
                f"batch bytes must be 1 to {BATCH_BYTES_MAX}, batch_bytes=`{self.bytes_max}`"
            )
        if self.records_max < 1 or self.age_s_max < 0:
            raise BadUsage("batch records must be at least 1 and batch age not negative")


@dataclass(slots=True, kw_only=True)
class Gathering:
    """Parts of one kind on their way to a batch.

    Attributes:
        limits: When to cut.
    """

    limits: BatchLimits
    _parts: list[Part] = field(default_factory=list)
    _cost_bytes: int = 0
    _records: int = 0
    _since_s: float = 0.0

    def add(self, part: Part, *, now_s: float) -> None:
        """Takes one more part."""
        if not self._parts:
            self._since_s = now_s
        self._parts.append(part)
        self._cost_bytes += part.cost_bytes
        self._records += len(part.columns)

    def has_room_for(self, part: Part) -> bool:
        """Tells whether a part can join; an empty gathering takes any."""
        within = self._cost_bytes + part.cost_bytes <= self.limits.bytes_max
        return not self._parts or (
            within and self._records + len(part.columns) <= self.limits.records_max
        )

    def is_due(self, *, now_s: float) -> bool:
        """Tells whether it is full or old enough to be cut."""
        if not self._parts:
            return False
        full = self._cost_bytes >= self.limits.bytes_max or self._records >= self.limits.records_max
        return full or now_s - self._since_s >= self.limits.age_s_max

    def take(self) -> Gathered | None:
        """Gives everything gathered, joined, with the last mark of each file; then it is empty."""
        parts, self._parts = self._parts, []
        self._cost_bytes = self._records = 0
        if not parts:
            return None
        return Gathered(
            columns=join_parts(parts),
            marks=join_marks(parts),
            sealed=tuple(part.sealed for part in parts if part.sealed is not None),
        )


def join_parts(parts: Sequence[Part]) -> Columns:
    """Puts the parts' records end to end; they are all of one kind."""
    logs = [part.columns for part in parts if isinstance(part.columns, LogColumns)]
    if logs:
        return join_logs(logs)
    return join_metrics([p.columns for p in parts if isinstance(p.columns, MetricColumns)])


def join_marks(parts: Sequence[Part]) -> tuple[FileMark, ...]:
    """Gives each file's last mark, starting where its first part did."""
    joined: dict[str, FileMark] = {}
    for mark in (mark for part in parts for mark in part.marks):
        first = joined.get(mark.source, mark)
        joined[mark.source] = FileMark(
            source=mark.source,
            path=mark.path,
            start=first.start,
            offset=mark.offset,
            head_bytes=mark.head_bytes,
            head_sha256=mark.head_sha256,
            tail_bytes=mark.tail_bytes,
            tail_sha256=mark.tail_sha256,
        )
    return tuple(joined.values())
