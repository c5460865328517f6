"""Environment variables that no option reads: a mistyped name is an error."""

import os
import re
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from sluice_cli.shell.commands import COMMANDS
from sluice_cli.shell.settings_file import REFERENCE, nearest
from sluice_protocol.errors import BadUsage

if TYPE_CHECKING:
    from cyclopts import App

PREFIX: Final = "SLUICE_"
SHARED: Final = frozenset(
    {"SLUICE_CONFIG", "SLUICE_STORE", "SLUICE_FAILPOINT", "SLUICE_FAILPOINT_FOLDER"}
)
"""Variables of every command; the fail points are for tests that stop a process in a commit."""
TEST_PREFIXES: Final = ("SLUICE_TEST_", "SLUICE_BENCH_", "SLUICE_SIM_", "SLUICE_FUZZ_")
"""Prefixes of variables that the project's tests and benchmarks read."""
_OF_KUBERNETES: Final = re.compile(
    r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)", re.ASCII
)
"""Kubernetes sets these in each pod for a service whose name begins with `sluice-`."""
OF_CLIENTS: Final = frozenset({"SLUICE_URL", "SLUICE_HOST", "SLUICE_PORT", "SLUICE_TOKEN"})
"""Configurations of other clients in `docs/send` read these; an operator may export them."""
TEST_NAMES: Final = frozenset({"SLUICE_GOLDEN", "SLUICE_UPDATE_GOLDEN", "SLUICE_LIVE_BUCKET"})


def check_variables(app: "App", loaded: Iterable[str]) -> None:
    """Refuse a variable that names no command, or no option of one of the `loaded` commands.

    The error names the nearest known variable.
    """
    if not any(map(_is_checked, os.environ)):
        return
    commands = tuple(loaded)
    known = {name for command in commands for name in variables_of(app, (command,))}
    refuse_unknown_variables(known, commands)


def refuse_unknown_variables(known: Collection[str] = (), commands: tuple[str, ...] = ()) -> None:
    """Refuse a variable of one of the `commands` that is not `known`, or that names no command.

    The error names the nearest known variable.
    """
    for name in _unknown_variables(known, commands):
        others = (_prefix((one,)) for one in COMMANDS if one not in commands)
        near = nearest(name, [*known, *SHARED, *others])
        rest = "…" if near.endswith("_") else ""  # those of another command are not imported
        raise BadUsage(
            f"unknown environment variable: the nearest known name is {near}{rest},"
            f" {REFERENCE} lists all, variable=`{name}`"
        )


def _unknown_variables(known: Collection[str], commands: tuple[str, ...]) -> list[str]:
    """Return the variables that are neither `known` nor of another command than `commands`."""
    checked = tuple(_prefix((command,)) for command in commands)
    others = tuple(prefix for one in COMMANDS if (prefix := _prefix((one,))) not in checked)
    return sorted(
        name
        for name in os.environ
        if _is_checked(name)
        and name not in known
        and (name.startswith(checked) or not name.startswith(others))
        and not _OF_KUBERNETES.fullmatch(name)
    )


def variables_of(app: "App", path: tuple[str, ...]) -> Iterator[str]:
    """Yield the variable of each option of a command and of its subcommands."""
    here = app
    for name in path:
        here = here[name]
    for name in here:
        if not name.startswith("-"):
            yield from variables_of(app, (*path, name))
    if here.default_command is not None:
        for argument in here.assemble_argument_collection(parse_docstring=False):
            for name in argument.names:
                if argument.parse and name.startswith("--"):
                    yield variable_of_option(path, name)


def variable_of_option(path: tuple[str, ...], option: str) -> str:
    """Return the variable of an option `--name` of a command."""
    name = option.removeprefix("--").replace(".", "-")
    return _prefix(path) + name.upper().replace("-", "_")


def _is_checked(name: str) -> bool:
    if not name.startswith(PREFIX) or name in SHARED | OF_CLIENTS | TEST_NAMES:
        return False
    return not name.startswith(TEST_PREFIXES)


def _prefix(path: tuple[str, ...]) -> str:
    return PREFIX + "_".join(path).upper().replace("-", "_") + "_"
