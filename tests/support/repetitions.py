"""How often a long test repeats its fact.

The defaults let `make nightly` end within an hour on two cores. `SLUICE_LONG_TIMES=8` repeats
eight times as much, for example before a release, or for a night on a machine of one's own.
"""

import os

from hypothesis import settings


def times(count: int) -> int:
    """Return a number of repetitions, multiplied by `SLUICE_LONG_TIMES`; at least one."""
    return max(1, round(count * float(os.environ.get("SLUICE_LONG_TIMES", "1"))))


def examples(count: int) -> int:
    """Return `count` for `make test-long`, whose profile is `long`, and otherwise a quarter."""
    return count if settings.get_current_profile_name() == "long" else max(5, count // 4)
