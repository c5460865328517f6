"""Settings from `sluice.toml`, the `SLUICE_*` environment and flags; the later source wins.

The file is `sluice.toml` in the working directory, or the path in `SLUICE_CONFIG`. A top-level
`store` applies to every command. A table with the name of a command contains its options:

    store = "s3://bucket/prefix"
    [gateway]
    listen = "0.0.0.0:8080"

An unknown key is an error. The environment variable of that option is `SLUICE_GATEWAY_LISTEN`.
"""

import os
import tomllib
from pathlib import Path
from typing import Any, Final

from cyclopts import App, ArgumentCollection
from cyclopts import config as providers

from sluice_cli.commands import COMMANDS
from sluice_protocol.errors import BadUsage

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
        from difflib import get_close_matches  # noqa: PLC0415 - only for an error

        near = get_close_matches(command, COMMANDS, 1, cutoff=0)[0]
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
        providers.Dict(merged, source=self._source)(app, commands, arguments)


def _subcommands(app: App, commands: tuple[str, ...]) -> frozenset[str]:
    """Return the subcommands of the running command; `app` is that command or the root."""
    here = app
    for name in commands:
        if name in here:
            here = here[name]
    return frozenset(name for name in here if not name.startswith("-"))
