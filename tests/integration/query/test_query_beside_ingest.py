"""Queries while ingestion runs: whatever was enqueued before the question is found exactly once."""

import threading
from pathlib import Path

from support.query_lake import bodies, deployment, log_batch, make_query, run_query
from support.spark_local import ingest_locally

BATCHES = 24


def test_every_query_beside_an_ingest_sees_every_record_once(tmp_path: Path) -> None:
    """From the first commit to the last ack, no question misses or doubles a record."""
    place = deployment(tmp_path, lanes=3)
    wanted = []
    for number in range(BATCHES):
        agent = f"host-{number % 5}"
        place.deliver([log_batch([f"{agent} {number}"], start=number, agent=agent)])
        wanted.append(f"{agent} {number}")
    ingest = threading.Thread(target=ingest_locally, args=(place.url, 1))
    ingest.start()
    seen = []
    while ingest.is_alive():
        answer = run_query(place, make_query())
        assert sorted(map(str, bodies(answer))) == sorted(wanted)
        assert not answer.summary.partial, answer.summary.reasons
        seen.append(answer.summary.waiting_batches)
    ingest.join()
    final = run_query(place, make_query())
    assert sorted(map(str, bodies(final))) == sorted(wanted)
    assert final.summary.waiting_batches == 0
    # The questions really fell between the commits.
    assert len(set(seen)) > 2, seen
