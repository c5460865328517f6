"""Backup and restore as `docs/backup.md` describes them, while batches are accepted."""

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.local_deployment import clean_environment
from support.reconciler_seed import accept_logs

from sluice_store.authority import create_authority
from sluice_store.local import open_local_store

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


def found_lines(store: Path) -> set[str]:
    done = shell(
        f"sluice query --store file://{store} --from 2025-01-01T00:00:00Z -q line- --json", store
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
    again = shell(f"sluice reconciler --once --store file://{restored}", tmp_path)
    assert again.returncode == 0, again.stdout  # no batch is held back: each manifest has its blob


def test_deletes_after_the_backup_apply_again_before_anything_is_served(
    source: Path, tmp_path: Path
) -> None:
    restored = tmp_path / "restored"
    backup(source, restored, ORDER)
    deleting = "sluice delete --where \"body contains 'line-1-end'\" --store"
    assert shell(f"{deleting} file://{source}", tmp_path).returncode == 0
    expired = source / "expired" / "v1" / "date=2025-06-15" / "hour=15" / "x-0000.json.z"
    expired.parent.mkdir(parents=True)
    expired.write_bytes(b"a tombstone")
    for _ in range(2):  # it may be repeated
        done = shell(NEWEST, tmp_path, NEWEST=str(source), RESTORED=str(restored))
        assert done.returncode == 0, done.stderr
    assert (restored / expired.relative_to(source)).exists()
    expired.unlink()
    (restored / expired.relative_to(source)).unlink()
    done = shell(REBUILD, tmp_path, STORE=f"file://{restored}")
    assert done.returncode == 0, done.stdout + done.stderr
    found = found_lines(restored)
    assert "line-0-end" in found
    assert "line-1-end" not in found


@pytest.mark.long
def test_the_other_order_loses_blobs(source: Path, tmp_path: Path) -> None:
    restored = tmp_path / "restored"
    backup(source, restored, ORDER[::-1])
    again = shell(f"sluice reconciler --once --store file://{restored}", tmp_path)
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
