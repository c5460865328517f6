"""Run one command line, and turn errors into exit codes and one line.

The line about a missing package names the extra that installs it.
"""

import gc
import resource
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Final

from sluice_cli.shell.output import describe_os_error, describe_with_code, fail
from sluice_cli.shell.settings import read_file, refuse_unknown_command, refuse_unknown_variables
from sluice_protocol.errors import BadUsage, ExitCode, SluiceError

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


_LOG_LATER: Final = frozenset({"query", "fields", "metrics"})
"""Commands that log only where they open a store, which they often need not."""
_HELP_FLAGS: Final = frozenset({"--help", "-h"})
QUERY_ADDRESS_BYTES: Final = 2_816 << 20
"""Address space of a query: the libraries of the lake and threads map about 1.7 GiB, and the engine
uses up to 1 GiB. With less, native code of these libraries ends the process with a traceback."""


def run_command(tokens: list[str]) -> int:
    """Run one command line that names a command.

    Returns:
        The exit code: 0 done, 1 a problem was found, 2 bad usage, 3 the store is unreachable.

    Raises:
        ImportError: A module is missing that belongs to no extra.
        BrokenPipeError: The reader of the output has ended.
    """
    try:
        return _run(tokens)
    except SluiceError as error:
        fail(describe_with_code(error))
        return error.exit_code.value
    except BrokenPipeError:
        raise
    except OSError as error:  # a file of this machine; those of a store are errors of sluice
        fail(describe_os_error(error))
        return ExitCode.BAD_USAGE.value
    except ImportError as error:
        message = describe_missing(error, tokens[0])
        if message is None:
            raise
        fail(message)
        return ExitCode.BAD_USAGE.value
    except MemoryError:
        fail(f"`sluice {tokens[0]}` needs more memory than this process may use: raise its limit")
        return ExitCode.BAD_USAGE.value
    except KeyboardInterrupt:
        return 130


def _require_address_space(tokens: list[str]) -> None:
    """Refuse a query in a process whose address space is too small."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    is_query = tokens[0] in {"query", "sql"} and _HELP_FLAGS.isdisjoint(tokens)
    if is_query and limit != resource.RLIM_INFINITY and limit < QUERY_ADDRESS_BYTES:
        raise BadUsage(
            "a query needs more address space than this process may use: raise `ulimit -v` or"
            " bound the memory of a control group instead,"
            f" limit_bytes=`{limit}`, least_bytes=`{QUERY_ADDRESS_BYTES}`"
        )


def _run(tokens: list[str]) -> int:
    if tokens == ["--version"]:
        return _print_version()
    if not tokens[0].startswith("-"):
        refuse_unknown_command(tokens[0])
    elif tokens[0] != "--version":
        raise BadUsage(
            "an option precedes the command: write it after it, as in `sluice status --json`,"
            f" option=`{tokens[0]}`"
        )
    _require_address_space(tokens)
    if _HELP_FLAGS.isdisjoint(tokens) and tokens[0] not in _LOG_LATER:
        # Before the modules of a command: if they import structlog first, it imports all of rich.
        import_module("sluice_cli.shell.logs")
    from sluice_cli.shell.application import parse_command  # noqa: PLC0415 - imports the library

    run = parse_command(tokens)
    if run is None:
        return ExitCode.DONE.value
    if not gc.isenabled():
        gc.freeze()  # no later collection searches the modules
        gc.enable()
    if tokens[0] not in _LOG_LATER:
        from sluice_cli.shell.logs import log_to_stderr  # noqa: PLC0415 - takes 0.05 s, and help logs nothing

        log_to_stderr()
    return run()


def _print_version() -> int:
    from sluice_protocol.distribution import read_version  # noqa: PLC0415 - few need it

    read_file()  # the settings are checked for every command line except that of the help
    refuse_unknown_variables()
    sys.stdout.write(read_version() + "\n")
    return ExitCode.DONE.value
