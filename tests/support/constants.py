"""Other values of constants: for settings in this process, or for a `sluice` command.

`python -m support.constants NAME=VALUE... -- COMMAND` runs a command in whose process constants
have other values; a name is `module:attribute`, and a value is JSON.
"""

import dataclasses
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

Settings = TypeVar("Settings")


def with_constants(kind: type[Settings], **values: object) -> type[Settings]:
    """Return a class of settings with other values of its constants."""
    unknown = [name for name in values if not hasattr(kind, name)]
    assert not unknown, f"no constants of {kind.__name__}: {unknown}"
    return type(kind.__name__, (kind,), {"__slots__": (), **values})


def settings_with(kind: type[Settings], **values: Any) -> Settings:
    """Return settings of which some values are constants."""
    options = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    constants = {name: value for name, value in values.items() if name not in options}
    rest = {name: value for name, value in values.items() if name in options}
    return (with_constants(kind, **constants) if constants else kind)(**rest)


def changed(settings: Settings, **values: Any) -> Settings:
    """Return a copy of settings with other values, of which some are constants."""
    names = (one.name for one in dataclasses.fields(settings))  # type: ignore[arg-type]
    kept = {name: getattr(settings, name) for name in names}
    return settings_with(type(settings), **{**kept, **values})


def command_with_flags(kind: type[object], flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words that run a `sluice` command, and the flags that are its options.

    A flag of a constant of the settings, such as `--head-timeout-s 1`, changes the constant.
    """
    options = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    changes, kept, words = [], [], list(flags)
    while words:
        flag = words.pop(0)
        name = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and name not in options and hasattr(kind, name):
            changes.append(f"{kind.__module__}:{kind.__name__}.{name}={words.pop(0)}")
        else:
            kept.append(flag)
    return command_with_constants(*changes), kept


def command_with_constants(*changes: str) -> list[str]:
    """Return the words with which a `sluice` command is run; its own words follow them."""
    return [sys.executable, str(Path(__file__)), *changes, "--"]


def main() -> None:
    end = sys.argv.index("--")
    for change in sys.argv[1:end]:
        name, _, value = change.partition("=")
        module, _, path = name.partition(":")
        *owners, attribute = path.split(".")
        place: object = importlib.import_module(module)
        for owner in owners:
            place = getattr(place, owner)
        assert hasattr(place, attribute), name
        is_option = dataclasses.is_dataclass(place) and attribute in {
            field.name for field in dataclasses.fields(place)
        }
        if is_option:
            place.__init__.__kwdefaults__[attribute] = json.loads(value)  # type: ignore[misc]
        else:
            setattr(place, attribute, json.loads(value))
    sys.argv[:] = ["sluice", *sys.argv[end + 1 :]]
    from sluice_cli.main import main as run_command  # noqa: PLC0415 - after the changes

    run_command()


if __name__ == "__main__":
    main()
