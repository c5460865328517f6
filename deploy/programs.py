"""Programs that the tools in this folder start."""

import shutil
import sys
from pathlib import Path

from sluice_protocol.errors import BadUsage


def find_program(name: str) -> str:
    """Return the path of a program, from the environment of this Python or from `PATH`."""
    installed = Path(sys.executable).with_name(name)
    found = str(installed) if installed.exists() else shutil.which(name)
    if found is None:
        raise BadUsage(f"missing program: run `make setup` or install it, program=`{name}`")
    return found
