"""`sluice config show`: each setting and its source."""

import asyncio
import dataclasses
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec
from cyclopts import App, Argument, CycloptsError

from sluice_cli.deployment.redaction import is_secret_option, remove_secrets
from sluice_cli.shell.application import build_application, refuse_unknown_settings
from sluice_cli.shell.commands import COMMANDS
from sluice_cli.shell.options import Json
from sluice_cli.shell.output import emit, print_columns
from sluice_cli.shell.settings import refuse_unknown_command
from sluice_cli.shell.usage_errors import usage_error
from sluice_protocol.errors import NoStore, SluiceError
from sluice_protocol.expiry import describe_keep

if TYPE_CHECKING:
    from rich.console import Console

HIDDEN_VALUE: Final = "(secret)"
STORE_S: Final = 5.0
"""Time to read the decisions in the store, seconds: the settings are shown without it too."""
_DECIDES: Final = "retention set"

app = App(name="config", help="Show each setting and its source.")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One option of one command; `origin` is `default`, a file's path or a variable's name.

    A secret `value` is replaced by `HIDDEN_VALUE`.
    """

    command: str
    option: str
    value: str
    origin: str


@app.command
def show(command: str | None = None, *, json: Json = False) -> None:
    """Print every setting of every command, or of one command.

    Retention is a decision that the store records, so its values are read from there.

    Args:
        command: Only this command, for example `gateway`.
        json: Print JSON for programs.
    """
    if command is not None:
        refuse_unknown_command(command)
    settings = _with_decision(list_settings(command))
    emit(settings, as_json=json, human=lambda console: _draw(console, settings))


def list_settings(command: str | None = None) -> list[Setting]:
    """Return every setting of every command, or of one command."""
    root = build_application()
    names = [command] if command else [name for name in COMMANDS if name != "config"]
    refuse_unknown_settings(root, names)
    try:
        return [setting for name in names for setting in _settings_of(root, (name,))]
    except CycloptsError as error:
        raise usage_error(error) from error


def _with_decision(settings: list[Setting]) -> list[Setting]:
    """Return the settings with the recorded decision as the values of `retention set`."""
    shown = {(one.command, one.option): one.value for one in settings}
    url = shown.get((_DECIDES, "--store"))
    if url is None:
        return settings
    from sluice_cli.retention import (  # noqa: PLC0415 - quick help
        describe_expiring,
        describe_rule,
        read_decision,
    )

    try:
        state, audit = asyncio.run(asyncio.wait_for(read_decision(url), STORE_S))
    except NoStore:
        return settings
    except (TimeoutError, SluiceError) as error:
        values = {"--raw": "", "--tables": ""}
        origin = f"not read: {str(error) or 'the store is unreachable'}"
    else:
        rule = state.rule
        if rule is None:
            return settings
        values = {
            "--raw": describe_keep(rule.raw_keep_s),
            "--tables": describe_keep(rule.tables_keep_s),
        }
        origin = "; ".join((describe_rule(rule), *describe_expiring(rule, audit)))
    return [
        msgspec.structs.replace(one, value=values[one.option], origin=origin)
        if one.command == _DECIDES and one.option in values
        else one
        for one in settings
    ]


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
            # As cyclopts calls it: the root would drop options with the name of a command.
            provider(here, tuple(commands), arguments)
        for argument in arguments:
            if argument.parse and argument.names[:1] and _is_option(argument):
                yield _setting(" ".join(path), argument)


def _is_option(argument: Argument) -> bool:
    """Return False for the name of a group, whose options follow."""
    return argument.names[0].startswith("--") and not argument.children


def _setting(command: str, argument: Argument) -> Setting:
    tokens = argument.tokens
    named = [name for name in argument.parameter.env_var or () if name in os.environ]
    if named:
        value, origin = os.environ[named[0]], named[0]
    elif tokens:
        value = " ".join(
            "".join(f"{key}=" for key in token.keys) + str(token.value or token.implicit_value)
            for token in tokens
        )
        origin = tokens[0].source
        if origin == "env":
            origin = str(tokens[0].keyword)
    else:
        value, origin = _default(argument), "default"
    if origin != "default":
        value = (
            HIDDEN_VALUE if value and is_secret_option(argument.names[0]) else remove_secrets(value)
        )
    return Setting(command=command, option=argument.names[0], value=value, origin=origin)


def _default(argument: Argument) -> str:
    default = argument.field_info.default
    if default is argument.field_info.empty or default is dataclasses.MISSING:
        return ""
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return str(default)


def _draw(console: "Console", settings: list[Setting]) -> None:
    rows = [("command", "option", "value", "from")]
    rows += [(one.command, one.option, one.value, one.origin) for one in settings]
    print_columns(console, rows)
