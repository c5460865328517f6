"""A taken port and a folder that cannot be written: one line with the remedy."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import sluice

from sluice_gateway.uploads.principals import read_principals
from sluice_protocol.errors import BadUsage


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taken")
    assert sluice("init", folder=folder).returncode == 0
    return folder


@pytest.fixture(scope="module")
def taken() -> Iterator[str]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


@pytest.mark.parametrize("command", ["reconciler", "query serve", "console", "maintain"])
def test_a_taken_port_is_one_line(folder: Path, taken: str, command: str) -> None:
    done = sluice(*command.split(), "--listen", taken, folder=folder)
    assert done.returncode == 2
    assert done.stderr == (
        f"sluice: cannot listen: Address already in use; choose another address, listen=`{taken}`\n"
    )


@pytest.mark.parametrize("setting", ["listen", "otlp_grpc_listen", "forward_listen"])
def test_a_gateway_with_a_taken_port_is_one_line(folder: Path, taken: str, setting: str) -> None:
    """It ends before it registers or starts a worker."""
    (folder / "principals.toml").touch()
    addresses = {
        "listen": "127.0.0.1:0",
        "otlp_grpc_listen": "127.0.0.1:0",
        "forward_listen": "127.0.0.1:0",
        setting: taken,
    }
    options = [f"--{name.replace('_', '-')}={one}" for name, one in addresses.items()]
    doors = ("--doors", "otlp", "--doors", "forward")
    done = sluice("gateway", *options, *doors, folder=folder)
    assert done.returncode == 2
    assert done.stderr == (
        "sluice: cannot listen: Address already in use; choose another address,"
        f" {setting}=`{taken}`\n"
    )


@pytest.mark.parametrize("command", ["status", "gateway", "gaps"])
def test_a_file_instead_of_a_store_is_named(tmp_path: Path, command: str) -> None:
    """It is no missing store: `sluice init` cannot create one there."""
    (tmp_path / "file").touch()
    done = sluice(command, "--store", f"file://{tmp_path}/file", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "sluice: no store here; this is a file, and a store is a folder: correct the path,"
        f" path=`{tmp_path}/file`\n"
    )


@pytest.mark.parametrize(
    ("place", "problem"), [("gone", "`sluice token create`"), (".", "directory;")]
)
def test_a_missing_principals_file_is_one_line(folder: Path, place: str, problem: str) -> None:
    with pytest.raises(BadUsage) as refused:
        read_principals(folder / place)
    assert problem in str(refused.value)
    assert "Errno" not in str(refused.value)
    assert f"path=`{folder / place}`" in str(refused.value)


@pytest.mark.parametrize("option", ["--store", "--home"])
def test_up_with_a_file_instead_of_a_folder_names_the_option(tmp_path: Path, option: str) -> None:
    path = tmp_path / "file"
    path.touch()
    value = f"file://{path}" if option == "--store" else str(path)
    done = sluice("up", option, value, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        f"sluice: a file is where a folder is required: pass another `{option}`, path=`{path}`\n"
    )


@pytest.mark.parametrize("command", ["gaps", "batches"])
def test_an_unknown_agent_is_not_reported_as_complete(folder: Path, command: str) -> None:
    """`0 gaps` for a mistyped id reads as if nothing was missing."""
    done = sluice(command, "--agent", "wbe-1", folder=folder)
    assert done.returncode == 0
    assert done.stdout == (
        "no batch of this agent is accepted; `sluice gaps` lists all, agent=wbe-1\n"
    )
    assert sluice(command, "--agent", "wbe-1", "--json", folder=folder).stdout == "[]\n"


@pytest.mark.parametrize("command", ["init", "up"])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, command: str) -> None:
    done = sluice(command, "--store", "file:///proc/sluice", folder=tmp_path)
    assert done.returncode != 0
    assert done.stderr.startswith("sluice: ")
    assert done.stderr.count("\n") == 1
    assert "/proc/sluice" in done.stderr


AGENT = ("agent", "run", "--gateway", "http://127.0.0.1:1", "--agent-id", "a", "--paths", "x")


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        (
            "--health",
            "{}",
            "cannot listen: Address already in use; choose another address, listen=",
        ),
        (
            "--doors-listen",
            "{}",
            "cannot listen: Address already in use; choose another address, listen=",
        ),
        (
            "--syslog",
            "tcp://{}",
            "cannot listen for syslog: Address already in use; choose another",
        ),
    ],
)
def test_an_agent_with_a_taken_port_is_one_line(
    tmp_path: Path, taken: str, option: str, value: str, problem: str
) -> None:
    words = (option, value.format(taken), "--host-metrics-s", "0")
    done = sluice(*AGENT, "--doors", "otlp", *words, folder=tmp_path)
    *started, error = done.stderr.splitlines()
    assert done.returncode == 2
    assert all("agent_started" in line for line in started)
    assert error.startswith(f"sluice: {problem}")
    assert error.endswith(f"=`{value.format(taken)}`")


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        (
            ("--spool", "/proc/sluice"),
            1,
            (
                "cannot write spool: free space or repair its permissions; no record is lost"
                " meanwhile, reason=`No such file or directory`, path=`/proc/sluice`"
            ),
        ),
        (("--key", "."), 2, "cannot read key file: Is a directory; run as its owner, path=`.`"),
        (("--key", "k"), 2, "no key file: create one with `sluice agent init`, path=`k`"),
    ],
)
def test_an_agent_with_an_unusable_place_is_one_line(
    tmp_path: Path, options: tuple[str, str], code: int, problem: str
) -> None:
    done = sluice(*AGENT, *options, folder=tmp_path)
    assert (done.returncode, done.stderr) == (code, f"sluice: {problem}\n")


def test_any_other_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    settings = Path(__file__).parents[2] / "golden" / "policies" / "settings.toml"
    words = ("policies", "render", "--settings", str(settings), "--out", "/proc/sluice")
    done = sluice(*words, folder=tmp_path)
    problem = "cannot read or write: No such file or directory; create it or correct its path"
    assert (done.returncode, done.stderr) == (2, f"sluice: {problem}, path=`/proc/sluice`\n")


@pytest.mark.daily(1)
@pytest.mark.parametrize("command", ["--help", "config show --json", "completion bash"])
def test_a_reader_that_ends_early_is_no_error(command: str, tmp_path: Path) -> None:
    """As `head` does: nothing is printed, and the exit code is that of other programs."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sluice_cli", *command.split()],
            cwd=tmp_path,
            stdout=write_end,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")
