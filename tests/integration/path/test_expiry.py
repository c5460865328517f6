"""Raw batches expire by commands, in real processes: proved, recorded, deleted, and explained."""

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support.gc_world import MovedClock
from support.local_deployment import clean_environment
from support.reconciler_seed import accept_logs
from support.sluice_process import run_process

from sluice_protocol.authority import Authority
from sluice_protocol.keys import EXPIRED
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S
from sluice_store.authority import create_authority
from sluice_store.local import open_local_store

DAY_NS = 86_400 * NS_PER_S
BATCHES = 4

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]


class Place:
    """A store in a directory, and the auditor's key in another."""

    def __init__(self, root: Path) -> None:
        self.root = root / "store"
        self.url = f"file://{self.root}"
        self.env = clean_environment(PYSPARK_PYTHON=sys.executable, XDG_STATE_HOME=str(root))

    def run(self, *words: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "sluice_cli", *words, "--store", self.url]
        done = run_process(command, timeout=250, env=self.env)
        assert done.returncode == code, done.stdout.decode() + done.stderr.decode()
        return (done.stdout if code == 0 else done.stderr).decode()

    def read(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def bodies(self) -> list[str]:
        """Return the texts that a query finds."""
        lines = self.run("query", "-q", "line", "--from", "60d", "--json").splitlines()
        return sorted(one["body"] for one in map(json.loads, lines) if "body" in one)

    def blobs(self) -> int:
        return len(list((self.root / "raw-blobs").rglob("*.lmbatch")))


async def accept_in_the_past(place: Place) -> list[AcceptedManifest]:
    """Accept batches 40 days ago, by the clock of the store."""
    clock = MovedClock(SystemClock().now_ns() - 40 * DAY_NS)
    async with open_local_store(place.root, clock=clock) as store:
        await create_authority(store, Authority(authority_id="A" * 26, lanes=2))
        return [
            await accept_logs(store, [f"line {n}", "ä€"], seq=10 * n, at_ns=clock.now_ns() + n)
            for n in range(BATCHES)
        ]


async def accept_now(place: Place) -> None:
    """Accept so many batches that the old ones are less than half of all; they stay pending."""
    async with open_local_store(place.root) as store:
        for n in range(BATCHES + 1):
            at_ns = SystemClock().now_ns()
            await accept_logs(store, ["new"], seq=n, agent="host-2", at_ns=at_ns)


def test_batches_expire_and_everything_stays_explained(tmp_path: Path) -> None:
    place = Place(tmp_path)
    batches = asyncio.run(accept_in_the_past(place))
    who = batches[0].identity
    subject = f"{who.agent_id}/{who.boot_id}/{who.seq_start}-{who.seq_end}"
    place.run("reconciler", "--once")
    place.run("spark", "ingest", "--once")
    place.run("audit", "run")
    assert place.read("retention", "run", "--max-expire-ratio", "1")["candidates"] == 0
    place.run("retention", "set", "--raw", "30d")
    place.run("audit", "run")
    refused = place.run("retention", "run", code=1)
    assert "rule=`expire_ratio`" in refused
    dry = place.read("retention", "run", "--max-expire-ratio", "1", "--dry-run")
    assert (dry["expired"], dry["kept"]) == (BATCHES, {})
    assert dry["expired_bytes"] == sum(one.frame_bytes for one in batches)
    assert not (place.root / EXPIRED).exists()
    found = place.bodies()
    assert found == [f"line {n}" for n in range(BATCHES)]
    asyncio.run(accept_now(place))
    place.run("audit", "run")
    place.run("maintain", "--once", "--tasks", "expire")
    assert len(list((place.root / EXPIRED).rglob("*.z"))) == 1
    place.run("audit", "run")
    assert place.read("gc", "plan")["summary"]["expired"]["incarnations"] == BATCHES
    assert place.blobs() == 2 * BATCHES + 1
    assert place.read("gc", "run", "--grace-s", "0")["facts"]["deleted"] == BATCHES
    assert place.blobs() == BATCHES + 1
    counts = place.read("audit", "run")["certificate"]["counts"]
    assert (counts["missing_blobs"], counts["expired"]) == (0, BATCHES)
    (path,) = place.read("explain", subject)
    assert path["blob"] == "expired"
    proof = next(one["proof"] for one in path["objects"] if one["role"] == "blob")
    assert proof.startswith("It expired after 30 days by rule 1: run ")
    assert place.bodies() == found
    check_rebuild(place, found)


def test_records_are_erased_with_a_report(tmp_path: Path) -> None:
    """The other records of the batches stay, and each copy is named."""
    place = Place(tmp_path)
    batches = asyncio.run(accept_in_the_past(place))
    where = ("--where", "body contains 'line 1'")
    place.run("audit", "run")  # creates the key
    assert "nothing was ingested" in place.run("erase", "run", *where, "--reason", "r", code=2)
    place.run("reconciler", "--once")
    place.run("spark", "ingest", "--once")
    planned = place.read("erase", "plan", *where)
    assert (planned["records"], planned["batches"], planned["rows"]["logs"]) == (1, 1, 1)
    assert place.blobs() == BATCHES
    hold = ("--case", "C-1", "--reason", "r", "--review", "2099-01-01")
    held = place.read("hold", "add", *hold)["hold_id"]
    assert "case=`C-1`" in place.run("erase", "run", *where, "--reason", "r", code=2)
    place.run("hold", "lift", held, "--reason", "over")
    refused = place.run("erase", "run", "--where", "agent = 'host-1'", "--reason", "r", code=2)
    assert "matches all 8 records" in refused
    place.run("erase", "run", *where, "--reason", "request 17", code=1)
    (listed,) = place.read("erase", "list")
    assert (listed["ended"], listed["late"], listed["reports"]) == (False, False, 1)
    assert place.bodies() == ["line 0", "line 2", "line 3"]
    assert place.blobs() == BATCHES
    now = ("--grace-s", "0", "--readers-hours", "0")
    report = place.read("erase", "run", listed["erasure_id"], *now)
    assert report["verified"]
    assert {one["state"] for one in report["copies"]} == {
        *("done", "not_applicable", "stays", "elsewhere"),
    }
    assert place.blobs() == BATCHES - 1
    assert "the erasure has ended" in place.run("erase", "report", listed["erasure_id"])
    who = batches[1].identity
    subject = f"{who.agent_id}/{who.boot_id}/{who.seq_start}-{who.seq_end}"
    (path,) = place.read("explain", subject)
    assert path["blob"] == "expired"
    proof = next(one["proof"] for one in path["objects"] if one["role"] == "blob")
    assert f"records of erasure {listed['erasure_id']}" in proof
    counts = place.read("audit", "run")["certificate"]["counts"]
    assert (counts["missing_blobs"], counts["expired"]) == (0, 1)


def check_rebuild(place: Place, found: list[str]) -> None:
    """A rebuilt queue loses nothing while the tables exist, and is refused without them."""
    for folder in ("queue", "manifests", "reconciler", "accepted-by-time"):
        shutil.rmtree(place.root / folder / "v1")
    place.run("rebuild")
    place.run("spark", "ingest", "--once")
    assert place.bodies() == found
    assert not list((place.root / "reconciler" / "v1").glob("held/*"))
    shutil.rmtree(place.root / "lake")
    assert "restore `lake/v1/` from a backup" in place.run("rebuild", code=2)
