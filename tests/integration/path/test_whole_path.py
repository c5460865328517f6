"""From upload to lake with a second process racing each upload."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.gateway import TestKey, gateways
from support.history import wrong_in
from support.racing import race

from sluice_protocol.frame import encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import digest_of
from sluice_protocol.records import LogRecord, logs_from_records

LINES = (Path(__file__).parents[3] / "LICENSE").read_text().splitlines()
LINES_EACH = 10
BATCHES = len(LINES) // LINES_EACH


def frame_of(number: int, mark: str = "") -> bytes:
    """Ten lines of a real text; `mark` makes other bytes under the same identity."""
    start = number * LINES_EACH
    records = [
        LogRecord(ts_ns=1_790_000_000_000_000_000 + n, body=LINES[n] + mark, attributes={})
        for n in range(start, start + LINES_EACH)
    ]
    who = Identity(agent_id="host", boot_id="b", seq_start=start, seq_end=start + LINES_EACH - 1)
    return encode_frame(identity=who, columns=logs_from_records(records))


def sluice(*arguments: str) -> bytes:
    env = {key: value for key, value in os.environ.items() if not key.startswith("SLUICE_")}
    done = subprocess.run(
        [sys.executable, "-m", "sluice_cli", *arguments],
        env={**env, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.spark
def test_every_line_arrives_once_though_each_upload_is_raced(tmp_path: Path) -> None:
    """Two processes, two gateways, every third identity claimed by other bytes as well."""
    key = TestKey("host", ("host",))
    mine = [frame_of(number) for number in range(BATCHES)]
    rival = [frame_of(number, " (rival)" if number % 3 == 0 else "") for number in range(BATCHES)]
    with gateways(tmp_path, key, count=2, flags=("--skip-probe",)) as servers:
        history = race(key, [server.port for server in servers], [mine, rival])
    assert wrong_in(history) == []
    owners = {told.identity: told.digest for told in history if told.status == 200}
    assert len(owners) == BATCHES
    conflicts = [told for told in history if told.status == 409]
    assert len(conflicts) == len(range(0, BATCHES, 3))

    store = f"file://{tmp_path}/store"
    for _ in range(2):
        sluice("reconciler", "--store", store, "--once")
    sluice("spark", "ingest", "--store", store, "--once")

    expected = []
    for number in range(BATCHES):
        start = number * LINES_EACH
        lost = owners[str(number)] != digest_of(mine[number])
        mark = " (rival)" if lost else ""
        expected += [(n, LINES[n] + mark) for n in range(start, start + LINES_EACH)]
    table = DeltaTable(tmp_path / "store" / "lake" / "v1" / "logs")
    rows = table.to_pyarrow_table(columns=["seq", "body"]).to_pylist()
    assert sorted((row["seq"], row["body"]) for row in rows) == expected
    quarantined = (tmp_path / "store" / "quarantine").rglob("*.json")
    refused = {json.loads(path.read_bytes())["submitted_frame_sha256"] for path in quarantined}
    assert refused == {told.digest for told in conflicts}
