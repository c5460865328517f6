"""After an outage of the store, of any kind and length, all work continues within `RECOVERY_S`.

Gateways and reconcilers run with all of their loops in virtual time. During the outage some or all
calls fail, or the store's clock is wrong. Afterwards every gateway is ready, no loop of a
reconciler fails, every lane has an owner, the first batch is enqueued in time, and at the end every
acknowledged batch is in the queue once.
"""

from pathlib import Path

import pytest
from support.outage_world import KINDS, run_through_outage
from support.repetitions import times

DURATIONS_S = (1, 3, 10, 60, 300)
DEPLOYMENTS = ((1, True), (2, True), (1, False))
"""Number of reconcilers, and whether gateways write journals."""


def is_daily(kind: str, seconds: int, members: int, journaled: bool) -> bool:
    """Return True if `make test` runs a case: every kind once, and each deployment with one."""
    if kind == "all_fail":
        return seconds == 3
    return (seconds, members, journaled) == (3, 1, True)


def cases() -> list[object]:
    """Return the daily cases and every seventh; `SLUICE_LONG_TIMES=7` has all of them.

    Seven has no factor in common with the numbers of kinds, durations and deployments, so each of
    these is in some of the cases.
    """
    found, step = [], max(1, 7 // times(1))
    number = 0
    for kind in KINDS:
        for seconds in DURATIONS_S:
            for members, journaled in DEPLOYMENTS:
                daily = is_daily(kind, seconds, members, journaled)
                number += 1
                if not daily and number % step:
                    continue
                marks = () if daily else (pytest.mark.long,)
                name = f"{kind}-{seconds}s-{members}-{'journals' if journaled else 'passes'}"
                found.append(pytest.param(kind, seconds, members, journaled, id=name, marks=marks))
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "seconds", "members", "journaled"), cases())
def test_all_work_continues(
    kind: str,
    seconds: int,
    members: int,
    journaled: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_through_outage(kind, seconds, tmp_path, monkeypatch, members=members, journaled=journaled)
