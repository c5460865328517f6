"""Errors in `[maintain]` name the table, the key, the value and what to do."""

from collections.abc import Callable

import pytest

from sluice_maintain.settings import (
    AuditPolicy,
    CompactPolicy,
    GcPolicy,
    IndexPolicy,
    IngestPolicy,
    MaintainSettings,
    QueuePolicy,
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


def test_a_policy_that_would_expire_blobs_is_refused_with_the_reason() -> None:
    with pytest.raises(BadUsage, match=r"cannot expire raw-blobs/: .* bytes permanently"):
        RetentionPolicy(raw_blobs_days=30)


def test_a_profile_for_a_directory_is_refused_with_its_table() -> None:
    settings = MaintainSettings(gc=GcPolicy(profile="x"))
    settings.check_profiles("s3://bucket/prefix")
    with pytest.raises(BadUsage, match=r"\[maintain\.gc\], a directory has no credentials"):
        settings.check_profiles("file:///x")


def test_the_settings_of_jobs_are_those_of_the_policies() -> None:
    policy = GcPolicy(repair_references=False, deep=0.5, every_s=5, undo=True)
    job = policy.job()
    assert (job.repair_references, job.deep, job.every_s, job.undo) == (False, 0.5, 0.0, True)
    audit = AuditPolicy(repair_references=False, shards=8, max_delete_ratio=0.3)
    assert audit.job(7).repair_references is False
    assert (audit.job(7).shards, audit.job(7).deep_seed) == (8, 7)
    assert audit.plan_job().max_delete_ratio == 0.3
    settings = MaintainSettings(ingest=IngestPolicy(trigger_s=3, checkpoint=""), master="local[1]")
    ingest = settings.ingest_job(once=True)
    assert (ingest.trigger_s, ingest.checkpoint, ingest.once) == (3, None, True)
    assert (ingest.master, CompactPolicy(vacuum_hours=7).job().vacuum_hours) == ("local[1]", 7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GcPolicy(shards=3), r"\[maintain.gc\], number of shards must divide 256"),
        (lambda: GcPolicy(deep=2.0), r"\[maintain.gc\], deep must be"),
        (lambda: GcPolicy(max_delete_ratio=1.5), r"\[maintain.gc\], max_delete_ratio must be"),
        (lambda: GcPolicy(grace_s=-1.0), r"\[maintain.gc\], grace_s must be"),
        (lambda: GcPolicy(deletes_per_s_max=-1.0), "deletes_per_s_max must be"),
        (lambda: GcPolicy(audit_age_s_max=0.0), "audit_age_s_max must be above 0"),
        (lambda: AuditPolicy(deep=-0.1), r"\[maintain.audit\], deep must be"),
        (lambda: QueuePolicy(grace_s=-1.0), r"\[maintain.queue\], grace_s must be"),
        (
            lambda: MaintainSettings(ingest=IngestPolicy(max_batches_per_trigger=0)),
            r"\[maintain.ingest\], ",
        ),
        (
            lambda: MaintainSettings(compact=CompactPolicy(dedupe_window_s=0)),
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
