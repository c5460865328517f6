"""From upload to lake with a second process racing each upload."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.builders import make_identity
from support.gateway import TestKey, gateways, start_gateway, write_principals
from support.history import UploadResult, broken_guarantees
from support.local_deployment import clean_environment
from support.racing import race
from support.sluice_process import run_process
from support.store_versitygw import CREDENTIALS, make_bucket, versitygw

from sluice_protocol.frame import encode_frame
from sluice_protocol.keys import digest_of
from sluice_protocol.records import LogRecord, logs_from_records

LINES = (Path(__file__).parents[3] / "LICENSE").read_text().splitlines()
LINES_EACH = 10
Row = tuple[int, str]
BATCHES = len(LINES) // LINES_EACH


def frame_of(number: int, mark: str = "") -> bytes:
    """Ten lines of a real text; `mark` makes other bytes under the same identity.

    Every second frame is of version 2.
    """
    start = number * LINES_EACH
    records = [
        LogRecord(ts_ns=1_790_000_000_000_000_000 + n, body=LINES[n] + mark, attributes={})
        for n in range(start, start + LINES_EACH)
    ]
    who = make_identity(start, count=LINES_EACH, agent="host", boot="b")
    return encode_frame(identity=who, columns=logs_from_records(records))


def sluice(*arguments: str) -> bytes:
    command = [sys.executable, "-m", "sluice_cli", *arguments]
    done = run_process(command, timeout=250, env=clean_environment(PYSPARK_PYTHON=sys.executable))
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def raced(store: str, ports: list[int], key: TestKey) -> tuple[list[UploadResult], list[Row]]:
    """Races every upload, reconciles twice and ingests; gives the history and the lines due."""
    mine = [frame_of(number) for number in range(BATCHES)]
    rival = [frame_of(number, " (rival)" if number % 3 == 0 else "") for number in range(BATCHES)]
    history = race(key, ports, [mine, rival])
    assert broken_guarantees(history) == []
    owners = {told.identity: told.digest for told in history if told.status == 200}
    assert len(owners) == BATCHES
    assert sum(told.status == 409 for told in history) == len(range(0, BATCHES, 3))
    for _ in range(2):
        sluice("reconciler", "--store", store, "--once")
    sluice("spark", "ingest", "--store", store, "--once")
    due: list[Row] = []
    for number in range(BATCHES):
        start = number * LINES_EACH
        mark = "" if owners[str(number)] == digest_of(mine[number]) else " (rival)"
        due += [(n, LINES[n] + mark) for n in range(start, start + LINES_EACH)]
    return history, due


def rows_of(store: str) -> list[Row]:
    """What `sluice query` finds, which reads the lake's own files."""
    answer = sluice(
        *("query", "--store", store, "--from", "2020-01-01T00:00:00Z"),
        *("--to", "2100-01-01T00:00:00Z", "--limit", "100000", "--json"),
    )
    lines = [json.loads(line) for line in answer.splitlines()]
    return sorted((line["seq"], line["body"]) for line in lines if "body" in line)


@pytest.mark.spark
def test_every_line_arrives_once_though_each_upload_is_raced(tmp_path: Path) -> None:
    """Two processes, two gateways, every third identity claimed by other bytes as well."""
    key = TestKey("host", ("host",))
    store = f"file://{tmp_path}/store"
    with gateways(tmp_path, key, count=2) as servers:
        history, due = raced(store, [server.port for server in servers], key)
    table = DeltaTable(tmp_path / "store" / "lake" / "v1" / "logs")
    rows = table.to_pyarrow_table(columns=["seq", "body"]).to_pylist()
    assert sorted((row["seq"], row["body"]) for row in rows) == due
    assert rows_of(store) == due
    quarantined = (tmp_path / "store" / "quarantine").rglob("*.json")
    refused = {json.loads(path.read_bytes())["submitted_frame_sha256"] for path in quarantined}
    assert refused == {told.digest for told in history if told.status == 409}


@pytest.mark.s3
def test_the_same_path_over_a_real_s3_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Store, lake and query on S3: what was accepted is found, each line once."""
    key = TestKey("host", ("host",))
    principals = write_principals(tmp_path / "principals.toml", key)
    with versitygw(tmp_path) as server:
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        store = server.url("lake-bucket", "deep/prefix")
        asyncio.run(make_bucket(store))
        sluice("init", "--store", store)
        sluice("doctor", "--store", store)
        servers = [start_gateway(tmp_path / name, store, principals) for name in "ab"]
        try:
            _, due = raced(store, [one.port for one in servers], key)
        finally:
            for one in servers:
                one.kill()
        assert rows_of(store) == due
