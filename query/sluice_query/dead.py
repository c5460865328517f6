"""Batches that ingestion could not read: an answer that lacks them must say so."""

from typing import Final

from sluice_protocol.lake import BATCHES, DEAD_LETTERS, accepted_hour
from sluice_protocol.units import NS_PER_S
from sluice_query.engine import Engine
from sluice_query.request import Query
from sluice_query.segments import select_hours
from sluice_query.sql import Statement
from sluice_store.lake import lake_location

LATE_NS: Final = 3600 * NS_PER_S
"""How long after the range a batch with records of the range may well be accepted."""
_DEAD: Final = "dead_letters"
_ENTERED: Final = "entered"
_SAME: Final = "agent_id, boot_id, seq_start, seq_end"


def find_dead(engine: Engine, store_url: str, query: Query) -> tuple[str, ...]:
    """Gives one reason when batches accepted in or shortly after the range are dead letters.

    A batch that came back and was ingested is none any more.

    Raises:
        LakeRefused: The table cannot be read rightly.
    """
    first, last = accepted_hour(query.from_ns), accepted_hour(query.to_ns + LATE_NS)
    files = select_hours(store_url, DEAD_LETTERS, lambda hour: first <= hour <= last)
    if not files:
        return ()
    engine.show_files(_DEAD, files, lake_location(store_url, DEAD_LETTERS.name))
    wanted = _wanted(query)
    hours = {row[0] for row in engine.rows(_hours(wanted))}
    entered = select_hours(store_url, BATCHES, lambda hour: hour in hours) if hours else ()
    if entered:
        engine.show_files(_ENTERED, entered, lake_location(store_url, BATCHES.name))
        wanted.text += f" AND ({_SAME}) NOT IN (SELECT ({_SAME}) FROM {_ENTERED})"  # noqa: S608
    text = f"SELECT count(DISTINCT ({_SAME})), min(reason) FROM {_DEAD} WHERE {wanted.text}"  # noqa: S608
    count, reason = engine.rows(Statement(text, wanted.values))[0]
    if not count:
        return ()
    told = f"{count} batches could not be ingested ({reason}): see the table dead_letters"
    return (f"{told}, and `sluice explain` for one of them",)


def _wanted(query: Query) -> Statement:
    at = "accepted_at_ns >= ? AND accepted_at_ns < ? AND kind = ?"
    wanted = Statement(at, [query.from_ns, query.to_ns + LATE_NS, query.kind])
    if query.agents:
        marks = ", ".join("?" for _ in query.agents)
        wanted.text += f" AND agent_id IN ({marks})"
        wanted.values += query.agents
    return wanted


def _hours(wanted: Statement) -> Statement:
    hour = "strftime(make_timestamp(accepted_at_ns // 1000), '%Y-%m-%dT%H')"
    text = f"SELECT DISTINCT {hour} FROM {_DEAD} WHERE {wanted.text}"  # noqa: S608 - names of ours
    return Statement(text, list(wanted.values))
