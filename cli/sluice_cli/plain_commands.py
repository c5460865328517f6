"""Commands whose plain command lines are read without the command-line library (ADR 44)."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from sluice_cli.environment import given_variables
from sluice_cli.existing_directory import EXISTING_STORE, STORE_DEFAULT, ExistingDirectory
from sluice_cli.plain_options import read_plain
from sluice_cli.settings_file import SHARED_KEYS, read_file

_MODULES: Final[Mapping[tuple[str, ...], str]] = {
    ("agent", "run"): "sluice_cli.agent_run",
    ("gateway",): "sluice_cli.gateway_run",
    ("reconciler",): "sluice_cli.reconciler_run",
}
"""The module of each command; its `PLAIN` describes the command."""
_SHARED_VARIABLES: Final = {"store": "SLUICE_STORE"}
"""Variables of options of several commands; they have precedence over those of one command."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlainOption:
    """An option that is no field of the command's settings.

    Attributes:
        kind: Its type.
        default: Its value if it is not set.
        directory: Which directory it must name.
    """

    kind: object
    default: object
    directory: ExistingDirectory | None = None


STORE: Final = PlainOption(kind=str, default=STORE_DEFAULT, directory=EXISTING_STORE)
FLAG: Final = PlainOption(kind=bool, default=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlainCommand:
    """The options of a command, and the function that it calls.

    Attributes:
        settings: The dataclass whose fields are options.
        options: The other options, by the arguments that receive them.
        run: Runs the command with `settings` and the arguments, and returns the exit code.
    """

    settings: type[Any]
    options: Mapping[str, PlainOption]
    run: Callable[..., int]

    @property
    def kinds(self) -> dict[str, object]:
        """Return the type of each option."""
        fields = {field.name: field.type for field in dataclasses.fields(self.settings)}
        return fields | {name: option.kind for name, option in self.options.items()}

    def arguments(self, values: Mapping[str, object]) -> dict[str, object] | None:
        """Return the arguments for `run`, or None if a required value is missing.

        Raises:
            BadUsage: A value is out of range.
        """
        fields = dataclasses.fields(self.settings)
        if any(_is_required(field) and field.name not in values for field in fields):
            return None
        of_settings = {name: values[name] for name in values if name not in self.options}
        others = {name: values.get(name, one.default) for name, one in self.options.items()}
        return {**others, "settings": self.settings(**of_settings)}


def read_command(tokens: list[str]) -> Callable[[], int] | None:
    """Return what runs a command line, or None if the library has to parse it.

    Raises:
        BadUsage: The settings file is wrong, a value is out of range, or a directory is missing.
    """
    path = next((path for path in _MODULES if tuple(tokens[: len(path)]) == path), None)
    if path is None:
        return None
    command: PlainCommand = import_module(_MODULES[path]).PLAIN
    arguments = read_arguments(command, path, tokens[len(path) :])
    if arguments is None:
        return None
    for name, option in command.options.items():
        if option.directory is not None:
            option.directory.check(arguments[name])
    return lambda: command.run(**arguments)


def read_arguments(
    command: PlainCommand, path: tuple[str, ...], tokens: list[str]
) -> dict[str, object] | None:
    """Return the arguments of a plain command line, or None if the library has to parse it.

    Args:
        command: The command.
        path: Its name, with that of the subcommand.
        tokens: The words behind the name.

    Raises:
        BadUsage: The settings file is wrong, or a value is out of range.
    """
    kinds = command.kinds
    variables = given_variables(path, kinds)
    table = _table_of(path, kinds, read_file()[1])
    if variables is None or table is None:
        return None
    for option, name in _SHARED_VARIABLES.items():
        if option in kinds and name in os.environ:
            variables[option] = os.environ[name]
    values = read_plain(kinds, tokens=tokens, variables=variables, table=table)
    return None if values is None else command.arguments(values)


def _table_of(
    path: tuple[str, ...], kinds: Mapping[str, object], values: Mapping[str, object]
) -> dict[str, object] | None:
    """Return the command's keys of the settings file; None if the file has more of the command."""
    section: object = {path[0]: values.get(path[0], {})}
    for name in path:
        if not isinstance(section, dict) or section.keys() - {name}:
            return None
        section = section.get(name, {})
    shared = {key: values[key] for key in SHARED_KEYS if key in values and key in kinds}
    return {**shared, **section} if isinstance(section, dict) else None


def _is_required(field: "dataclasses.Field[object]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
