"""Errors in `[maintain]` name the table, the key, the value and what to do."""

from collections.abc import Callable

import pytest

from sluice_maintain.settings import (
    CompactPolicy,
    GcPolicy,
    IndexPolicy,
    MaintainSettings,
    RetentionPolicy,
    RollupPolicy,
)
from sluice_maintain.tasks import TRAITS, TaskName
from sluice_protocol.errors import BadUsage


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: RollupPolicy(every_s=0), r"every_s in \[maintain.rollup\] must be at least 1"),
        (lambda: CompactPolicy(window="8-9"), r"\[maintain.compact\], window must be HH:MM"),
        (lambda: GcPolicy(jitter=2), r"jitter in \[maintain.gc\] must be at most 1"),
        (lambda: IndexPolicy(backoff_max_s=1), r"backoff_max_s at least backoff_s"),
        (lambda: RetentionPolicy(logs_days=-1), r"days in \[maintain.retention\]"),
        (lambda: MaintainSettings(lease_s=1), r"lease_s in \[maintain\] must be at least 10"),
        (lambda: MaintainSettings(poll_s=float("nan")), r"poll_s in \[maintain\]"),
    ],
)
def test_a_wrong_value_is_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises(BadUsage, match=text):
        make()


def test_every_task_has_a_policy_and_traits() -> None:
    policies = MaintainSettings().policies()
    assert [policy.task for policy in policies.values()] == list(TaskName)
    assert set(TRAITS) == set(TaskName)
