"""`sluice status` and `sluice support bundle` on real stores."""

import json
import tarfile
from pathlib import Path

import pytest
from support.commands import sluice

from sluice_agent.inputs.file_report import FileCounts, make_file_report, write_report


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert sluice("init", folder=tmp_path).returncode == 0
    return tmp_path


def test_a_new_store_needs_attention(folder: Path) -> None:
    done = sluice("status", folder=folder)
    assert done.returncode == 1, done.stderr
    assert "error: The store was never tested." in done.stdout
    assert "warning: No reconciler has finished a pass." in done.stdout


def test_after_the_doctor_and_a_pass_nothing_needs_attention(folder: Path) -> None:
    for words in (("doctor",), ("reconciler", "--once")):
        assert sluice(*words, folder=folder).returncode == 0
    done = sluice("status", "--json", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["attention"] == []
    assert found["overview"]["doctor"]["endpoints"]


def test_what_an_agent_did_not_send_is_shown(folder: Path) -> None:
    """Of the spool in the default place, or where the settings file names it."""
    counts = FileCounts(rewritten=1, resent_bytes=3900, missing=2, binary=("/var/log/wtmp",))
    report = make_file_report(counts, agent_id="host-1", now_ns=1)
    for spool in (folder / ".sluice-agent/spool", folder / "other"):
        spool.mkdir(parents=True)
        write_report(spool, report)
        done = sluice("status", folder=folder)
        assert "agent        host-1: 1 files read from their start again" in done.stdout
        assert "2 known files not found; 1 binary files not sent (/var/log/wtmp)" in done.stdout
        (spool / "files.json").unlink()
        assert "host-1" not in sluice("status", folder=folder).stdout
        (folder / "sluice.toml").write_text('[agent.run]\nspool = "other"\n')


def test_a_store_that_is_unreachable_is_one_line(tmp_path: Path) -> None:
    done = sluice("status", "--store", "file:///nowhere", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


PLANTED = {
    "token": "slt_plantedplantedplantedplantedplanted",
    "setting": "planted-api-token",
    "variable": "planted-variable-token",
    "aws": "planted/aws/secret/key",
    "log": "plantedlogbearer",
}


def test_the_bundle_contains_no_secret(folder: Path) -> None:
    home = folder / ".sluice-up"
    home.mkdir()
    (home / "token").write_text(PLANTED["token"])
    (home / "principals.toml").write_text('shared_key = "planted-shared-key-planted-shared-key"\n')
    (home / "up.log").write_text(
        f"gateway {PLANTED['token']} Authorization: Bearer {PLANTED['log']}\n"
        "gateway planted-shared-key-planted-shared-key and an ordinary line\n"
    )
    (folder / "sluice.toml").write_text(
        f'[reconciler]\napi_token = "{PLANTED["setting"]}"\nlisten = "127.0.0.1:7001"\n'
    )
    done = sluice(
        *("support", "bundle", "--output", "bundle.tar.gz"),
        folder=folder,
        SLUICE_MAINTAIN_API_TOKEN=PLANTED["variable"],
        AWS_SECRET_ACCESS_KEY=PLANTED["aws"],
    )
    assert done.returncode == 0, done.stderr
    with tarfile.open(folder / "bundle.tar.gz") as archive:
        files = {
            one.name.rpartition("/")[2]: archive.extractfile(one).read().decode()  # type: ignore[union-attr]
            for one in archive.getmembers()
        }
    everything = "".join(files.values())
    for name, secret in {**PLANTED, "key": "planted-shared-key"}.items():
        assert secret not in everything, name
    assert "an ordinary line" in files["up.log"]
    assert "never tested" in files["status.json"]
    assert "127.0.0.1:7001" in files["settings.json"]
    assert "SLUICE_MAINTAIN_API_TOKEN" in files["versions.json"]


def test_the_bundle_replaces_no_file(folder: Path) -> None:
    (folder / "bundle.tar.gz").write_text("mine")
    done = sluice("support", "bundle", "--output", "bundle.tar.gz", folder=folder)
    assert done.returncode == 2
    assert (folder / "bundle.tar.gz").read_text() == "mine"
