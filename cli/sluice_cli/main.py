"""The `sluice` command: its entry point, which imports only what a command line needs."""

import os
import sys
from typing import NoReturn

from sluice_cli.commands import format_help

_HELP = ("--help", "-h")

# numpy starts a thread for each further core, which spins for some 60 ms, and no command multiplies
# matrices. Processes that a command starts inherit the setting.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main() -> NoReturn:
    """Run the command line and exit with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(tokens: list[str]) -> int:
    """Run one command line.

    Returns:
        The exit code: 0 done, 1 a problem was found, 2 bad usage, 3 the store is unreachable.
    """
    if not tokens or tokens[0] in _HELP:
        sys.stdout.write(format_help())
        return 0
    from sluice_cli.dispatch import run_command  # noqa: PLC0415 - not needed for the help

    return run_command(tokens)
