"""The operator of a command: the name in records of decisions, and a question before it runs."""

import getpass
import os
import sys

from sluice_protocol.errors import BadUsage


def user_name() -> str:
    """Return the name of the user, or the number where the system has no name for it."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container that runs with any number
        return str(os.getuid())


def operator_name() -> str:
    """Return the name of the user as records of decisions have it."""
    return f"operator:{user_name()}"


def is_confirmed(question: str, *, yes: bool, refusal: str) -> bool:
    """Return True if an operator confirms a command.

    With `yes`, nothing is read. `refusal` is the error without a terminal; it names `--yes`.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise BadUsage(refusal)
    sys.stderr.write(f"{question} [yes/no] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() == "yes"
