"""After an outage of the store, of any kind and length, all work continues within `RECOVERY_S`.

Gateways and reconcilers run with all of their loops in virtual time. During the outage some or all
calls fail, or the store's clock is wrong. Afterwards every gateway is ready, no loop of a
reconciler fails, every lane has an owner, the first batch is enqueued in time, and at the end every
acknowledged batch is in the queue once.
"""

from pathlib import Path

import pytest
from support.outage_world import KINDS, run_through_outage

DURATIONS_S = (1, 3, 10, 60, 300)
DAILY_S = (3, 60)
"""Durations with which `make test` runs each kind."""


def cases() -> list[object]:
    found = []
    for kind in KINDS:
        for seconds in DURATIONS_S:
            for members, journaled in ((1, True), (2, True), (1, False)):
                daily = seconds in DAILY_S and (members == 1 or kind == "all_fail")
                marks = () if daily else (pytest.mark.long,)
                name = f"{kind}-{seconds}s-{members}-{'journals' if journaled else 'passes'}"
                found.append(pytest.param(kind, seconds, members, journaled, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("kind", "seconds", "members", "journaled"), cases())
def test_all_work_continues(
    kind: str,
    seconds: int,
    members: int,
    journaled: bool,  # noqa: FBT001 - a parameter of the matrix
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_through_outage(
        kind, seconds, tmp_path, monkeypatch, members=members, journaled=journaled
    )
