"""The commands of `sluice audit` and `sluice gc`: output, JSON and exit codes."""

import asyncio
import json
from pathlib import Path

import pytest
from support.builders import make_identity, salted_frame
from support.frames import logs
from support.gc_world import GcWorld, MovedClock
from support.past_orphan import plant_past_orphan

from sluice_cli.main import run
from sluice_protocol.errors import BadUsage
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import Digest
from sluice_store import StoreMode, open_store
from sluice_store.authority import create_authority

DAY_S = 86_400


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Digest]:
    """A store with an orphan that is eight days old, and newer accepted batches."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "store"

    async def fill() -> Digest:
        frame = salted_frame(make_identity(500, count=3), logs(), "old")
        orphan = await plant_past_orphan(root, frame, age_s=8 * DAY_S, clock=SystemClock())
        async with open_store(f"file://{root}", StoreMode.CREATE) as opened:
            authority = await create_authority(opened)
            clock = MovedClock(SystemClock().now_ns())
            world = GcWorld(store=opened, clock=clock, authority=authority)
            for start in range(0, 30, 3):
                await world.accept(start)
        return orphan

    return f"file://{root}", asyncio.run(fill())


def sluice(capsys: pytest.CaptureFixture[str], *tokens: str, expect: int = 0) -> str:
    code = run(list(tokens))
    said = capsys.readouterr()
    assert code == expect, said.err
    return said.out + said.err


def test_commands_delete_an_old_orphan(
    store: tuple[str, Digest], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Audit, plan, a refusal in the grace period, a dry run, a run, and the stored proof."""
    url, orphan = store
    where = ("--store", url, "--key-file", "auditor.pem")
    assert "orphans 1" in sluice(capsys, "audit", "run", *where)
    assert "orphans 1" in sluice(capsys, "audit", "show", *where)
    assert "may_go" in sluice(capsys, "gc", "show", orphan, *where)
    assert "deletable orphans                 1" in sluice(capsys, "gc", "plan", *where)
    assert "rule=`grace`" in sluice(capsys, "gc", "run", *where, expect=1)
    assert "1 deletable" in sluice(capsys, "gc", "run", "--dry-run", *where)
    assert "1 deleted" in sluice(capsys, "gc", "run", "--grace-s", "0", *where)
    told = json.loads(sluice(capsys, "gc", "show", orphan, "--json", *where))
    assert told["incarnations"] == []
    assert [one["verdict"] for one in told["proofs"]] == ["may_go"]
    assert "1 certificates are valid" in sluice(capsys, "audit", "verify", *where)
    whole = sluice(capsys, "audit", "verify", "--evidence", *where)
    assert "evidence files are unchanged" in whole
    assert "0 evidence files to remove" in sluice(capsys, "audit", "prune", "--dry-run", *where)
    evidence = next((tmp_path / "store" / "gc").rglob("names/*.parquet"))
    evidence.write_bytes(b"altered")
    wrong = sluice(capsys, "audit", "verify", "--evidence", *where, expect=1)
    assert "evidence was altered" in wrong


def test_cycle_and_undo_commands(
    store: tuple[str, Digest], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Two cycles without a grace period move the orphan to the trash; undo restores it."""
    url, orphan = store
    where = ("--store", url, "--key-file", "auditor.pem")
    sluice(capsys, "audit", "run", *where)
    metrics = tmp_path / "gc.prom"
    cycle = ("gc", "cycle", "--grace-s", "0", "--undo", "--max-delete-ratio", "0.5", *where)
    assert "no plan was due" in sluice(capsys, *cycle)
    assert "1 deleted" in sluice(capsys, *cycle, "--metrics-file", str(metrics))
    assert "sluice_gc_deleted_blobs_total 1.0" in metrics.read_text()
    assert "0 copies deleted, 1 kept" in sluice(capsys, "gc", "purge", *where)
    assert " restored" in sluice(capsys, "gc", "undo", orphan, "--store", url)
    assert "younger" in sluice(capsys, "gc", "show", orphan, *where)


def test_bad_usage_is_reported(
    store: tuple[str, Digest], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A wrong digest or shard count is bad usage; the error for a missing key names the command."""
    url, _ = store
    where = ("--store", url)
    assert "64 lower-case hex" in sluice(capsys, "gc", "show", "xyz", *where, expect=2)
    assert "shards must divide" in sluice(capsys, "audit", "run", "--shards", "3", *where, expect=2)
    key = ("--key-file", str(tmp_path / "none.pem"))
    assert "sluice audit key" in sluice(capsys, "gc", "plan", *key, *where, expect=2)
    assert "USD" in sluice(capsys, "audit", "run", "--estimate", "1000000000")
    assert "public key" in sluice(capsys, "audit", "key", *key)
    assert "File exists" in sluice(capsys, "audit", "key", *key, expect=2)


def test_past_orphan_requires_an_empty_store(store: tuple[str, Digest], tmp_path: Path) -> None:
    """A past orphan cannot be planted in a store with later timestamps."""
    with pytest.raises(BadUsage):
        asyncio.run(
            plant_past_orphan(tmp_path / "store", b"late", age_s=DAY_S, clock=SystemClock())
        )


def test_candidates_of_a_plan_are_listed_and_explained(
    store: tuple[str, Digest], capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest plan is listed, searched, and explains a blob that it names, and one it keeps."""
    url, orphan = store
    where = ("--store", url, "--key-file", "auditor.pem")
    command = ("gc", "candidates")
    assert "there is no plan" in sluice(capsys, *command, "--store", url, expect=1)
    assert "no plans" in sluice(capsys, "gc", "plans", "--store", url)
    sluice(capsys, "audit", "run", *where)
    sluice(capsys, "gc", "plan", *where)
    (plan,) = json.loads(sluice(capsys, "gc", "plans", "--json", "--store", url))
    assert (plan["state"], plan["blobs"], plan["approved_by"]) == ("planned", 1, "")
    listed = sluice(capsys, *command, *where)
    assert ": 1 candidates\n" in listed
    assert f"{orphan}  " in listed
    assert "age          holds     8.0 days old; the retry horizon is 7.0 days" in listed
    assert "not verified (--key-file)" in sluice(capsys, *command, "--store", url)
    found = json.loads(sluice(capsys, *command, "--sha256", orphan[:6], "--json", *where))
    assert [one["sha256"] for one in found["candidates"]] == [orphan]
    sluice(capsys, "gc", "approve", plan["plan_id"], "--store", url)
    names, row = sluice(capsys, "gc", "plans", "--limit", "1", "--store", url).splitlines()
    assert names.split() == ["plan", "made", "state", "blobs", "size", "approved", "by", "note"]
    assert row.startswith(plan["plan_id"])
    assert " approved " in row
    assert " operator:" in row
    for limit in ("0", "101"):
        sluice(capsys, "gc", "plans", "--limit", limit, "--store", url, expect=2)
    sluice(capsys, "gc", "run", "--grace-s", "0", *where)
    assert " finished " in sluice(capsys, "gc", "plans", "--store", url)
    proved = sluice(capsys, *command, found["plan_id"], "--sha256", orphan, *where)
    assert "references   holds     0 reverse references" in proved
    key = next(Path(url.removeprefix("file://"), "raw-blobs").rglob("*.lmbatch"))
    kept = sluice(capsys, *command, "--sha256", key.stem, *where, expect=1)
    assert "audit        keeps     a record named it in audit" in kept
    gone = ("01ARZ3NDEKTSV4RRFFQ69G5FAV", *where)
    assert "no such plan" in sluice(capsys, *command, *gone, expect=1)
    for bad in (("--limit", "0"), ("--after", "-1"), ("--sha256", "x"), ("--sha256", "G" * 64)):
        sluice(capsys, *command, *bad, *where, expect=2)
