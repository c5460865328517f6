"""Backup and restore as `docs/backup.md` describes them, while batches are accepted."""

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.local_deployment import clean_environment
from support.reconciler_seed import accept_logs
from support.sluice_process import run_process

from sluice_protocol.authority import decode_authority
from sluice_protocol.erasure import (
    ErasureReport,
    SignedErasure,
    SignedErasureReport,
    decide_erasure,
    erasure_key,
    erasure_report_key,
)
from sluice_protocol.keys import AUTHORITY_SETTINGS
from sluice_protocol.manifests import encode_record
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import Digest
from sluice_store.authority import create_authority
from sluice_store.local import open_local_store
from sluice_store.retry import Backoff
from sluice_store.stored_deletes import write_delete

PAGE = (Path(__file__).parents[3] / "docs" / "backup.md").read_text()
COPY, NEWEST, REBUILD = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
ORDER = re.search(r"for prefix in (.*?); do", COPY)[1].split()  # type: ignore[index]
AT_NS = 1_750_000_000_000_000_000


def accept(source: Path, seq: int) -> str:
    """Accept a batch with one line, and return the line."""

    async def write() -> None:
        async with open_local_store(source) as store:
            if seq == 0:
                await create_authority(store)
            await accept_logs(store, [f"line-{seq}-end"], seq=seq, at_ns=AT_NS)

    asyncio.run(write())
    return f"line-{seq}-end"


def shell(commands: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    function = f'sluice() {{ "{sys.executable}" -m sluice_cli "$@"; }}\n'
    return subprocess.run(
        ["bash", "-e", "-c", function + commands],
        cwd=folder,
        env=clean_environment(**env),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def sluice(words: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run one command, whose arguments are separated as in a shell."""
    command = [sys.executable, "-m", "sluice_cli", *shlex.split(words)]
    return run_process(command, cwd=folder, env=clean_environment(**env), text=True)


def found_lines(store: Path) -> set[str]:
    done = sluice(
        f"query --store file://{store} --from 2025-01-01T00:00:00Z -q line- --json", store
    )
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"line-\d+-end", done.stdout))


def backup(source: Path, target: Path, order: list[str]) -> None:
    """Copy prefix by prefix, with a newly accepted batch after each."""
    for number, prefix in enumerate(order):
        if (source / prefix).is_dir():
            shutil.copytree(source / prefix, target / prefix)
        accept(source, 100 + number)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    store = tmp_path / "source"
    for seq in range(3):
        accept(store, seq)
    return store


def test_a_backup_under_load_is_restored_completely(source: Path, tmp_path: Path) -> None:
    restored = tmp_path / "restored"
    backup(source, restored, ORDER)
    done = shell(REBUILD, tmp_path, STORE=f"file://{restored}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differences found" in done.stdout
    assert {f"line-{seq}-end" for seq in range(3)} <= found_lines(restored)
    again = sluice(f"reconciler --once --store file://{restored}", tmp_path)
    assert again.returncode == 0, again.stdout  # no batch is held back: each manifest has its blob


def age(store: Path, days: int) -> None:
    """Let the authority be created some days ago, in the record and in the date of its file."""
    path, now_s = store / AUTHORITY_SETTINGS, time.time()
    settings = decode_authority(path.read_bytes())
    at_s = now_s - days * 86_400
    path.write_bytes(encode_record(replace(settings, created_at_unix_ns=int(at_s * 1e9))))
    os.utime(path, (at_s, at_s))


def record_erasure(store: Path) -> None:
    """Decide an erasure in a store, and report that it has ended."""
    decision = decide_erasure(
        "body contains 'line-2-end'", ("logs",), (None, None), "r", erasure_id=SystemIds().ulid(),
        delete_ids=[SystemIds().ulid()], now_ns=time.time_ns(), decided_by="operator:ann",
    )  # fmt: skip
    report = ErasureReport(
        erasure_id=decision.erasure_id, number=1, authority_id="", decision=decision,
        decision_sha256=Digest(""), made_at_unix_ns=time.time_ns(), batches=1,
        records=1, searched={}, verified=True, copies=(),
    )  # fmt: skip
    signed = SignedErasureReport(report=report, key_id="", signature="")

    async def write() -> None:
        async with open_local_store(store) as opened:
            body = encode_record(SignedErasure(decision=decision, key_id="", signature=""))
            await opened.create(erasure_key(decision.erasure_id), body)
            await opened.create(erasure_report_key(decision.erasure_id, 1), encode_record(signed))
            backoff = Backoff.seeded_by(SystemClock())
            await write_delete(opened, decision.deletes[0], backoff, SystemIds())

    asyncio.run(write())


def test_a_copy_is_refused_until_newer_deletes_and_erasures_are_applied(
    source: Path, tmp_path: Path
) -> None:
    age(source, days=40)
    copied = shell(COPY, tmp_path, SOURCE=str(source), BACKUP=str(tmp_path / "restored"))
    assert copied.returncode == 0, copied.stderr
    restored = tmp_path / "restored"
    deleting = "delete --where \"body contains 'line-1-end'\" --store"
    assert sluice(f"{deleting} file://{source}", tmp_path).returncode == 0
    record_erasure(source)
    expired = source / "expired" / "v1" / "date=2025-06-15" / "hour=15" / "x-0000.json.z"
    expired.parent.mkdir(parents=True)
    expired.write_bytes(b"a tombstone")
    env = {"SLUICE_STORE": f"file://{restored}", "STORE": f"file://{restored}"}
    for command in (
        "query -q line-", "sql 'select 1'", "batches", "status", "doctor", "rebuild",
        "reconciler --once", "gateway --listen 127.0.0.1:0", "audit run", "erase list",
    ):  # fmt: skip
        refused = sluice(command, tmp_path, **env)
        assert refused.returncode != 0, command
        assert "line-" not in refused.stdout, command
        assert "this store is a copy" in refused.stderr, (command, refused.stderr)
        assert "run `sluice restore`" in refused.stderr
    assert sluice("restore", tmp_path, **env).returncode == 2
    for _ in range(2):  # it may be repeated
        done = shell(NEWEST, tmp_path, **env, NEWEST=f"file://{source}")
        assert done.returncode == 0, done.stderr
    assert (restored / expired.relative_to(source)).exists()
    expired.unlink()
    (restored / expired.relative_to(source)).unlink()
    listed = {
        place: json.loads(sluice(f"erase list --json --store file://{place}", tmp_path).stdout)
        for place in (source, restored)
    }
    assert [one["ended"] for one in listed[source]] == [True]
    assert [(one["ended"], one["late"]) for one in listed[restored]] == [(False, False)]
    done = shell(REBUILD, tmp_path, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert found_lines(restored) == {"line-0-end"}
    again = tmp_path / "again"
    assert shell(COPY, tmp_path, SOURCE=str(restored), BACKUP=str(again)).returncode == 0
    later = time.time() + 7200  # the copy of a restored store is a copy again
    os.utime(again / AUTHORITY_SETTINGS, (later, later))
    assert "this store is a copy" in sluice("status", tmp_path, **env | {
        "SLUICE_STORE": f"file://{again}"
    }).stderr  # fmt: skip


def test_a_restore_is_refused_with_decisions_of_another_store(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    accept(other, 0)
    words = f"restore --store file://{source} --newest file://{other}"
    refused = sluice(words, tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "another authority" in refused.stderr
    assert not (source / "authority/v1/restores").exists()
    shutil.copytree(source / "authority", other / "authority", dirs_exist_ok=True)
    for place, body in ((source, b"1"), (other, b"2")):
        (place / "retention/v1/decisions").mkdir(parents=True)
        (place / "retention/v1/decisions/000001.json").write_bytes(body)
    refused = sluice(words, tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "key=`retention/v1/decisions/000001.json`" in refused.stderr
    assert not (source / "authority/v1/restores").exists()
    stated = sluice(f"restore --store file://{source} --newest none", tmp_path)
    assert stated.returncode == 0, stated.stderr


@pytest.mark.long
def test_the_other_order_loses_blobs(source: Path, tmp_path: Path) -> None:
    restored = tmp_path / "restored"
    backup(source, restored, ORDER[::-1])
    again = sluice(f"reconciler --once --store file://{restored}", tmp_path)
    assert again.returncode == 1
    assert "held back" in again.stdout


def test_the_block_of_the_page_copies_the_same(source: Path, tmp_path: Path) -> None:
    done = shell(COPY, tmp_path, SOURCE=str(source), BACKUP=str(tmp_path / "copy"))
    assert done.returncode == 0, done.stderr
    for prefix in ("authority", "accepted", "raw-blobs"):
        names = {one.relative_to(source) for one in (source / prefix).rglob("*.*")}
        assert names
        assert {
            one.relative_to(tmp_path / "copy") for one in (tmp_path / "copy" / prefix).rglob("*.*")
        } >= names
