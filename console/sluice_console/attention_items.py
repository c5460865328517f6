"""What an overview shows: one item for each trouble, services that fail, and texts of numbers."""

from typing import Final, Literal

import msgspec

_STEPS: Final = ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min"))

NAMED_MAX: Final = 3
"""Items of one kind that are named."""

Severity = Literal["error", "warning", "notice"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "notice")
"""In the order of the overview."""


class AttentionItem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an operator should look into.

    Attributes:
        severity: `error`: an operator must act; `warning`: it may become one; `notice`: it may also
            be caused by a stranger who reaches a port, so it is no reason to alert an operator.
        title: What is wrong.
        detail: Why, and what to do.
        page: The page of the console that explains it.
        command: The command that shows the same; empty if there is none.
    """

    severity: Severity
    title: str
    detail: str
    page: str
    command: str = ""


class ServiceState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether another service can be used.

    Attributes:
        service: `reconciler`, `query`, or another service of the same machine.
        problem: Why it cannot be used and what to do; empty if it can.
        responds: Whether it sent a response.
    """

    service: str
    url: str
    problem: str = ""
    responds: bool = True


def counted_noun(number: int, one: str, many: str, *, more: bool = False) -> str:
    """Return a number with its noun; `more` if it is a lower bound."""
    if more:
        return f"More than {number} {many}"
    return f"{number} {one if number == 1 else many}"


def duration_text(seconds: float) -> str:
    """Return a duration in the largest unit with a value of at least two."""
    for size_s, unit in _STEPS:
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"
