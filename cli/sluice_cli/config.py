"""Settings: a TOML file, then the `SLUICE_*` environment, then flags; the later wins.

The file is `sluice.toml` in the working directory, or what `SLUICE_CONFIG` names. `store` at its
top holds for every command; a table named like a command holds that command's options:

    store = "s3://bucket/prefix"
    [gateway]
    listen = "0.0.0.0:8080"

An unknown key is an error. In the environment the same option is `SLUICE_GATEWAY_LISTEN`.
"""

import os
import tomllib
from pathlib import Path
from typing import Any, Final

from cyclopts import App, ArgumentCollection
from cyclopts import config as providers

from sluice_protocol.errors import BadUsage

FILE_DEFAULT: Final = "sluice.toml"
SHARED_KEYS: Final = frozenset({"store"})


def read_file() -> tuple[Path, dict[str, Any]]:
    """Reads the settings file; a default file that is not there is empty.

    Raises:
        BadUsage: The file that `SLUICE_CONFIG` names is missing, or it is not TOML.
    """
    named = os.environ.get("SLUICE_CONFIG")
    path = Path(named or FILE_DEFAULT)
    if not path.exists():
        if named:
            raise BadUsage(f"settings file not found: set SLUICE_CONFIG, path=`{path}`")
        return path, {}
    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadUsage(f"settings file is not TOML: {error}, path=`{path}`") from error


def refuse_unknown(path: Path, values: dict[str, Any], commands: frozenset[str]) -> None:
    """Refuses a top-level key that is neither shared nor a command.

    Raises:
        BadUsage: Such a key stands in the file; the error lists what is known.
    """
    unknown = sorted(set(values) - SHARED_KEYS - commands)
    if unknown:
        known = ", ".join(sorted(SHARED_KEYS | commands))
        raise BadUsage(
            f"unknown key in settings: use one of {known}, key=`{unknown[0]}`, path=`{path}`"
        )


class FromFile:
    """Fills the options that neither flag nor environment gave from the settings file."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        """Takes the file's path, for messages, and its content."""
        self._source = str(path)
        self._values = values

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Adds the file's values to the options of the command that runs."""
        section: Any = self._values
        for name in commands:
            section = section.get(name, {}) if isinstance(section, dict) else {}
        if not isinstance(section, dict):
            raise BadUsage(f"settings of a command are a table, key=`{'.'.join(commands)}`")
        takes_store = any("--store" in argument.names for argument in arguments)
        shared = {key: self._values[key] for key in SHARED_KEYS & set(self._values) if takes_store}
        own = {key: value for key, value in section.items() if not isinstance(value, dict)}
        merged = {**shared, **own} if commands else shared
        # Under the command's own keys: flat, cyclopts drops every option that is named like some
        # command, as `gateway` of `sluice agent run` is.
        for name in reversed(commands):
            merged = {name: merged}
        providers.Dict(merged, source=self._source)(app, commands, arguments)
