"""The command `sluice` in the test's process, which saves the start of a Python process."""

import os
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

from sluice_cli.main import run


@dataclass(frozen=True)
class CommandResult:
    """A command that ended."""

    returncode: int
    stdout: str
    stderr: str


def sluice(*words: str, folder: Path | None = None, **env: str) -> CommandResult:
    """Run a command in a folder, with no settings in the environment but these."""
    before = dict(os.environ)
    for name in [name for name in before if name.startswith("SLUICE_")]:
        del os.environ[name]
    os.environ.update(env)
    printed, err = BytesIO(), StringIO()
    out = TextIOWrapper(printed, "utf-8", write_through=True)
    try:
        with chdir(folder or Path.cwd()), redirect_stdout(out), redirect_stderr(err):
            code = run(list(words))
    finally:
        os.environ.clear()
        os.environ.update(before)
    return CommandResult(code, printed.getvalue().decode(), err.getvalue())


def make_java_home(folder: Path, version: str | None) -> str:
    """Return a folder for `JAVA_HOME` whose Java prints this version, or that has no Java."""
    java = folder / "jre" / "bin" / "java"
    if version is not None:
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
    return str(folder / "jre")
