"""What a record commit says of itself in Delta's log: how far it went, and which rows were dead.

It stands in the very commit that moves the version, so that a run that died before the ledger can
be finished without guessing which of its rows had no readable blob.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from deltalake import DeltaTable

from sluice_spark.errors import LakeInconsistent
from sluice_spark.judging import REBUILD, Place

_THROUGH: Final = "sluice.through"
_DEAD: Final = "sluice.dead"
_HISTORY_MAX: Final = 10_000
"""As many commits back are looked at; ingestion finishes a dead run before it commits again."""


def encode_notes(versions: Mapping[int, int], dead: Iterable[Place]) -> dict[str, str]:
    """Gives the metadata of a commit."""
    places = sorted(dead)
    return {
        _THROUGH: ",".join(f"{lane}={end}" for lane, end in sorted(versions.items())),
        _DEAD: ",".join(f"{lane}:{sequence}:{position}" for lane, sequence, position in places),
    }


def parse_through(text: str) -> dict[int, int]:
    """Gives the versions that a commit's metadata names."""
    pairs = (part.split("=") for part in text.split(",") if part)
    return {int(lane): int(end) for lane, end in pairs}


def parse_dead(text: str) -> set[Place]:
    """Gives the dead rows that a commit's metadata names."""
    found = (part.split(":") for part in text.split(",") if part)
    return {(int(lane), int(sequence), int(position)) for lane, sequence, position in found}


def read_dead(records: DeltaTable, ahead: Mapping[int, int]) -> set[Place]:
    """Gives the dead rows of the commits that moved a record table ahead of the ledger.

    Args:
        records: The record table.
        ahead: Lane to the version of the table, for each lane in which it is ahead.

    Raises:
        LakeInconsistent: The log no longer has such a commit.
    """
    wanted = dict(ahead)
    dead: set[Place] = set()
    if not wanted:
        return dead
    for commit in records.history(_HISTORY_MAX):
        through = parse_through(commit.get(_THROUGH, ""))
        for lane in [lane for lane in wanted if through.get(lane) == wanted[lane]]:
            dead |= {place for place in parse_dead(commit.get(_DEAD, "")) if place[0] == lane}
            del wanted[lane]
        if not wanted:
            return dead
    lane, end = next(iter(wanted.items()))
    raise LakeInconsistent(lane, f"the log lacks the commit that reached {end}", REBUILD)
