"""The command-line application: load one command, parse its options and run it."""

import inspect
from collections.abc import Callable
from typing import get_args

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Env

from sluice_cli.commands import COMMANDS, SUMMARY
from sluice_cli.config import FromFile, refuse_unknown_tables
from sluice_cli.environment import check_variables
from sluice_cli.existing_directory import ExistingDirectory
from sluice_cli.settings_file import read_file
from sluice_cli.usage_errors import usage_error


def build() -> App:
    """Return the command-line application.

    Raises:
        BadUsage: The settings file cannot be read or contains an unknown key.
    """
    app = App(
        name="sluice",
        help=SUMMARY,
        version=_lazy_version,
        config=(Env("SLUICE_"), FromFile(*read_file())),
        # The variable follows from the name, as `sluice --help` describes.
        default_parameter=Parameter(show_env_var=False),
        result_action="return_value",
    )
    for name, (place, summary) in COMMANDS.items():
        app.command(place, name=name, help=summary)
    return app


def _lazy_version() -> str:
    from sluice_cli.version import read_version  # noqa: PLC0415 - only for `--version`

    return read_version()


def parse_command(tokens: list[str]) -> Callable[[], int] | None:
    """Parse a command line.

    Returns:
        What runs the command, or None if the library has printed a help text or the version.

    Raises:
        BadUsage: The command line, a variable or the settings file is wrong.
    """
    app = build()
    command = tokens[0]
    loaded = [command] if command in COMMANDS and command != "config" else []
    check_settings(app, loaded)
    try:
        call, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise usage_error(error) from error
    # After parsing, so that a mistyped option is not reported as a missing store.
    _check_directories(bound)
    if isinstance(getattr(call, "__self__", None), App):
        call(*bound.args, **bound.kwargs)
        return None

    def run() -> int:
        result = call(*bound.args, **bound.kwargs)
        return result if isinstance(result, int) and not isinstance(result, bool) else 0

    return run


def check_settings(app: App, commands: list[str]) -> None:
    """Refuse settings that no command reads: variables, and keys of the settings file.

    Those of other commands than `commands` are not checked: that would import them.

    Raises:
        BadUsage: A name is unknown; the error names the nearest known one.
    """
    check_variables(app, commands)
    refuse_unknown_tables(app, commands, *read_file())


def _check_directories(bound: inspect.BoundArguments) -> None:
    for name, parameter in bound.signature.parameters.items():
        for rule in get_args(parameter.annotation):
            if isinstance(rule, ExistingDirectory):
                rule.check(bound.arguments.get(name, parameter.default))
