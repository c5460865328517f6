"""How often a long test repeats its fact.

The defaults let `make nightly` end within an hour on two cores. `SLUICE_LONG_TIMES=8` repeats
eight times as much, for example before a release, or for a night on a machine of one's own.
"""

import os
from collections.abc import Iterable
from typing import Any

import pytest


def times(count: int) -> int:
    """Return a number of repetitions, multiplied by `SLUICE_LONG_TIMES`; at least one."""
    return max(1, round(count * float(os.environ.get("SLUICE_LONG_TIMES", "1"))))


def daily_third(cases: Iterable[Any]) -> list[Any]:
    """Return the same cases as parameters of a test, of which `make test` runs every third.

    For planted bugs, which show that a simulation finds what it is for. The others are marked
    `long`, so each is still planted by `make test-long`.
    """
    return [
        pytest.param(*one, marks=[pytest.mark.long] if at % 3 else [])
        for at, one in enumerate((case,) if isinstance(case, str) else case for case in cases)
    ]
