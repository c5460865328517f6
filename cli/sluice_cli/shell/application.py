"""The command-line application: load one command, and read its options.

A flag has precedence over an environment variable, and a variable over the settings file. The
variable of the option `listen` of `sluice gateway` is `SLUICE_GATEWAY_LISTEN`.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin

from cyclopts import (
    App,
    ArgumentCollection,
    CoercionError,
    CycloptsError,
    Parameter,
    UnknownOptionError,
)
from cyclopts import config as providers
from cyclopts.config import Env

from sluice_cli.shell.commands import COMMANDS, SUMMARY
from sluice_cli.shell.options import ExistingDirectory
from sluice_cli.shell.settings import SHARED_KEYS, check_variables, read_file, unknown_key
from sluice_protocol.errors import BadUsage


def build_application() -> App:
    """Return the command-line application."""
    app = App(
        name="sluice",
        help=SUMMARY,
        version=_read_version,
        config=(Env("SLUICE_"), FromFile(*read_file())),
        # The variable follows from the name, as `sluice --help` describes.
        default_parameter=Parameter(show_env_var=False),
        result_action="return_value",
    )
    for name, (place, summary) in COMMANDS.items():
        app.command(place, name=name, help=summary)
    return app


def _read_version() -> str:
    from sluice_protocol.distribution import read_version  # noqa: PLC0415 - few command lines need it

    return read_version()


def parse_command(tokens: list[str]) -> Callable[[], int] | None:
    """Parse a command line; return the function that runs the command.

    Return None if the library has printed a help text or the version.
    """
    app = build_application()
    command = tokens[0]
    loaded = [command] if command in COMMANDS and command != "config" else []
    refuse_unknown_settings(app, loaded)
    try:
        call, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        from sluice_cli.shell.usage_errors import usage_error  # noqa: PLC0415 - only for an error

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


def refuse_unknown_settings(app: App, commands: list[str]) -> None:
    """Refuse settings that no command reads: variables, and keys of the settings file.

    The error names the nearest known name. Settings of other commands than `commands` are not
    checked: that would import them.
    """
    check_variables(app, commands)
    path, values = read_file()
    for command in commands:
        if command in values:
            _refuse_unknown(app[command], (command,), path, values[command])


def _check_directories(bound: inspect.BoundArguments) -> None:
    for name, parameter in bound.signature.parameters.items():
        for rule in get_args(parameter.annotation):
            if isinstance(rule, ExistingDirectory):
                found = None if name in bound.arguments else rule.find()
                if found is not None:
                    bound.arguments[name] = found
                store = bound.arguments.get(name, parameter.default)
                rule.check(store)
                if found is None:  # else `find` has printed it
                    rule.show(store)


class FromFile:
    """Fills options that neither a flag nor the environment set, from the settings file."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self._path = path
        self._values = values

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Add the file's values to the unset options of the running command."""
        section: Any = self._values
        for name in commands:
            section = section.get(name, {}) if isinstance(section, dict) else {}
        if not isinstance(section, dict):
            raise BadUsage(
                f"settings of a command must be a table: write [{'.'.join(commands)}],"
                f" key=`{'.'.join(commands)}`, path=`{self._path}`"
            )
        options = {name for argument in arguments for name in argument.names}
        shared = {
            key: self._values[key]
            for key in SHARED_KEYS & set(self._values)
            if f"--{key.replace('_', '-')}" in options
        }
        # A table is either that of a subcommand or a group of options, as `[maintain.compact]`.
        below = _subcommands(app, commands)
        own = {
            key: value
            for key, value in section.items()
            if not (isinstance(value, dict) and key in below)
        }
        merged = {**shared, **own} if commands else shared
        # Nest the values under the command's name: in a flat mapping, cyclopts drops every option
        # that has the name of a command, such as `gateway` of `sluice agent run`.
        for name in reversed(commands):
            merged = {name: merged}
        try:
            providers.Dict(merged, source=str(self._path))(app, commands, arguments)
        except UnknownOptionError as error:
            known = [
                _key_of(commands, name)
                for argument in arguments
                for name in argument.names
                if argument.parse and name.startswith("--")
            ]
            key = (error.token.keyword or "").strip("[]").replace("][", ".")
            raise unknown_key(".".join((*commands, key)), known, self._path) from error
        _refuse_values_of_groups(arguments)
        _refuse_fractions(arguments)


def _refuse_fractions(arguments: ArgumentCollection) -> None:
    """Refuse a fraction for a whole number: the library would round it."""
    for argument in arguments:
        if int in (argument.hint, *get_args(argument.hint)):
            for token in argument.tokens:
                if "." in token.value:
                    raise CoercionError(token=token, argument=argument, target_type=int)


def _refuse_values_of_groups(arguments: ArgumentCollection) -> None:
    """Refuse a value of a group of options that is no JSON object.

    The library would set the first option of the group.
    """
    for group in arguments:
        if not group.children and get_origin(group.hint) is not dict:
            continue
        for token in group.tokens:
            if not token.keys and not token.value.startswith("{"):
                name = group.names[0]
                raise BadUsage(
                    f"options have no value together: set one of them, `{name}.NAME`,"
                    f" option=`{name}`, value=`{token.value}`, source=`{token.source or 'cli'}`"
                )


def _refuse_unknown(app: App, commands: tuple[str, ...], path: Path, section: object) -> None:
    """Refuse a key that names no subcommand, in the table of a command with subcommands only."""
    if app.default_command is not None or not isinstance(section, dict):
        return
    below = _subcommands(app, ())
    for key, value in section.items():
        if key not in below:
            known = [".".join((*commands, name)) for name in below]
            raise unknown_key(".".join((*commands, key)), known, path)
        _refuse_unknown(app[key], (*commands, key), path, value)


def _key_of(commands: tuple[str, ...], option: str) -> str:
    """Return the settings file's key of an option `--name` of a command."""
    return ".".join((*commands, option.removeprefix("--").replace("-", "_")))


def _subcommands(app: App, commands: tuple[str, ...]) -> frozenset[str]:
    """Return the subcommands of the running command; `app` is that command or the root."""
    here = app
    for name in commands:
        if name in here:
            here = here[name]
    return frozenset(name for name in here if not name.startswith("-"))
