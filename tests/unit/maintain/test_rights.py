"""The rights of a task are tried without an effect, and a profile selects its credentials."""

import asyncio
import random

import pytest
from support.memory_bucket import Fault, MemoryBucket, open_memory_store
from support.memory_bucket.faults import Call

from sluice_maintain.rights import (
    Access,
    NeededRight,
    check_rights,
    find_missing_rights,
    is_permitted,
    needed_by,
    rights_of_task,
)
from sluice_maintain.settings import GcOptions, MaintainSettings
from sluice_maintain.tasks import TaskName
from sluice_maintain.worker_pool import environment_of
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import AUDIT, DELETES, LAKE, RAW_BLOBS
from sluice_protocol.maintenance import TASK_RIGHTS
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import ObjectKey
from sluice_store.url import with_profile


class Denies:
    """Denies or loses each call under a prefix."""

    def __init__(self, prefix: str, fault: Fault = Fault.DENIED) -> None:
        self.prefix = prefix
        self.fault = fault

    def fault_of(self, call: Call) -> Fault | None:
        return self.fault if str(call.key).startswith(self.prefix) else None


def a_bucket() -> MemoryBucket:
    return MemoryBucket(clock=SystemClock(), rng=random.Random(0))


@pytest.mark.parametrize("access", Access)
async def test_a_denied_right_is_found_and_an_unreachable_store_denies_nothing(
    access: Access,
) -> None:
    right = NeededRight(access=access, prefix=LAKE)
    for plan, permitted in (
        (Denies(LAKE), False),
        (Denies(RAW_BLOBS), True),
        (Denies(LAKE, Fault.TIMEOUT_BEFORE), True),
    ):
        store, _ = open_memory_store(a_bucket(), plan=plan)
        assert await is_permitted(store, right) is permitted


async def test_the_trial_of_every_right_changes_nothing() -> None:
    bucket = a_bucket()
    store, _ = open_memory_store(bucket)
    keys = [ObjectKey(f"{prefix}x") for prefix in (DELETES, LAKE, AUDIT)]
    for key in keys:
        await store.create(key, b"1")
    wanted = {task: needed_by(rights) for task, rights in TASK_RIGHTS.items()}
    assert await find_missing_rights(store, wanted) == {}
    found = [
        (one.key, one.current)
        async for page in store.list_incarnations("")
        for one in page.incarnations
    ]
    assert sorted(found) == sorted((key, True) for key in keys)


async def test_missing_rights_are_reported_by_task() -> None:
    store, _ = open_memory_store(a_bucket(), plan=Denies(AUDIT))
    wanted = {task: needed_by(TASK_RIGHTS[task]) for task in ("audit", "queue")}
    missing = await find_missing_rights(store, wanted)
    assert missing == {"audit": ("read audit/v1/", "write audit/v1/")}


def test_a_cycle_needs_the_rights_of_an_audit_and_an_execution_does_not() -> None:
    whole = MaintainSettings()
    alone = MaintainSettings(gc=GcOptions(execute_only=True))
    assert AUDIT in rights_of_task(TaskName.GC, whole).writes
    assert AUDIT not in rights_of_task(TaskName.GC, alone).writes


def test_a_directory_is_not_tried() -> None:
    assert asyncio.run(check_rights("file:///nowhere", MaintainSettings())) == {}


def test_a_profile_replaces_the_credentials_of_the_process() -> None:
    before = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_PROFILE": "p", "X": "1"}
    assert environment_of("", before) == before
    assert environment_of("gc", before) == {"X": "1", "AWS_PROFILE": "gc"}


def test_a_profile_is_an_option_of_the_url() -> None:
    url = "s3://bucket/a/b?endpoint=http%3A%2F%2Fh%3A1&profile=one"
    assert with_profile(url, "") == url
    assert with_profile(url, "two") == "s3://bucket/a/b?endpoint=http%3A%2F%2Fh%3A1&profile=two"
    with pytest.raises(BadUsage, match="remove the profile"):
        with_profile("file:///x", "two")
