"""Where the records of an accepted batch are in the lake, and which rollups contain them.

The ledger names the queue sequence of each batch that is in the lake. A rollup contains the samples
of a lane up to a sequence. Both decide, so no table of records is read.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.keys import LAKE
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S

ROLLUP_WINDOWS: Final = (("1m", 60), ("1h", 3600))
"""The windows of rollups, by name, with their length in seconds."""


class LakeState(StrEnum):
    """Whether a batch is in the lake."""

    IN_LAKE = "in_lake"
    NOT_YET = "not_yet"
    DEAD_LETTER = "dead_letter"
    """Its blob was missing or damaged when it was ingested; its records are not in the lake."""
    UNREADABLE = "unreadable"
    """Whether it is in the lake is unknown: the tables cannot be read."""


class RollupState(StrEnum):
    """Whether rollups contain the samples of a batch."""

    ROLLED_UP = "rolled_up"
    NOT_YET = "not_yet"
    NO_ROLLUPS = "no_rollups"
    """The deployment has no rollups yet."""
    OTHER_KIND = "other_kind"
    """Only metrics are rolled up."""
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """The row of a batch in the ledger of ingestion.

    `key` is that of the data file that contains the row. `sequence` is the queue entry that
    delivered the batch.
    """

    key: str
    size_bytes: int
    lane: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledUpTo:
    """What one state of the table of rollups contains of a lane.

    `source_range` is the number of the last source range in the table, and `through` the last queue
    sequence of the lane in it.
    """

    source_range: int
    through: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupWindows:
    """The windows that the samples of a batch are part of: all those between two times.

    `window` is the name of the length, as in the table: `1m` or `1h`. The times are the starts of
    the first window and of the last one.
    """

    window: str
    first_start_unix_ns: int
    last_start_unix_ns: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupSource:
    """The source range that contains a batch.

    The size and the time of its record are None if it was removed at its age. The time is when its
    ends were decided, by the store's clock.
    """

    number: int
    key: str
    size_bytes: int | None = None
    last_modified_unix_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRollup:
    """Which rollups contain the samples of a batch.

    `reason` is a sentence. `windows` is empty unless the batch is rolled up. `source` is None if it
    is not, or if its range was removed at its age.
    """

    state: RollupState
    reason: str
    windows: tuple[RollupWindows, ...] = ()
    source: RollupSource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInLake:
    """Where a batch is in the lake.

    `table` is a prefix of keys. `row` proves that its records were committed; None if there is
    none. `problem` is why the tables cannot be read, or why it is a dead letter; else empty.
    """

    state: LakeState
    table: str
    row: LedgerRow | None
    rollup: BatchRollup
    problem: str = ""


def decide_rollup(
    manifest: AcceptedManifest,
    row: LedgerRow | None,
    rolled_up: RolledUpTo | None,
    *,
    dead_letter: bool = False,
) -> BatchRollup:
    """Return whether the rollups contain a batch; `rolled_up` is None if there are none."""
    if manifest.kind != "metrics":
        return BatchRollup(state=RollupState.OTHER_KIND, reason=_not_rolled_up(manifest.kind))
    if dead_letter:
        return BatchRollup(state=RollupState.NOT_YET, reason="It is a dead letter, in no table.")
    if row is None:
        return BatchRollup(
            state=RollupState.NOT_YET, reason="Rollups are made of the lake, where it is not yet."
        )
    if rolled_up is None:
        return BatchRollup(
            state=RollupState.NO_ROLLUPS,
            reason='This deployment has no rollups yet: run "sluice spark rollup".',
        )
    facts = (
        f"Rollups contain lane {row.lane} up to entry {rolled_up.through}; the batch is in entry"
        f" {row.sequence}."
    )
    if row.sequence > rolled_up.through:
        return BatchRollup(
            state=RollupState.NOT_YET, reason=f"{facts} The next run of the rollups includes it."
        )
    windows = rollup_windows(manifest.min_ts_unix_ns, manifest.max_ts_unix_ns)
    return BatchRollup(state=RollupState.ROLLED_UP, reason=facts, windows=windows)


def unreadable_lake(manifest: AcceptedManifest, problem: str) -> BatchInLake:
    """Return the result where the tables cannot be read; what is known of the kind remains."""
    rollup = decide_rollup(manifest, None, None)
    if rollup.state is not RollupState.OTHER_KIND:
        rollup = BatchRollup(
            state=RollupState.UNREADABLE, reason="It is unknown, because a table cannot be read."
        )
    return BatchInLake(
        state=LakeState.UNREADABLE,
        table=f"{LAKE}{manifest.kind}/",
        row=None,
        rollup=rollup,
        problem=problem,
    )


def rollup_windows(first_ns: int | None, last_ns: int | None) -> tuple[RollupWindows, ...]:
    """Return the windows of each length between the first and the last sample."""
    if first_ns is None or last_ns is None:
        return ()
    found = []
    for name, size_s in ROLLUP_WINDOWS:
        size_ns = size_s * NS_PER_S
        first, last = first_ns // size_ns, last_ns // size_ns
        found.append(
            RollupWindows(
                window=name,
                first_start_unix_ns=first * size_ns,
                last_start_unix_ns=last * size_ns,
                count=last - first + 1,
            )
        )
    return tuple(found)


def _not_rolled_up(kind: Kind) -> str:
    searched = KINDS[kind].searched is not None
    why = ": searches read their records" if searched else ""
    return f"{kind.capitalize()} are not rolled up{why}."
