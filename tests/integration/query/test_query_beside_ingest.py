"""Queries during ingestion: every enqueued record is found exactly once."""

import threading
from pathlib import Path

from support.query_lake import bodies, deployment, log_batch, make_query, run_query
from support.spark_local import ingest_locally

BATCHES = 9


def test_every_query_during_ingestion_returns_every_record_once(tmp_path: Path) -> None:
    """From the first commit to the last acknowledgement."""
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
        result = run_query(place, make_query())
        assert sorted(map(str, bodies(result))) == sorted(wanted)
        assert not result.summary.partial, result.summary.reasons
        seen.append(result.summary.waiting_batches)
    ingest.join()
    final = run_query(place, make_query())
    assert sorted(map(str, bodies(final))) == sorted(wanted)
    assert final.summary.waiting_batches == 0
    # The queries really ran between the commits.
    assert len(set(seen)) > 2, seen
