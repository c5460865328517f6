"""The `sluice` command: run one command line, and turn errors into exit codes and one line.

Only what a command line needs is imported. The line about a missing package names the extra that
installs it.
"""

import gc
import os
import resource
import sys
from collections.abc import Mapping
from importlib import import_module
from io import TextIOWrapper
from typing import Final, NoReturn

from sluice_cli.shell.commands import format_help

_HELP_FLAGS: Final = frozenset({"--help", "-h"})
_BAD_USAGE: Final = 2
_INTERRUPTED: Final = 130
_PIPE_CLOSED: Final = 141
"""The exit code of a program that SIGPIPE ended, in shells."""
_LOG_LATER: Final = frozenset({"query", "fields", "metrics"})
"""Commands that log only where they open a store, which they often need not."""
QUERY_ADDRESS_BYTES: Final = 2_816 << 20
"""Address space of a query: the libraries of the lake and threads map about 1.7 GiB, and the engine
uses up to 1 GiB. With less, native code of these libraries ends the process with a traceback."""
PACKAGE_EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "aioboto3": ("s3",),
    "aiobotocore": ("s3",),
    "boto3": ("s3",),
    "botocore": ("s3",),
    "delta": ("spark",),
    "deltalake": ("query", "spark"),
    "duckdb": ("query",),
    "cramjam": ("doors",),
    "google": ("doors",),
    "grpc": ("doors",),
    "msgpack": ("doors",),
    "opentelemetry": ("doors",),
    "pandas": ("spark",),
    "plotext": ("query",),
    "policy_sentry": ("policies",),
    "ptars": ("doors",),
    "pyarrow": ("query", "spark"),
    "pyspark": ("spark",),
    "pytz": ("query",),
    "uvloop": ("gateway",),
    "z3": ("policies",),
}
"""The extras of `pyproject.toml` that install each package."""

# numpy starts a thread for each further core, which spins for some 60 ms, and no command multiplies
# matrices. Processes that a command starts inherit the setting.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Modules live as long as the process. With the default of 700 allocations, a start spent a tenth of
# its processor time in collections that found nothing.
gc.set_threshold(20_000)


def main() -> NoReturn:
    """Run the command line and exit with its exit code."""
    # Nothing that is imported becomes garbage. `_run` enables collections again.
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
    except KeyboardInterrupt:
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

    Raises:
        ImportError: A module is missing that belongs to no extra.
        BrokenPipeError: The reader of the output has ended.
    """
    if not tokens or tokens[0] in {*_HELP_FLAGS, "help"}:
        sys.stdout.write(format_help())
        return 0
    # The help needs none of these.
    from sluice_cli.shell.output import describe_os_error, describe_with_code, fail  # noqa: PLC0415
    from sluice_protocol.errors import SluiceError  # noqa: PLC0415

    try:
        return _run(tokens)
    except SluiceError as error:
        fail(describe_with_code(error))
        return error.exit_code.value
    except BrokenPipeError:
        raise
    except OSError as error:  # a file of this machine; those of a store are errors of sluice
        fail(describe_os_error(error))
    except ImportError as error:
        message = describe_missing(error, tokens[0])
        if message is None:
            raise
        fail(message)
    except MemoryError:
        fail(f"`sluice {tokens[0]}` needs more memory than this process may use: raise its limit")
    return _BAD_USAGE


def _run(tokens: list[str]) -> int:
    # The help needs none of these.
    from sluice_cli.shell.settings import refuse_unknown_command  # noqa: PLC0415
    from sluice_protocol.errors import BadUsage  # noqa: PLC0415

    if tokens == ["--version"]:
        return _print_version()
    if not tokens[0].startswith("-"):
        refuse_unknown_command(tokens[0])
    elif tokens[0] != "--version":
        raise BadUsage(
            "an option precedes the command: write it after it, as in `sluice status --json`,"
            f" option=`{tokens[0]}`"
        )
    shows_help = not _HELP_FLAGS.isdisjoint(tokens)
    _require_address_space(is_query=tokens[0] in {"query", "sql"} and not shows_help)
    if not shows_help and tokens[0] not in _LOG_LATER:
        # Before the modules of a command: if they import structlog first, it imports all of rich.
        import_module("sluice_web.log_output")
    from sluice_cli.shell.application import parse_command  # noqa: PLC0415 - imports the library

    run = parse_command(tokens)
    if run is None:
        return 0
    if not gc.isenabled():
        gc.freeze()  # no later collection searches the modules
        gc.enable()
    if tokens[0] not in _LOG_LATER:
        from sluice_web.log_output import log_to_stderr  # noqa: PLC0415 - takes 0.05 s, and help logs nothing

        log_to_stderr()
    return run()


def _require_address_space(*, is_query: bool) -> None:
    """Refuse a query in a process whose address space is too small."""
    from sluice_protocol.errors import BadUsage  # noqa: PLC0415 - the help needs no errors

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if is_query and limit != resource.RLIM_INFINITY and limit < QUERY_ADDRESS_BYTES:
        raise BadUsage(
            "a query needs more address space than this process may use: raise `ulimit -v` or"
            " bound the memory of a control group instead,"
            f" limit_bytes=`{limit}`, least_bytes=`{QUERY_ADDRESS_BYTES}`"
        )


def _print_version() -> int:
    from sluice_cli.shell.settings import read_file, refuse_unknown_variables  # noqa: PLC0415
    from sluice_protocol.distribution import read_version  # noqa: PLC0415

    read_file()  # the settings are checked for every command line except that of the help
    refuse_unknown_variables()
    sys.stdout.write(read_version() + "\n")
    return 0


def describe_missing(error: ImportError, command: str) -> str | None:
    """Return one line that names the extra to install, or None for a package of no extra.

    `error` may be what another library raised because of the failed import. An extra with the name
    of the running command is preferred.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__
    package = "" if cause is None else (cause.name or "").partition(".")[0]
    extras = PACKAGE_EXTRAS.get(package)
    if extras is None:
        return None
    from sluice_protocol.distribution import describe_missing_package  # noqa: PLC0415 - an error

    extra = command if command in extras else extras[0]
    return f"{describe_missing_package(extra, package)}, command=`{command}`"
