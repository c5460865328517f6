"""The engine computes the lane of a sample as the queue does, under the number of lanes it had."""

import duckdb

from sluice_protocol.authority import LaneCounts
from sluice_protocol.keys import lane_of
from sluice_query.series import _LANE


def test_the_lane_follows_from_agent_and_sequence() -> None:
    counts = LaneCounts(before=((10, 3), (20, 8)), lanes=2)
    rows = [(f"host-{agent}", sequence) for agent in range(40) for sequence in (1, 10, 11, 20, 21)]
    lane = _LANE.format(lanes=counts.sql("queue_sequence"))
    with duckdb.connect() as engine:
        engine.execute("CREATE TABLE samples (agent_id VARCHAR, queue_sequence BIGINT)")
        engine.executemany("INSERT INTO samples VALUES (?, ?)", rows)
        found = engine.execute(f"SELECT agent_id, queue_sequence, {lane} FROM samples").fetchall()  # noqa: S608 - constants
    assert found == [
        (agent, sequence, lane_of(agent, counts.of_sequence(sequence))) for agent, sequence in rows
    ]
