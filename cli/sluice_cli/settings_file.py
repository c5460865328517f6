"""The settings file: read it, and refuse names that no command has.

The file is `sluice.toml` in the working directory, or the path in `SLUICE_CONFIG`. A top-level
`store` applies to every command, and a top-level `key_file`, the auditor's key, to those of `audit`
and `gc`. A table with the name of a command contains its options:

    store = "s3://bucket/prefix"
    [gateway]
    listen = "0.0.0.0:8080"

An unknown key is an error.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from sluice_cli.commands import COMMANDS
from sluice_protocol.errors import BadUsage

FILE_DEFAULT: Final = "sluice.toml"
SHARED_KEYS: Final = frozenset({"store", "key_file"})
"""Top-level keys, for each command with an option of that name."""
REFERENCE: Final = "docs/reference/commands.md"
"""The page of all commands and options."""


def read_file() -> tuple[Path, dict[str, Any]]:
    """Read the settings file; a missing default file is empty.

    Raises:
        BadUsage: The file that `SLUICE_CONFIG` names does not exist, the file is not TOML, or it
            has a top-level key that is neither shared nor a command.
    """
    named = os.environ.get("SLUICE_CONFIG")
    path = Path(named or FILE_DEFAULT)
    if not path.exists():
        if named:
            raise BadUsage(
                f"settings file not found: set SLUICE_CONFIG to an existing file, path=`{path}`"
            )
        return path, {}
    import tomllib  # noqa: PLC0415 - most machines have no settings file

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadUsage(
            f"cannot read settings file: {error.strerror}; make it readable for this user,"
            f" path=`{path}`"
        ) from error
    except (ValueError, RecursionError) as error:
        raise BadUsage(
            f"settings file is not TOML: {error}; correct this line, path=`{path}`"
        ) from error
    known = SHARED_KEYS | COMMANDS.keys()
    for key in sorted(values.keys() - known):
        raise unknown_key(key, known, path)
    return path, values


def unknown_key(key: str, known: Iterable[str], path: Path) -> BadUsage:
    """Return the error of a key that no command reads; it names the nearest known one.

    Args:
        key: The key, with the names of its tables.
        known: The keys in its place, in the same form.
        path: The settings file.
    """
    return BadUsage(
        f"unknown key in settings: the nearest known name is {nearest(key, known)},"
        f" {REFERENCE} lists all, key=`{key}`, path=`{path}`"
    )


def refuse_unknown_command(command: str) -> None:
    """Refuse the name of a command that does not exist.

    Raises:
        BadUsage: There is no such command; the error names a similar one.
    """
    if command in COMMANDS:
        return
    near = nearest(command, COMMANDS, similarity_min=0.6)
    hint = f"the nearest known name is {near}" if near else "`sluice --help` lists all"
    raise BadUsage(f"unknown command: {hint}, command=`{command}`")


def nearest(name: str, known: Iterable[str], *, similarity_min: float = 0.0) -> str:
    """Return the known name that is most similar to an unknown one.

    Args:
        name: The unknown name.
        known: The known names, at least one.
        similarity_min: From 0 to 1; the result is empty if no known name is that similar.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only for an error

    return next(iter(get_close_matches(name, sorted(known), 1, cutoff=similarity_min)), "")
