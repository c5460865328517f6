"""Each state of `docs/recovery.md` that an operator may meet, and the documented way back.

The commands are the ones that `sluice status` prints.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.spark_lake import Deployment, Sent, assert_lake_holds, make_batch
from support.spark_local import ingest_locally

from sluice_cli.main import run
from sluice_protocol.maintenance import RunOutcome, TaskRecord, TaskRun, task_record_key
from sluice_protocol.manifests import encode_record
from sluice_protocol.system_clock import SystemClock
from sluice_spark.ingest.fenced_consumers import FencedConsumers
from sluice_spark.ingest.job import Redelivery
from sluice_spark.ingest.microbatch import open_snapshot


class Operator:
    """A store, and an operator with the command line only."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.deployment = Deployment(root, lanes=1).init()
        self.root = root
        self._capsys = capsys

    def call(self, *words: str) -> tuple[int, Any]:
        """Run a command; return its exit code and its JSON."""
        self._capsys.readouterr()
        code = run([*words, "--store", self.deployment.url, "--json"])
        text = self._capsys.readouterr().out
        return code, json.loads(text) if text.strip() else None

    def attention(self, title: str) -> list[str]:
        """Return the details and commands of the items of `sluice status` with a title."""
        _, found = self.call("status")
        items = found["attention"]
        return [f"{one['detail']} {one['command']}" for one in items if title in one["title"]]

    def follow(self, item: str) -> None:
        """Run the commands of an item that change something, as they are printed."""
        for command in re.findall(r"`sluice ([^`]+)`", item):
            assert self.call(*command.split())[0] == 0

    def lose(self, folder: str) -> None:
        """Delete a folder of the store."""
        shutil.rmtree(self.root / folder)
        shutil.rmtree(self.root / ".sluice" / "generations" / folder, ignore_errors=True)


@pytest.fixture
def operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(tmp_path, capsys)


def accept(operator: Operator, *, blobs: bool = True) -> Sent:
    batch = make_batch(0)
    operator.deployment.accept([batch], blobs=blobs)
    return batch


def test_dead_letter(operator: Operator) -> None:
    """The blob was missing when the batch was ingested; restoring it is enough."""
    batch = accept(operator, blobs=False)
    operator.deployment.enqueue([batch])
    assert ingest_locally(operator.deployment.url).dead_letters == 1
    (item,) = operator.attention("missing from the lake")
    assert "byte for byte" in item
    assert operator.call("query", "dead-letters")[0] == 1
    operator.deployment.put_blob(batch)
    with FencedConsumers(operator.deployment.url, "spark") as consumers:  # as each ingest job does
        consumers.open(open_snapshot(operator.deployment.url).committed_through)
        Redelivery(
            store_url=operator.deployment.url, consumers=consumers, clock=SystemClock()
        ).check()
    assert ingest_locally(operator.deployment.url).batches == 1
    assert operator.attention("missing from the lake") == []
    assert operator.call("query", "dead-letters")[0] == 0
    assert_lake_holds(operator.deployment, operator.deployment.sent)


def test_held_batch(operator: Operator) -> None:
    """The blob was missing when the batch was verified; restoring it is enough."""
    batch = accept(operator, blobs=False)
    operator.call("reconciler", "--once")
    (item,) = operator.attention("held back")
    assert "Restore the blobs" in item
    operator.deployment.put_blob(batch)
    assert operator.call("reconciler", "--once")[0] == 0
    assert operator.attention("held back") == []
    assert ingest_locally(operator.deployment.url).batches == 1


def test_lost_register(operator: Operator) -> None:
    """A lane is halted until the printed command has run."""
    accept(operator)
    assert operator.call("reconciler", "--once")[0] == 0
    assert ingest_locally(operator.deployment.url).batches == 1
    operator.deployment.accept([make_batch(10)])
    operator.lose("queue")
    items = operator.attention("is lost")
    assert len(items) == 1
    operator.follow(items[0])
    assert operator.attention("is lost") == []
    assert ingest_locally(operator.deployment.url).batches == 1
    assert_lake_holds(operator.deployment, operator.deployment.sent)


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "folder", ["accepted-by-time/v1", "accepted-by-blob/v1", "raw-blobs-by-time/v1"]
)
def test_deleted_derived_index(
    operator: Operator, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed command builds it again from the manifests and blobs."""
    monkeypatch.setattr("sluice_console.store_counts._INDEXED_NS", 0)
    accept(operator)
    assert operator.call("reconciler", "--once")[0] == 0
    assert operator.attention("Derived indexes") == []
    operator.lose(folder)
    (item,) = operator.attention("Derived indexes")
    operator.follow(item)
    assert operator.attention("Derived indexes") == []
    assert operator.call("rebuild", "--verify")[0] == 0


@pytest.mark.parametrize("outcome", [RunOutcome.REFUSED, RunOutcome.FAILED])
def test_halted_or_failing_task(operator: Operator, outcome: RunOutcome) -> None:
    """The task may run now, and the trouble is shown until it has succeeded."""
    at_ns = SystemClock().now_ns()
    ended = TaskRun(
        started_at_unix_ns=at_ns,
        ended_at_unix_ns=at_ns,
        outcome=outcome.value,
        owner="host",
        reason="the reason",
    )
    halted = "the reason" if outcome is RunOutcome.REFUSED else ""
    record = TaskRecord(task="gc", revision=1, nonce="n", runs=(ended,), failures=1, halted=halted)
    path = operator.root / task_record_key("gc")
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_record(record))
    (item,) = operator.attention("Maintenance task gc")
    assert "the reason" in item
    operator.follow(item.replace("`sluice maintain status`", ""))
    found = json.loads(path.read_bytes())
    assert (found.get("halted", ""), found["resumed"]) == ("", True)
