"""Settings from `sluice.toml`, the `SLUICE_*` environment and flags; the later source wins.

The file is `sluice.toml` in the working directory, or the path in `SLUICE_CONFIG`. A top-level
`store` applies to every command. A table with the name of a command contains its options:

    store = "s3://bucket/prefix"
    [gateway]
    listen = "0.0.0.0:8080"

An unknown key is an error. The environment variable of that option is `SLUICE_GATEWAY_LISTEN`.
"""

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from cyclopts import App, Argument, ArgumentCollection, CycloptsError
from cyclopts import config as providers

from sluice_cli.commands import COMMANDS
from sluice_cli.options import Json
from sluice_cli.output import emit
from sluice_protocol.errors import BadUsage

if TYPE_CHECKING:
    from rich.console import Console

app = App(name="config", help="Show each setting and its source.")

FILE_DEFAULT: Final = "sluice.toml"
SHARED_KEYS: Final = frozenset({"store"})


def read_file() -> tuple[Path, dict[str, Any]]:
    """Read the settings file; a missing default file is empty.

    Raises:
        BadUsage: The file that `SLUICE_CONFIG` names does not exist, or the file is not TOML.
    """
    named = os.environ.get("SLUICE_CONFIG")
    path = Path(named or FILE_DEFAULT)
    if not path.exists():
        if named:
            raise BadUsage(
                f"settings file not found: set SLUICE_CONFIG to an existing file, path=`{path}`"
            )
        return path, {}
    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadUsage(f"settings file is not TOML: {error}, path=`{path}`") from error


def refuse_unknown(path: Path, values: dict[str, Any], commands: frozenset[str]) -> None:
    """Refuse a top-level key that is neither shared nor a command.

    Raises:
        BadUsage: The file contains such a key; the error lists the known keys.
    """
    unknown = sorted(set(values) - SHARED_KEYS - commands)
    if unknown:
        known = ", ".join(sorted(SHARED_KEYS | commands))
        raise BadUsage(
            f"unknown key in settings: use one of {known}, key=`{unknown[0]}`, path=`{path}`"
        )


def refuse_unknown_command(command: str) -> None:
    """Refuse the name of a command that does not exist.

    Raises:
        BadUsage: There is no such command; the error names the nearest one.
    """
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, 1, cutoff=0)[0]
        raise BadUsage(f"unknown command: the nearest known name is {near}, command=`{command}`")


class FromFile:
    """Fills options that neither a flag nor the environment set, from the settings file."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self._source = str(path)
        self._values = values

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Add the file's values to the options of the running command."""
        section: Any = self._values
        for name in commands:
            section = section.get(name, {}) if isinstance(section, dict) else {}
        if not isinstance(section, dict):
            raise BadUsage(f"settings of a command must be a table, key=`{'.'.join(commands)}`")
        takes_store = any("--store" in argument.names for argument in arguments)
        shared = {key: self._values[key] for key in SHARED_KEYS & set(self._values) if takes_store}
        own = {key: value for key, value in section.items() if not isinstance(value, dict)}
        merged = {**shared, **own} if commands else shared
        # Nest the values under the command's name: in a flat mapping, cyclopts drops every option
        # that has the name of a command, such as `gateway` of `sluice agent run`.
        for name in reversed(commands):
            merged = {name: merged}
        providers.Dict(merged, source=self._source)(app, commands, arguments)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One option of one command; `origin` is `default`, a file's path or a variable's name."""

    command: str
    option: str
    value: str
    origin: str


@app.command
def show(command: str | None = None, *, json: Json = False) -> None:
    """Print every setting of every command, or of one command.

    Args:
        command: Only this command, for example `gateway`.
        json: Print JSON for programs.
    """
    # The application mounts this module.
    from sluice_cli.application import build  # noqa: PLC0415
    from sluice_cli.environment import check_variables  # noqa: PLC0415

    if command is not None:
        refuse_unknown_command(command)
    root = build()
    names = [command] if command else [name for name in COMMANDS if name != "config"]
    check_variables(root, names)
    try:
        settings = [setting for name in names for setting in _settings_of(root, (name,))]
    except CycloptsError as error:
        # cyclopts prints only errors that it raised while parsing.
        text = str(error).removeprefix(type(error).__name__)
        raise BadUsage(" ".join(text.split())) from error
    emit(settings, as_json=json, human=lambda console: _draw(console, settings))


def _settings_of(root: App, path: tuple[str, ...]) -> Iterator[Setting]:
    """Yield the settings of a command and of its subcommands."""
    commands, _, _ = root.parse_commands(list(path))
    here = root
    for name in path:
        here = here[name]
    below = [name for name in here if not name.startswith("-")]
    for name in below:
        yield from _settings_of(root, (*path, name))
    if here.default_command is not None:
        arguments = here.assemble_argument_collection(parse_docstring=False)
        for provider in root.config:
            provider(root, tuple(commands), arguments)
        for argument in arguments:
            if argument.parse and argument.names and argument.names[0].startswith("--"):
                yield _setting(" ".join(path), argument)


def _setting(command: str, argument: Argument) -> Setting:
    tokens = argument.tokens
    named = [name for name in argument.parameter.env_var or () if name in os.environ]
    if named:
        value, origin = os.environ[named[0]], named[0]
    elif tokens:
        value = " ".join(str(token.value or token.implicit_value) for token in tokens)
        origin = tokens[0].source
        if origin == "env":
            origin = str(tokens[0].keyword)
    else:
        value, origin = _default(argument), "default"
    return Setting(command=command, option=argument.names[0], value=value, origin=origin)


def _default(argument: Argument) -> str:
    default = argument.field_info.default
    if default is argument.field_info.empty or default is dataclasses.MISSING:
        return ""
    return str(default)


def _draw(console: "Console", settings: list[Setting]) -> None:
    from rich.table import Table  # noqa: PLC0415 - only for this command

    table = Table("command", "option", "value", "from", box=None, pad_edge=False)
    for setting in settings:
        table.add_row(setting.command, setting.option, setting.value, setting.origin)
    console.print(table)
