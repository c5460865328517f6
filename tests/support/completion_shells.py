"""A real shell that completes a line with the script of `sluice completion`."""

import os
import pty
import re
import select
import shutil
import subprocess
import time
from pathlib import Path
from shlex import quote

import pytest
from support.deploy_tools import TOOLS

ROOT = TOOLS / "shells"
"""Where `deploy/tools.sh shells` unpacks zsh and fish."""
_BASH = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_sluice
printf '%s\\n' "${COMPREPLY[@]}"
"""
_SHOWN_S = 30.0


def _program(name: str) -> str:
    paths = (ROOT / "bin" / name, ROOT / "usr" / "bin" / name)
    found = next((str(one) for one in paths if one.exists()), None) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: run `make test-package`")
    return found


def _run(folder: Path, *words: str, **env: str) -> str:
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def complete_in_bash(script: Path, *words: str) -> list[str]:
    """Return what bash offers for the last word of a line."""
    return _run(script.parent, "bash", "-c", _BASH, "bash", str(script), *words).split()


def complete_in_fish(script: Path, *words: str) -> list[str]:
    """Return what fish offers for the last word of a line."""
    commands = f"source {quote(str(script))}; complete --do-complete {quote(' '.join(words))}"
    if ROOT.exists():  # an unpacked fish finds its functions only if they are named
        commands = f"set -p fish_function_path {ROOT}/usr/share/fish/functions; {commands}"
    libraries = str(ROOT / "usr" / "lib" / "x86_64-linux-gnu")
    fish = (_program("fish"), "--no-config", "-c", commands)
    shown = _run(script.parent, *fish, LD_LIBRARY_PATH=libraries)
    return [line.split("\t")[0] for line in shown.splitlines() if line]


def complete_in_zsh(script: Path, *words: str) -> list[str]:
    """Return the last word of a line after the tabulator key, in a list, as the others do.

    The script is the file `_sluice` in a folder of `fpath`, as `sluice completion --help` states.
    """
    home = script.parent / "zsh"
    home.mkdir(exist_ok=True)
    shutil.copy(script, home / "_sluice")
    modules, functions = ROOT / "usr/lib/x86_64-linux-gnu/zsh", ROOT / "usr/share/zsh/functions"
    unpacked = f"module_path=({modules}/*)\nfpath=({functions} {functions}/**/*(/))\n"
    (home / ".zshenv").write_text(
        f"setopt no_global_rcs\n{unpacked if modules.exists() else ''}fpath=({home} $fpath)\n"
    )
    (home / ".zshrc").write_text(
        "autoload -Uz compinit\ncompinit -u -D\nPS1=\n"
        'sluice() { print -r -- "line=[$*]" }\nprint ready=$((1 + 1))\n'
    )
    shown = _type(_program("zsh"), home, " ".join(words))
    return shown.split()[-1:]


def _type(zsh: str, home: Path, line: str) -> str:
    """Type a line and the tabulator key into a terminal; return the words of the completed line."""
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {**os.environ, "TERM": "dumb", "ZDOTDIR": str(home)}
        os.execve(zsh, ["zsh", "-i"], environment)  # noqa: S606 - no shell is wanted around it
    try:
        _read_until(terminal, "ready=2")
        os.write(terminal, f"{line}\t\n".encode())
        return _read_until(terminal, r"line=\[(.*)\]")
    finally:
        os.close(terminal)  # zsh ends with its terminal
        os.waitpid(pid, 0)


def _read_until(terminal: int, pattern: str) -> str:
    """Read until the output matches; return the first group of the match, if there is one."""
    shown, end_s = "", time.monotonic() + _SHOWN_S
    while (found := re.search(pattern, shown)) is None:
        assert time.monotonic() < end_s, shown
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return found[1] if found.groups() else ""
