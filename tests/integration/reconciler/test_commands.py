"""The commands, with human-readable and JSON output, over the embedded store."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import zstandard
from support.builders import manifest
from support.reconciler_seed import accept, refuse

from sluice_cli.main import run
from sluice_protocol.keys import blob_key
from sluice_protocol.manifests import encode_record
from sluice_protocol.outcomes import ObjectInfo
from sluice_reconciler.lanes.membership import HostProcess, MemberRecord, member_key
from sluice_store.local import open_local_store


@pytest.fixture(autouse=True)
def _own_logs() -> Iterator[None]:
    """Restore the log configuration that commands change."""
    yield
    structlog.reset_defaults()


def seed(folder: Path) -> None:
    async def fill() -> None:
        async with open_local_store(folder) as store:
            for seq in (0, 10, 30):
                await accept(store, seq)
            await refuse(store, 0)

    asyncio.run(fill())


def lose_blob(folder: Path, seq: int) -> None:
    async def lose() -> None:
        async with open_local_store(folder) as store:
            key = blob_key(manifest(seq, frame=f"host-1/b1/{seq}/10".encode()).digest)
            info = await store.head(key)
            assert isinstance(info, ObjectInfo)
            assert info.incarnation is not None
            await store.delete(key, info.incarnation)

    asyncio.run(lose())


def call(capsys: pytest.CaptureFixture[str], *tokens: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = run([*tokens, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_commands_report_the_path_of_a_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After init and a pass, batches, gaps, queue, explain and rebuild agree."""
    store = ("--store", tmp_path.as_uri())
    assert run(["init", *store]) == 0
    seed(tmp_path)
    code, report = call(capsys, "reconciler", "--once", *store)
    assert (code, report["outcome"]["enqueued"], report["quarantined"]) == (0, 3, 1)
    code, batches = call(capsys, "batches", *store)
    assert (code, [one["seq_start"] for one in batches]) == (0, [0, 10, 30])
    code, boots = call(capsys, "gaps", "--agent", "host-1", *store)
    assert code == 1
    assert [(gap["seq_start"], gap["seq_end"]) for gap in boots[0]["gaps"]] == [(20, 29)]
    code, lanes = call(capsys, "queue", "status", *store)
    assert (code, sum(one["waiting_batches"] for one in lanes)) == (0, 3)
    code, paths = call(capsys, "explain", "host-1/b1/0-9", *store)
    assert (code, paths[0]["blob"], paths[0]["queues"][0]["sequence"]) == (0, "ok", 1)
    roles = {one["role"] for one in paths[0]["objects"] if one["present"]}
    assert {"manifest", "blob", "by_time", "by_blob", "raw_by_time", "work_list"} <= roles
    assert (paths[0]["sealed"]["sealer"], paths[0]["lake"]["state"]) == ("sender", "not_yet")
    assert len(paths[0]["quarantined"]) == 1
    code, by_digest = call(capsys, "explain", batches[1]["frame_sha256"], *store)
    assert (code, by_digest[0]["identity"]["seq_start"]) == (0, 10)
    assert call(capsys, "rebuild", "--verify", *store) == (0, [])


def test_commands_report_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing blob is held and explained; unknown batches and invalid names differ."""
    store = ("--store", tmp_path.as_uri())
    assert run(["init", *store]) == 0
    seed(tmp_path)
    lose_blob(tmp_path, 10)
    code, report = call(capsys, "reconciler", "--once", *store)
    assert (code, report["outcome"]["enqueued"], report["held_back"]) == (1, 2, 1)
    code, paths = call(capsys, "explain", "host-1/b1/10-19", *store)
    assert code == 1
    assert paths[0]["blob"].startswith("blob_missing")
    assert paths[0]["mark"] is not None
    assert call(capsys, "explain", "host-1/b1/500-509", *store)[0] == 1
    assert call(capsys, "explain", "0" * 64, *store) == (1, [])
    for bad in ("unknown", "a/b/9-1", "Z" * 64):
        assert run(["explain", bad, *store]) == 2
    for human in (["batches"], ["gaps"], ["queue", "status"], ["explain", "host-1/b1/10-19"]):
        run([*human, *store])
        assert capsys.readouterr().out


def test_an_error_in_the_middle_of_a_comparison_is_not_a_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was found before is printed, and the comparison is called incomplete."""
    store = ("--store", tmp_path.as_uri())
    assert run(["init", *store]) == 0
    seed(tmp_path)
    assert call(capsys, "reconciler", "--once", *store)[0] == 0
    newer = b'{"schema":"sluice.reconciler_lane.v9"}'
    state = next(tmp_path.glob("reconciler/v1/lanes/*"))
    state.write_bytes(zstandard.ZstdCompressor().compress(newer))
    for entry in tmp_path.glob("accepted-by-time/v1/**/*.*json"):
        entry.unlink()
    code = run(["rebuild", "--verify", *store])
    printed = capsys.readouterr()
    assert code != 0
    assert printed.out.startswith("missing  accepted-by-time/v1/")
    assert "differences found" not in printed.out
    assert "comparison is incomplete: repeat the command, differences_found=`3`" in printed.err
    assert "update this one" in printed.err
    code = run(["rebuild", "--verify", "--json", *store])
    assert (code != 0, capsys.readouterr().out) == (True, "")


def test_damaged_and_lost_registers_are_reported_and_rebuilt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`queue status` and `rebuild --verify` exit with 1; `rebuild` repairs."""
    store = ("--store", tmp_path.as_uri())
    assert run(["init", *store]) == 0
    seed(tmp_path)
    assert call(capsys, "reconciler", "--once", *store)[0] == 0
    (register,) = tmp_path.glob("queue/v1/*/manifest")
    register.write_bytes(register.read_bytes()[:100])
    code, lanes = call(capsys, "queue", "status", *store)
    assert (code, [one["condition"] for one in lanes]) == (1, ["damaged"])
    assert "sluice rebuild" in lanes[0]["problem"]
    code, found = call(capsys, "rebuild", "--verify", *store)
    assert (code, [one["wrong"] for one in found]) == (1, ["unreadable"])
    code, repaired = call(capsys, "rebuild", "--first-sequence", "1", *store)
    assert (code, "kept as queue/v1/" in repaired[0]["detail"]) == (0, True)
    assert call(capsys, "rebuild", "--verify", *store) == (0, [])
    code, lanes = call(capsys, "queue", "status", *store)
    assert (code, [one["waiting_batches"] for one in lanes]) == (0, [3])

    register.unlink()
    code, lanes = call(capsys, "queue", "status", *store)
    assert (code, [one["condition"] for one in lanes]) == (1, ["lost"])
    assert run(["queue", "status", *store]) == 1
    assert "lost" in capsys.readouterr().out


def test_queue_status_names_the_owner_of_each_lane(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ("--store", tmp_path.as_uri())
    assert run(["init", *store]) == 0
    seed(tmp_path)
    code, _ = call(capsys, "reconciler", "--once", *store)
    assert code == 0
    assert run(["queue", "status", *store]) == 0
    assert "owner unowned: no reconciler works on this lane" in capsys.readouterr().out
    process = HostProcess(boot="b", namespace=1, pid=4711, started=1)
    for number, url in enumerate(("http://one:8081", "")):
        record = MemberRecord(
            member=f"01ARZ3NDEKTSV4RRFFQ69G5FA{number}",
            url=url,
            lanes=tuple(range(64)),
            host="host-9[/]" if url else "",
            process=process if url else None,
        )
        asyncio.run(write_member(tmp_path, record))
        code, lanes = call(capsys, "queue", "status", *store)
        owners = [one["url"] for one in lanes[0]["ownership"]["owners"]]
        assert (code, owners) == (0, ["http://one:8081", ""][: number + 1])
        assert run(["queue", "status", *store]) == 0
        shown = capsys.readouterr().out
        assert "host-9[/] (pid 4711) http://one:8081" in shown
        assert ("owner disputed, " in shown) == (number == 1)
    assert "; 01ARZ3NDEKTSV4RRFFQ69G5FA1: 2 reconcilers report this lane" in shown


async def write_member(folder: Path, record: MemberRecord) -> None:
    async with open_local_store(folder) as store:
        await store.create(member_key(record.member), encode_record(record))
