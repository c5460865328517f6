"""The question before a command that cannot be taken back."""

import sys

from sluice_protocol.errors import BadUsage


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
