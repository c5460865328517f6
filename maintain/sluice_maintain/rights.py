"""The missing rights of each task: one request without effect for each right that it needs.

Reads are of a key that does not exist. A replacement has a condition that no object meets, and a
deletion names a version that does not exist. Where objects are created once only, an existing key
is created again, which the store refuses.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice_maintain.settings import MaintainSettings
from sluice_maintain.tasks import TaskName
from sluice_protocol.errors import OutcomeUnknown, StoreDenied, StoreError
from sluice_protocol.keys import DELETES, EXPIRED
from sluice_protocol.maintenance import LEASES, TASK_RIGHTS, TaskRights, union_of
from sluice_protocol.units import ETag, ObjectKey, ObjectVersion
from sluice_store.port import ObjectStore, run_together
from sluice_store.stored_expiry import read_retention
from sluice_store.url import StoreMode, open_store, with_profile

_NO_ETAG: Final = ETag('"00000000000000000000000000000000"')
_NO_VERSION: Final = ObjectVersion("00000000-0000-4000-8000-000000000000")
_PROBE: Final = "sluice-probe/none"
_CREATED_ONCE: Final = (DELETES, EXPIRED)
_REQUESTS_MAX: Final = 8


class Access(StrEnum):
    """What a right permits."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededRight:
    """One right under one prefix."""

    access: Access
    prefix: str

    def __str__(self) -> str:
        return f"{self.access} {self.prefix}"


MissingRights = Mapping[str, tuple[str, ...]]
"""The rights that are missing, by task; `leases` are those of the process that schedules."""


def needed_by(rights: TaskRights) -> tuple[NeededRight, ...]:
    """Return the rights of a task one by one."""
    access = {
        Access.READ: rights.reads,
        Access.WRITE: rights.writes,
        Access.DELETE: (*rights.deletes, *rights.expires),
    }
    return tuple(
        NeededRight(access=kind, prefix=prefix)
        for kind, prefixes in access.items()
        for prefix in prefixes
    )


def rights_of_task(task: TaskName, settings: MaintainSettings) -> TaskRights:
    """Return what a task needs with these settings."""
    if task is TaskName.GC and not settings.gc.execute_only:
        return union_of([TASK_RIGHTS["gc"], TASK_RIGHTS["audit"]])
    return TASK_RIGHTS[task.value]


async def is_permitted(store: ObjectStore, right: NeededRight) -> bool:
    """Return False if the store denies a right; an unreachable store is no denial."""
    try:
        await _attempt(store, right)
    except StoreDenied:
        return False
    except (StoreError, OutcomeUnknown):
        return True
    return True


async def _attempt(store: ObjectStore, right: NeededRight) -> None:
    key = ObjectKey(f"{right.prefix}{_PROBE}")
    match right.access:
        case Access.READ:
            await store.head(key)
            await _first_key(store, right.prefix)
        case Access.WRITE if right.prefix in _CREATED_ONCE:
            existing = await _first_key(store, right.prefix)
            if existing is not None:
                await store.create(existing, b"")
        case Access.WRITE:
            await store.replace(key, b"", if_match=_NO_ETAG)
        case Access.DELETE:
            await store.delete(key, _NO_VERSION)


async def _first_key(store: ObjectStore, prefix: str) -> ObjectKey | None:
    async for page in store.list(prefix):
        for one in page.objects:
            return one.key
    return None


async def find_missing_rights(
    store: ObjectStore, wanted: Mapping[str, tuple[NeededRight, ...]]
) -> dict[str, tuple[str, ...]]:
    """Return the rights that a store denies, by task; each right is tried once."""
    slots = asyncio.Semaphore(_REQUESTS_MAX)

    async def attempt(right: NeededRight) -> bool:
        async with slots:
            return await is_permitted(store, right)

    every = sorted({right for rights in wanted.values() for right in rights}, key=str)
    permitted = dict(
        zip(every, await run_together(*(attempt(right) for right in every)), strict=True)
    )
    missing = {
        task: tuple(str(right) for right in rights if not permitted[right])
        for task, rights in wanted.items()
    }
    return {task: rights for task, rights in missing.items() if rights}


async def check_rights(url: str, settings: MaintainSettings) -> dict[str, tuple[str, ...]]:
    """Return the missing rights of the process and its enabled tasks, each with its credentials.

    A directory is not tried: it has no roles.
    """
    if not url.startswith("s3://"):
        return {}
    groups: dict[str, dict[str, tuple[NeededRight, ...]]] = {"": {"leases": needed_by(LEASES)}}
    for task, policy in settings.policies().items():
        if policy.enabled and (
            task is not TaskName.RETENTION or await _deletes_by_age(url, policy.profile, settings)
        ):
            found = groups.setdefault(policy.profile, {})
            found[task.value] = needed_by(rights_of_task(task, settings))
    missing: dict[str, tuple[str, ...]] = {}
    for profile, wanted in groups.items():
        missing |= await _check_profile(url, profile, wanted)
    return missing


async def _deletes_by_age(url: str, profile: str, settings: MaintainSettings) -> bool:
    """Return False if neither the settings nor a readable decision ends records."""
    if settings.retention_days:
        return True
    try:
        async with open_store(with_profile(url, profile), StoreMode.READ) as store:
            rule = await read_retention(store)
    except StoreDenied:
        return False
    return rule is not None and rule.tables_keep_s is not None


async def _check_profile(
    url: str, profile: str, wanted: Mapping[str, tuple[NeededRight, ...]]
) -> dict[str, tuple[str, ...]]:
    try:
        async with open_store(with_profile(url, profile)) as store:
            return await find_missing_rights(store, wanted)
    except StoreDenied as error:
        return {task: (str(error),) for task in wanted}
