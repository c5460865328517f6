"""The number of lanes changes while a gateway accepts and reconciler and Spark ingest run.

The command is killed and repeated. No other process is started again.
"""

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.gateway import GatewayProcess, TestKey, frame_of, gateways, identity
from support.local_deployment import clean_environment

WAIT_S = 150.0
AGENTS = tuple(f"host-{number}" for number in range(12))
SLUICE = (sys.executable, "-m", "sluice_cli")


class Uploads(threading.Thread):
    """Sends batches of three records, each the next of a random agent, until it is stopped."""

    def __init__(self, gateway: GatewayProcess, key: TestKey) -> None:
        super().__init__(daemon=True)
        self.gateway, self.key = gateway, key
        self.accepted: list[tuple[str, int]] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        rng, next_seq = random.Random(1), Counter[str]()
        while not self.stopped.is_set():
            agent = rng.choice(AGENTS)
            who = identity(agent, next_seq[agent], 3)
            [answer] = self.gateway.upload(self.key, frame_of(who))
            assert answer.status == 200
            next_seq[agent] += 3
            self.accepted += [(agent, seq) for seq in range(who.seq_start, who.seq_end + 1)]
            time.sleep(0.02)


@contextmanager
def services(folder: Path, store: str) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run a reconciler and an ingest job."""
    commands = {
        "reconciler": ("reconciler", "--listen", "127.0.0.1:0"),
        "ingest": ("spark", "ingest", "--trigger-s", "0.3", "--checkpoint", str(folder / "points")),
    }
    spark = {"MASTER": "local[1]", "SPARK_DRIVER_MEMORY": "512m", "PYSPARK_PYTHON": sys.executable}
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            with (folder / f"{name}.log").open("wb") as log:
                running[name] = subprocess.Popen(
                    (*SLUICE, *command, "--store", store),
                    stdout=log,
                    stderr=log,
                    env=clean_environment(**spark),
                )
        yield running
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait(60)


def wait_for(what: str, is_true: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < ends_at, what
        time.sleep(0.2)


def rows(store: Path) -> list[tuple[str, int]]:
    """Return the identities of the records in the table."""
    place = store / "lake" / "v1" / "logs"
    if not (place / "_delta_log").exists():
        return []
    table = DeltaTable(place).to_pyarrow_table(columns=["agent_id", "seq"])
    return [(row["agent_id"], row["seq"]) for row in table.to_pylist()]


def change(store: str, number: int, killed_at: bytes) -> None:
    """Change the number of lanes; the first command is killed when it begins a step."""
    command = (*SLUICE, "queue", "lanes", str(number), "--store", store)
    with subprocess.Popen(command, env=clean_environment(), stderr=subprocess.PIPE) as first:
        assert first.stderr is not None
        assert any(killed_at in line for line in first.stderr)
        first.kill()
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert f"{number} lanes are in effect" in done.stderr.decode()


@pytest.mark.spark
def test_every_record_is_in_the_table_once_after_the_number_changed(tmp_path: Path) -> None:
    key = TestKey("host", AGENTS)
    store, folder = f"file://{tmp_path}/store", tmp_path / "store"
    with gateways(tmp_path, key) as [gateway], services(tmp_path, store) as running:
        uploads = Uploads(gateway, key)
        uploads.start()
        wait_for("first rows", lambda: len(rows(folder)) > 30)
        for number, killed_at in ((8, b"close 4 lanes"), (2, b"build the states")):
            change(store, number, killed_at)
            before = len(uploads.accepted)
            wait_for("rows after a change", lambda least=before: len(rows(folder)) > least)
        uploads.stopped.set()
        uploads.join(30)
        wait_for("every row", lambda: len(rows(folder)) >= len(uploads.accepted))
        time.sleep(1)
        assert {name: one.poll() for name, one in running.items()} == {
            "reconciler": None,
            "ingest": None,
        }
        assert gateway.process.poll() is None
    found = Counter(rows(folder))
    assert [who for who, count in found.items() if count > 1] == []
    assert sorted(found) == sorted(uploads.accepted)
    recorded = (folder / "authority" / "v1" / "lanes").iterdir()
    assert sorted(one.name for one in recorded) == ["000001.json", "000002.json"]
