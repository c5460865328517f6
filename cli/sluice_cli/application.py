"""The command-line application: load one command, run it, turn errors into exit codes."""

import inspect
from typing import get_args

from cyclopts import App, CycloptsError
from cyclopts.config import Env

from sluice_cli.commands import COMMANDS, SUMMARY
from sluice_cli.config import FromFile, read_file, refuse_unknown, refuse_unknown_command
from sluice_cli.environment import refuse_unknown_variables
from sluice_cli.extras import describe_missing
from sluice_cli.logs import configure_logs
from sluice_cli.options import ExistingDirectory
from sluice_cli.output import describe_error, fail
from sluice_protocol.errors import ExitCode, SluiceError


def build() -> App:
    """Return the command-line application.

    Raises:
        BadUsage: The settings file cannot be read or contains an unknown key.
    """
    path, values = read_file()
    refuse_unknown(path, values, frozenset(COMMANDS))
    app = App(
        name="sluice",
        help=SUMMARY,
        version=_read_version,
        config=(Env("SLUICE_"), FromFile(path, values)),
        result_action="return_value",
    )
    for name, (place, summary) in COMMANDS.items():
        app.command(place, name=name, help=summary)
    return app


def _read_version() -> str:
    from importlib.metadata import version  # noqa: PLC0415 - only for `--version`

    return version("sluice")


def run_command(tokens: list[str]) -> int:
    """Run one command line that names a command.

    Returns:
        The exit code: 0 done, 1 a problem was found, 2 bad usage, 3 the store is unreachable.

    Raises:
        ImportError: A module is missing that belongs to no extra.
    """
    configure_logs()
    try:
        return _run(tokens)
    except CycloptsError:  # cyclopts has already printed the error and the usage
        return ExitCode.BAD_USAGE.value
    except SluiceError as error:
        fail(describe_error(error))
        return error.exit_code.value
    except ImportError as error:
        message = describe_missing(error, tokens[0])
        if message is None:
            raise
        fail(message)
        return ExitCode.BAD_USAGE.value
    except KeyboardInterrupt:
        return 130


def _run(tokens: list[str]) -> int:
    if not tokens[0].startswith("-"):
        refuse_unknown_command(tokens[0])
    app = build()
    refuse_unknown_variables(app, tokens)
    command, bound, _ = app.parse_args(tokens, exit_on_error=False)
    # After parsing, so that a mistyped option is not reported as a missing store.
    _check_directories(bound)
    result = command(*bound.args, **bound.kwargs)
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _check_directories(bound: inspect.BoundArguments) -> None:
    for name, parameter in bound.signature.parameters.items():
        for rule in get_args(parameter.annotation):
            if isinstance(rule, ExistingDirectory):
                rule.check(bound.arguments.get(name, parameter.default))
