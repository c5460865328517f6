"""Environment variables that no option reads: a mistyped name is an error."""

import os
import re
from collections.abc import Iterable, Iterator
from typing import Final

from cyclopts import App

from sluice_cli.commands import COMMANDS
from sluice_protocol.errors import BadUsage

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


def refuse_unknown_variables(app: App, tokens: Iterable[str]) -> None:
    """Refuse a variable that names no command, or no option of the running command.

    Variables of another command are not checked: that would import it.

    Raises:
        BadUsage: A variable is unknown; the error names the nearest known one.
    """
    command = next(iter(tokens), "")
    loaded = [command] if command in COMMANDS and command != "config" else []
    check_variables(app, loaded)


def check_variables(app: App, loaded: Iterable[str]) -> None:
    """Refuse a variable that names no command, or no option of one of the `loaded` commands.

    Raises:
        BadUsage: A variable is unknown; the error names the nearest known one.
    """
    given = sorted(name for name in os.environ if _is_checked(name))
    if not given:
        return
    known = {name for command in loaded for name in variables_of(app, (command,))}
    checked = tuple(_prefix((command,)) for command in loaded)
    others = tuple(prefix for one in COMMANDS if (prefix := _prefix((one,))) not in checked)
    for name in given:
        if name in known or _OF_KUBERNETES.fullmatch(name):
            continue
        if not name.startswith(checked) and name.startswith(others):
            continue
        from difflib import get_close_matches  # noqa: PLC0415 - only for an error

        near = get_close_matches(name, [*known, *SHARED, *others], 1, cutoff=0)
        raise BadUsage(
            f"unknown environment variable: the nearest known name is {near[0]}, variable=`{name}`"
        )


def variables_of(app: App, path: tuple[str, ...]) -> Iterator[str]:
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
                    yield variable_of(path, name)


def variable_of(path: tuple[str, ...], option: str) -> str:
    """Return the variable of an option `--name` of a command."""
    name = option.removeprefix("--").replace(".", "-")
    return _prefix(path) + name.upper().replace("-", "_")


def _is_checked(name: str) -> bool:
    if not name.startswith(PREFIX) or name in SHARED | OF_CLIENTS | TEST_NAMES:
        return False
    return not name.startswith(TEST_PREFIXES)


def _prefix(path: tuple[str, ...]) -> str:
    return PREFIX + "_".join(path).upper().replace("-", "_") + "_"
