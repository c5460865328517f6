"""`sluice config show`: each setting's value and where it came from."""

import dataclasses
import os
from collections.abc import Iterator

import msgspec
from cyclopts import App, Argument
from rich.console import Console
from rich.table import Table

from sluice_cli.common import Json
from sluice_cli.output import emit

app = App(name="config", help="Show each setting and where it came from.")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One option of one command: its value, and `default`, a file's path or a variable's name."""

    command: str
    option: str
    value: str
    origin: str


@app.command
def show(command: str | None = None, *, json: Json = False) -> None:
    """Prints every setting of every command, or of one.

    Args:
        command: Only this command, `gateway` say.
        json: Print JSON for programs.
    """
    from sluice_cli.main import COMMANDS, build  # noqa: PLC0415 - main mounts this module

    root = build()
    names = [command] if command else [name for name in COMMANDS if name != "config"]
    settings = [setting for name in names for setting in _settings_of(root, (name,))]
    emit(settings, as_json=json, human=lambda console: _draw(console, settings))


def _settings_of(root: App, path: tuple[str, ...]) -> Iterator[Setting]:
    """Gives the settings of a command, or of each command below it."""
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


def _draw(console: Console, settings: list[Setting]) -> None:
    table = Table("command", "option", "value", "from", box=None, pad_edge=False)
    for setting in settings:
        table.add_row(setting.command, setting.option, setting.value, setting.origin)
    console.print(table)
