"""Checks of settings at the start: numbers out of range, and settings that would have no effect.

A setting that is accepted and does nothing is worse than an error: its operator relies on it.
"""

from collections.abc import Iterable
from math import inf
from urllib.parse import urlsplit

from sluice_protocol.errors import BadUsage


def check_number(
    name: str, value: float | None, low: float, high: float = inf, *, above: bool = False
) -> None:
    """Check that a number is in a range (`above`: more than `low`). None passes, and NaN fails."""
    if value is None or (low <= value <= high and not (above and value == low)):
        return
    least = f"above {low:.15g}" if above else f"at least {low:.15g}"
    most = "" if high == inf else f" and at most {high:.15g}"
    raise BadUsage(f"{name} must be {least}{most}, {name}=`{value}`")


def check_effects(needs: Iterable[tuple[str, object, str, object]]) -> None:
    """Check that each setting that is given has an effect.

    Each of `needs` is the name and value of a setting, and of the one that it needs.
    """
    for name, value, needed, given in needs:
        if value and not given:
            raise BadUsage(f"{name} has no effect without {needed}: set {needed}, or remove {name}")


def is_base_url(text: str) -> bool:
    """Return True if a text is the base URL of a server, with a name that a resolver accepts."""
    try:
        url = urlsplit(text)
        host, _ = url.hostname or "", url.port
        host.encode("idna")  # as the resolver does: no label is empty or too long
    except ValueError:
        return False
    return url.scheme in {"http", "https"} and bool(host) and not url.query
