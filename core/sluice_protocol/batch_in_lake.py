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

    Attributes:
        key: The key of the data file that contains the row.
        size_bytes: The size of that file.
        lane: The lane of the queue.
        sequence: The queue entry that delivered the batch.
    """

    key: str
    size_bytes: int
    lane: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledUpTo:
    """What one state of the table of rollups contains of a lane.

    Attributes:
        source_range: The number of the last source range in the table.
        through: The last queue sequence of the lane in it.
    """

    source_range: int
    through: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupWindows:
    """The windows that the samples of a batch are part of: all those between two times.

    Attributes:
        window: The name of the length, as in the table: `1m` or `1h`.
        first_start_unix_ns: The start of the first one.
        last_start_unix_ns: The start of the last one.
        count: Number of windows from the first to the last.
    """

    window: str
    first_start_unix_ns: int
    last_start_unix_ns: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupSource:
    """The source range that contains a batch.

    Attributes:
        number: Its number.
        key: The key of its record.
        size_bytes: The size of the record; None if it was removed at its age.
        last_modified_unix_ns: When its ends were decided, by the store's clock; None as above.
    """

    number: int
    key: str
    size_bytes: int | None = None
    last_modified_unix_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRollup:
    """Which rollups contain the samples of a batch.

    Attributes:
        state: Whether any does.
        reason: Why, in a sentence.
        windows: The windows of each length; empty unless it is rolled up.
        source: The source range that contains it; None if it is not rolled up, or if its range was
            removed at its age.
    """

    state: RollupState
    reason: str
    windows: tuple[RollupWindows, ...] = ()
    source: RollupSource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInLake:
    """Where a batch is in the lake.

    Attributes:
        state: Whether it is in the lake.
        table: The table of its records, a prefix of keys.
        row: Its row in the ledger, which proves that its records were committed; None if there is
            none.
        rollup: Which rollups contain it.
        problem: Why the tables cannot be read, or why it is a dead letter; else empty.
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
    """Return whether the rollups contain a batch.

    Args:
        manifest: The batch.
        row: Its row in the ledger.
        rolled_up: What the rollups contain of its lane; None if there are no rollups.
        dead_letter: Whether it was ingested as a dead letter.
    """
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
