"""`sluice forward` and `sluice agent init` as a shell uses them."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "sluice_cli")


def test_forward_gives_up_after_its_limit_and_keeps_the_batches(tmp_path: Path) -> None:
    """The gateway is unreachable: a few lines are logged, then the command ends."""
    limit = ("--give-up-s", "2", "--durability", "accepted")
    done = subprocess.run(
        (*COMMAND, "forward", "--gateway", "http://127.0.0.1:1", *limit),
        input="one\n",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "gave up sending: " in done.stderr
    assert "check that a gateway listens there" in done.stderr
    assert "batches are kept" in done.stderr
    assert "give_up_s=`2`" in done.stderr
    failures = [line for line in done.stderr.splitlines() if "upload_failed" in line]
    assert 1 <= len(failures) <= 5
    assert list((tmp_path / ".sluice-agent").rglob("*.batch*"))


@pytest.mark.long
def test_init_prints_only_the_entry_so_that_it_can_be_appended(tmp_path: Path) -> None:
    """Also to a file without a newline at its end, and a mistake appends nothing."""
    path = tmp_path / "principals.toml"
    path.write_text("# the principals")
    for arguments, code in (
        (("--agent-id", "a", "--key", "a.pem"), 0),
        (("--agnt-id", "a"), 2),
        (("--agent-id", "b", "--key", "b.pem"), 0),
    ):
        with path.open("a") as out:
            done = subprocess.run(
                (*COMMAND, "agent", "init", *arguments),
                cwd=tmp_path,
                stdout=out,
                stderr=subprocess.PIPE,
                check=False,
                timeout=60,
            )
        assert done.returncode == code
    entries = tomllib.loads(path.read_text())["principals"]
    assert [one["agents"] for one in entries] == [["a"], ["b"]]
