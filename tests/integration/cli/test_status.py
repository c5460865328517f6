"""`sluice status` and `sluice support bundle` on real stores."""

import json
import tarfile
from pathlib import Path

import pytest
from support.commands import sluice


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
