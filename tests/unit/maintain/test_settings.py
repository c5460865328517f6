"""Errors in `[maintain]` name the table, the key, the value and what to do."""

from collections.abc import Callable

import pytest

from sluice_maintain.settings import (
    CompactOptions,
    GcOptions,
    IngestOptions,
    MaintainSettings,
)
from sluice_maintain.tasks import TRAITS, TaskName
from sluice_protocol.errors import BadUsage


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: MaintainSettings(every_s={"rollup": 0}),
            r"in \[maintain.every_s\], rollup must be at least 1",
        ),
        (
            lambda: MaintainSettings(window={"compact": "8-9"}),
            r"in \[maintain.window\], window must be HH:MM",
        ),
        (
            lambda: MaintainSettings(profile={"compat": "x"}),
            r"in \[maintain.profile\], no task has this name: use one of ingest, .*task=`compat`",
        ),
        (lambda: MaintainSettings(retention_days={"logs": 0}), r"logs must be"),
        (
            lambda: MaintainSettings(timeout_s=float("nan")),
            r"timeout_s in \[maintain\] must be at least 0",
        ),
    ],
)
def test_a_wrong_value_is_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises(BadUsage, match=text):
        make()


def test_every_task_has_a_policy_and_traits() -> None:
    policies = MaintainSettings().policies()
    assert [policy.task for policy in policies.values()] == list(TaskName)
    assert set(TRAITS) == set(TaskName)
    assert [task for task in TaskName if not policies[task].enabled] == [TaskName.AUDIT]


def test_settings_by_task_reach_the_policy_of_this_task_only() -> None:
    settings = MaintainSettings(
        every_s={"gc": 60.0},
        window={"gc": "22:00-04:00"},
        profile={"gc": "p"},
        tasks=(TaskName.INGEST, TaskName.GC),
        timeout_s=5.0,
    )
    gc, rollup = settings.policies()[TaskName.GC], settings.policies()[TaskName.ROLLUP]
    assert (gc.every_s, gc.window, gc.profile, gc.enabled) == (60.0, "22:00-04:00", "p", True)
    assert (rollup.every_s, rollup.window, rollup.profile) == (300.0, "", "")
    assert (rollup.enabled, rollup.timeout_s) == (False, 5.0)
    assert settings.policies()[TaskName.INGEST].timeout_s == 0.0


def test_a_profile_for_a_directory_is_refused_with_its_table() -> None:
    settings = MaintainSettings(profile={"gc": "x"})
    settings.check_profiles("s3://bucket/prefix")
    with pytest.raises(BadUsage, match=r"\[maintain\.profile\], a directory has no credentials"):
        settings.check_profiles("file:///x")


def test_the_settings_of_jobs_are_those_of_the_options() -> None:
    options = GcOptions(deep=0.5, undo=True, shards=8, max_delete_ratio=0.3)
    assert (options.cycle().deep, options.cycle().undo) == (0.5, True)
    assert (options.audit().shards, options.audit().deep) == (8, 0.5)
    assert options.plan_job().max_delete_ratio == 0.3
    settings = MaintainSettings(ingest=IngestOptions(trigger_s=3))
    ingest = settings.ingest_job(once=True)
    assert (ingest.trigger_s, ingest.once) == (3, True)
    assert CompactOptions(vacuum_hours=7).job().vacuum_hours == 7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GcOptions(shards=3), r"\[maintain.gc\], number of shards must divide 256"),
        (lambda: GcOptions(deep=2.0), r"\[maintain.gc\], deep must be"),
        (lambda: GcOptions(max_delete_ratio=1.5), r"\[maintain.gc\], max_delete_ratio must be"),
        (lambda: GcOptions(grace_s=-1.0), r"\[maintain.gc\], grace_s must be"),
        (lambda: GcOptions(deletes_per_s_max=-1.0), "deletes_per_s_max must be"),
        (
            lambda: MaintainSettings(ingest=IngestOptions(max_bytes_per_trigger=0)),
            r"\[maintain.ingest\], ",
        ),
        (
            lambda: MaintainSettings(compact=CompactOptions(dedupe=("",))),
            r"\[maintain.compact\], ",
        ),
    ],
)
def test_a_job_that_could_never_run_is_refused_at_the_start(
    make: Callable[[], object], message: str
) -> None:
    """Before, each run of the task failed."""
    with pytest.raises(BadUsage, match=message):
        make()
