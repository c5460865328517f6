"""Each task runs with the rights of its role, on a server that enforces the rendered policies."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest
from support.policies_live import profile, settings_file, write_profiles
from support.policies_server import enforcing_server

from sluice_maintain.rights import check_rights
from sluice_maintain.settings import GcOptions, MaintainSettings
from sluice_maintain.tasks import TaskName
from sluice_maintain.worker import StoreJobs
from sluice_policies.policy_set import PolicySet, policy_set
from sluice_policies.settings import RoleName, Target, read_settings
from sluice_protocol.errors import StoreDenied
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store import create_authority
from sluice_store.s3.sdk import open_s3_store
from sluice_store.s3.settings import S3Settings

SPLIT = {
    TaskName.AUDIT: RoleName.CERTIFIER,
    TaskName.EXPIRE: RoleName.CERTIFIER,
    TaskName.GC: RoleName.GC,
}


@pytest.fixture
def policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PolicySet:
    write_profiles(tmp_path, monkeypatch)
    return policy_set(read_settings(settings_file(tmp_path, "aws", tls=True)), Target.AWS)


def settings(folder: Path, roles: dict[TaskName, RoleName]) -> MaintainSettings:
    """Return settings with a profile for each task: the maintainer's unless named."""
    used = {task.value: profile(roles.get(task, RoleName.MAINTAINER)) for task in TaskName}
    return MaintainSettings(
        tasks=tuple(TaskName),
        profile=used,
        retention_days={"logs": 30},
        gc=GcOptions(key_file=folder / "auditor.pem", plan=True, shards=4, execute_only=True),
    )


def url_of(where: S3Settings, role: RoleName) -> str:
    options = {"endpoint": where.endpoint, "region": where.region, "ca_bundle": where.ca_bundle}
    query = urlencode({**options, "profile": profile(role)})
    return f"s3://{where.bucket}/{where.prefix}?{query}"


@asynccontextmanager
async def store_with_authority(policies: PolicySet, folder: Path) -> AsyncIterator[S3Settings]:
    async with enforcing_server(policies, folder) as (_, where):
        async with open_s3_store(replace(where, profile=profile(RoleName.DEPLOYER))) as store:
            await create_authority(store)
        yield where


async def test_no_right_is_missing_with_the_role_of_each_task(
    policies: PolicySet, tmp_path: Path
) -> None:
    async with store_with_authority(policies, tmp_path) as where:
        url = url_of(where, RoleName.MAINTAINER)
        assert await check_rights(url, settings(tmp_path, SPLIT)) == {}


async def test_the_missing_rights_are_named_by_task(policies: PolicySet, tmp_path: Path) -> None:
    """With the maintainer for everything, audits and deletions are denied, and nothing else."""
    async with store_with_authority(policies, tmp_path) as where:
        missing = await check_rights(url_of(where, RoleName.AUDITOR), settings(tmp_path, {}))
        assert missing["leases"] == ("write maintain/v1/",)
        assert set(missing) == {"leases", "audit", "expire", "gc"}
        assert "write audit/v1/" in missing["audit"]
        assert "delete raw-blobs/v1/" in missing["gc"]
        swapped = {TaskName.AUDIT: RoleName.GC, TaskName.GC: RoleName.CERTIFIER}
        url = url_of(where, RoleName.MAINTAINER)
        missing = await check_rights(url, settings(tmp_path, swapped))
        assert missing["gc"] == (
            *("write gc/v1/proofs/", "write gc/v1/trash/"),
            "delete raw-blobs/v1/",
        )
        assert set(missing["audit"]) == {
            *("write accepted-by-blob/v1/", "write quarantine-by-blob/v1/"),
            *("write audit/v1/", "write gc/v1/evidence/", "delete gc/v1/evidence/"),
        }


PLAIN = (TaskName.QUEUE, TaskName.RETENTION, TaskName.NONCURRENT, TaskName.AUDIT, TaskName.GC)


@pytest.mark.daily(3)
@pytest.mark.parametrize("task", PLAIN)
async def test_a_task_runs_with_the_rights_of_its_role(
    policies: PolicySet, tmp_path: Path, task: TaskName
) -> None:
    async with store_with_authority(policies, tmp_path) as where:
        role = SPLIT.get(task, RoleName.MAINTAINER)
        wanted = settings(tmp_path, SPLIT)
        if task is TaskName.GC:  # it needs a public key and an audit
            await run(where, RoleName.CERTIFIER, TaskName.AUDIT, wanted)
        assert await run(where, role, task, wanted) == "done"


@pytest.mark.parametrize(
    ("task", "role"),
    [
        (TaskName.AUDIT, RoleName.GC),
        (TaskName.AUDIT, RoleName.MAINTAINER),
        (TaskName.RETENTION, RoleName.CERTIFIER),
    ],
)
async def test_a_task_with_the_rights_of_another_role_is_denied(
    policies: PolicySet, tmp_path: Path, task: TaskName, role: RoleName
) -> None:
    async with store_with_authority(policies, tmp_path) as where:
        with pytest.raises(StoreDenied):
            await run(where, role, task, settings(tmp_path, SPLIT))


async def run(where: S3Settings, role: RoleName, task: TaskName, wanted: MaintainSettings) -> str:
    async with open_s3_store(replace(where, profile=profile(role))) as store:
        result = await StoreJobs(store, SystemClock(), SystemIds()).run(task, wanted)
        return result.outcome.value
