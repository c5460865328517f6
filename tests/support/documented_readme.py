"""The installation of the README: the built wheel, in an empty environment and an empty folder."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.local_deployment import (
    PORTS,
    START_S,
    LocalDeployment,
    clean_environment,
    stop_deployment,
)

from sluice_protocol.distribution import DISTRIBUTION

INSTALL_S = 900


@contextmanager
def readme_deployment(
    folder: Path, scratch: Path, wheel: Path, commands: str
) -> Iterator[LocalDeployment]:
    """Install and start sluice as the README does, on free ports, and stop it at the end.

    Args:
        folder: The empty folder.
        scratch: Where the environment is created.
        wheel: What is installed instead of the published version.
        commands: `pip install …` and `sluice up`, a line each.
    """
    uv, programs = Path(sys.executable).with_name("uv"), scratch / "venv" / "bin"
    subprocess.run(
        [uv, "venv", "--quiet", "--python", sys.executable, scratch / "venv"], check=True
    )
    pip = programs / "pip"
    pip.write_text(f'#!/bin/sh\nexec {uv} pip "$@" --quiet --python {programs}/python\n')
    pip.chmod(0o755)
    env = clean_environment(
        PATH=f"{programs}:{os.environ['PATH']}",
        SLUICE_UP_PORT=" ".join(f"{name}=0" for name in (*PORTS, "maintain")),
    )
    install, up = commands.splitlines()
    named = install.replace("/path/to/checkout[up]", f"{DISTRIBUTION}[up] @ file://{wheel}")
    subprocess.run(["bash", "-e", "-c", named], cwd=folder, env=env, check=True, timeout=INSTALL_S)
    assert list(folder.iterdir()) == []
    with (folder / "up.err").open("wb") as errors:
        process = subprocess.Popen(
            ["bash", "-e", "-c", f"exec {up}"], cwd=folder, env=env, stdout=errors, stderr=errors
        )
    state, end_s = folder / ".sluice-up" / "up.json", time.monotonic() + START_S
    try:
        while not state.exists():
            assert process.poll() is None, (folder / "up.err").read_text()
            assert time.monotonic() < end_s, (folder / "up.err").read_text()
            time.sleep(0.1)
        yield LocalDeployment(folder, process, json.loads(state.read_text()), programs)
    finally:
        stop_deployment(process)
