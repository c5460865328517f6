"""Every service as a real process continues within seconds after a directory was moved away.

During the outage `sluice status` names what has stopped. `test_s3_outages.py` does the same with an
S3 server.
"""

import os
import time
from pathlib import Path

import pytest
from support.outage_fleet import (
    SLACK_S,
    Outage,
    fleet,
    go_through_outage,
    wait_for_lines,
    wait_for_status,
    wait_until_ingested,
)
from support.repetitions import times

from sluice_reconciler.loop_health import RECOVERY_S

SPARK_STARTS_S = 300
"""Time for the first ingestion: three tasks start Spark together, on a busy machine in minutes."""


def moved(folder: Path) -> Outage:
    """Return the outage of a directory that is moved away and back."""
    store, away = folder / ".sluice", folder / "away"
    return Outage(begin=lambda: os.rename(store, away), end=lambda: os.rename(away, store))  # noqa: PTH104


@pytest.mark.long
def test_three_seconds_without_a_directory(tmp_path: Path) -> None:
    with fleet(tmp_path) as one:
        go_through_outage(one, moved(tmp_path), 3)


@pytest.mark.long
def test_status_names_what_stands_still(tmp_path: Path) -> None:
    """A suspended service is named within seconds, and no more after it continues."""
    names = {
        "reconciler": "The reconciler service does not respond",
        "gateway": "No gateway responds",
        "query": "The query service does not respond",
    }
    with fleet(tmp_path) as one:
        for name, text in names.items():
            service = one.up.service(name)
            assert service is not None
            everything = [service, *service.children(recursive=True)]
            for process in everything:
                process.suspend()
            wait_for_status(one, lambda shown, text=text: text in shown, RECOVERY_S + SLACK_S)
            for process in everything:
                process.resume()
            wait_for_status(one, lambda shown: "nothing needs attention" in shown, 60)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_directory_moved_away_for_a_minute(tmp_path: Path) -> None:
    with fleet(tmp_path) as one:
        for seconds in (1, 10, times(60)):
            go_through_outage(one, moved(tmp_path), seconds)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ingestion_continues_after_a_directory_was_moved_away(tmp_path: Path) -> None:
    """The query runs when the outage begins, and the service is not restarted."""
    with fleet(tmp_path, ingests=True) as one:
        wait_until_ingested(one, 0, SPARK_STARTS_S)
        maintain = one.up.service("maintain")
        for seconds in (3, times(30)):
            outage = moved(tmp_path)
            before = one.ingested()
            outage.begin()
            time.sleep(seconds)
            outage.end()
            one.write_lines(10)
            wait_until_ingested(one, before, 60)
            assert one.up.service("maintain") == maintain, "the service was restarted"
            wait_for_status(one, lambda shown: "nothing needs attention" in shown, 60)
            wait_for_lines(one)
