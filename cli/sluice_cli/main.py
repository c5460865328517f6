"""The `sluice` command: its entry point, which imports only what a command line needs."""

import gc
import os
import sys
from io import TextIOWrapper
from typing import Final, NoReturn

from sluice_cli.shell.commands import format_help

_HELP: Final = ("--help", "-h", "help")
_BAD_USAGE: Final = 2
_INTERRUPTED: Final = 130
_PIPE_CLOSED: Final = 141
"""The exit code of a program that SIGPIPE ended, in shells."""

# numpy starts a thread for each further core, which spins for some 60 ms, and no command multiplies
# matrices. Processes that a command starts inherit the setting.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Modules live as long as the process. With the default of 700 allocations, a start spent a tenth of
# its processor time in collections that found nothing.
gc.set_threshold(20_000)


def main() -> NoReturn:
    """Run the command line and exit with its exit code."""
    # Nothing that is imported becomes garbage. `run_command` enables collections again.
    gc.disable()
    _open_standard_files()
    if isinstance(sys.stdout, TextIOWrapper):
        # A locale without UTF-8 cannot print every record, and UTF-8 not every name of a file.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has what it wants, for example `head`
        _discard_output()
        code = _PIPE_CLOSED
    except KeyboardInterrupt:  # while the command is imported
        code = _INTERRUPTED
    except SystemExit as ended:
        # rich ends the process with 1, the code of a command that found a problem.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        code = _PIPE_CLOSED
    except OSError as error:  # the disk of the output is full
        from sluice_cli.shell.output import describe_os_error, fail  # noqa: PLC0415 - rarely needed

        _discard_output()
        fail(describe_os_error(error))
        code = _BAD_USAGE
    sys.exit(code)


def _open_standard_files() -> None:
    """Open what the caller closed, as in `sluice status >&-`; it is discarded.

    Otherwise the next file that is opened, for example one of a store, gets the number of standard
    output, and what libraries and child processes print is written to that file.
    """
    for number, mode in ((0, "r"), (1, "w"), (2, "w")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)  # noqa: FBT003 - for child processes, as usual
            name = ("stdin", "stdout", "stderr")[number]
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _discard_output() -> None:
    """Discard the rest: the interpreter would write it at its end, and report the error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(tokens: list[str]) -> int:
    """Run one command line.

    Returns:
        The exit code: 0 done, 1 a problem was found, 2 bad usage, 3 the store is unreachable.
    """
    if not tokens or tokens[0] in _HELP:
        sys.stdout.write(format_help())
        return 0
    from sluice_cli.shell.dispatch import run_command  # noqa: PLC0415 - not needed for the help

    return run_command(tokens)
