"""The command `sluice doctor`: exit codes, JSON, and what it stores."""

import asyncio
import json
from pathlib import Path

import pytest
from support.policies_live import GOLDEN
from support.store_versitygw import CREDENTIALS, Server, free_port, make_bucket

from sluice_cli.main import run
from sluice_store import open_store
from sluice_store.doctor import DoctorResult, read_doctor


def _read(url: str) -> DoctorResult | None:
    async def read() -> DoctorResult | None:
        async with open_store(url) as store:
            return await read_doctor(store)

    return asyncio.run(read())


def _store(folder: Path) -> str:
    url = f"file://{folder}/store"
    assert run(["init", "--store", url]) == 0
    return url


def test_doctor_command_accepts_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A good store has exit code 0 and contains the printed result."""
    url = _store(tmp_path)
    assert run(["doctor", "--store", url, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    stored = _read(url)
    assert stored is not None
    assert stored.result_id == printed["result_id"]
    assert stored.good


def test_doctor_command_writes_nothing_on_a_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--dry-run` writes no result."""
    url = _store(tmp_path)
    assert run(["doctor", "--store", url, "--dry-run"]) == 0
    assert "good for acceptance and deletion" in capsys.readouterr().out
    assert _read(url) is None


def test_doctor_command_reports_broken_promises(
    moto: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bucket without versioning has exit code 1, with the consequence."""
    url = moto.url("bucket", "pre")
    asyncio.run(make_bucket(url, versioning=None))
    assert run(["doctor", "--store", url]) == 1
    printed = capsys.readouterr().out
    assert "BROKEN  versioning (deletion)" in printed
    assert "garbage collection only plans" in printed


def test_doctor_command_unreachable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unreachable store has exit code 3, with a line that names what to check."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    url = f"s3://bucket?endpoint=http://127.0.0.1:{free_port()}&region=us-east-1"
    assert run(["doctor", "--store", url]) == 3
    assert "check the endpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "said"),
    [("s3://here?endpoint=http://127.0.0.1:1", "another bucket"), (None, "use an s3:// store")],
)
def test_doctor_with_policies_of_another_store_tests_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str | None, said: str
) -> None:
    settings = GOLDEN / "settings.toml"
    store = url or _store(tmp_path)
    assert run(["doctor", "--store", store, "--policies", str(settings)]) == 2
    assert said in capsys.readouterr().err
