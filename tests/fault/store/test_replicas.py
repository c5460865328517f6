"""A bucket that is a copy is refused: by its authority, by any object, and by two-way rules."""

from pathlib import Path
from typing import Any

import pytest
from support.memory_bucket import Fault, MemoryBucket, open_memory_store
from support.memory_bucket.faults import Call

from sluice_gateway.process.readiness import require_proof
from sluice_gateway.settings import GatewaySettings
from sluice_gateway.spool.claim import mirror_authority
from sluice_protocol.authority import Authority
from sluice_protocol.errors import StoreDenied, StoreMisconfigured, StoreUnavailable
from sluice_protocol.keys import AUTHORITY_SETTINGS
from sluice_protocol.manifests import encode_record
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import ObjectKey
from sluice_store import open_local_store
from sluice_store.authority import create_authority
from sluice_store.doctor import Need, examine, require_doctor, seal_result, write_result
from sluice_store.replication import (
    ReplicationReader,
    ReplicationRule,
    refuse_replica,
    two_way_targets,
)
from sluice_store.s3.store import S3Store

ACCEPTED_KEY = "accepted/v1/agent=61/boot=62/00000000000000000000-00000000000000000009.json"
BLOB_KEY = f"raw-blobs/v1/sha256/ab/cd/{'ab' * 32}.lmbatch"
SETTINGS = encode_record(Authority(authority_id="A", lanes=1))
PREFIX = "prod/"


class Always:
    """A plan by which every call fails."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def fault_of(self, call: Call) -> Fault:
        del call
        return self.fault


def opened(**changes: Any) -> tuple[S3Store, MemoryBucket]:
    store, transport = open_memory_store(prefix=PREFIX, **changes)
    return store, transport.bucket


async def broken(store: S3Store) -> dict[str, str]:
    result = await examine([store], ["memory:"], SystemIds())
    return {one.probe: one.seen for one in result.broken(Need.ACCEPTANCE)}


async def test_a_copy_of_an_authority_is_refused_although_its_doctor_result_was_copied() -> None:
    original, source = opened()
    await original.create(AUTHORITY_SETTINGS, SETTINGS)
    result = await examine([original], ["memory:"], SystemIds())
    await write_result(original, result, seal_result(result), SystemClock())
    await require_proof(original, "s3://memory/prod", GatewaySettings())

    copy, bucket = opened()
    for change in source.changes:
        if change.created and change.version.body is not None:
            bucket.replicate(change.key, change.version.body)
    assert (await require_doctor(copy)).good
    for skip in (False, True):
        with pytest.raises(StoreMisconfigured, match="is a replica of another one"):
            await require_proof(copy, "s3://memory/prod", GatewaySettings(skip_probe=skip))
    assert (await broken(copy))["not-a-replica"]
    # What the message advises after the loss of the original.
    await copy.overwrite(AUTHORITY_SETTINGS, SETTINGS)
    await refuse_replica(copy)


@pytest.mark.parametrize("key", [ACCEPTED_KEY, BLOB_KEY])
async def test_the_doctor_names_a_replica_among_the_objects_of_the_deployment(key: str) -> None:
    """Two authorities that replicate into each other: each one's settings are original."""

    store, bucket = opened()
    await store.create(AUTHORITY_SETTINGS, SETTINGS)
    await store.create(ObjectKey("accepted/v1/agent=60/x.json"), b"{}")
    assert "not-a-replica" not in await broken(store)
    bucket.replicate(PREFIX + key, b"{}")
    assert key in (await broken(store))["not-a-replica"]


async def test_objects_outside_of_the_deployment_may_be_replicas() -> None:
    store, bucket = opened()
    await store.create(AUTHORITY_SETTINGS, SETTINGS)
    bucket.replicate("other/" + AUTHORITY_SETTINGS, SETTINGS)
    await refuse_replica(store)
    assert "not-a-replica" not in await broken(store)


async def test_rules_in_both_directions_are_found_where_they_can_be_read() -> None:
    """A backup in one direction is allowed; unreadable rules prove nothing."""

    store, bucket = opened()
    await store.create(AUTHORITY_SETTINGS, SETTINGS)
    bucket.replication = {"memory": (ReplicationRule(target="backup", prefix="prod/"),)}
    assert "not-a-replica" not in await broken(store)
    bucket.replication["backup"] = (ReplicationRule(target="memory", prefix="prod/accepted"),)
    assert "backup" in (await broken(store))["not-a-replica"]


RULE = ReplicationRule(target="b", prefix="prod/")
BACK = ReplicationRule(target="a")


@pytest.mark.parametrize(
    ("rules", "back", "found"),
    [
        ((RULE,), (BACK,), ["b"]),
        ((RULE,), None, []),
        ((RULE,), (), []),
        ((), (BACK,), []),
        ((RULE,), (ReplicationRule(target="c"),), []),
        ((RULE,), (ReplicationRule(target="a", enabled=False),), []),
        ((ReplicationRule(target="b", enabled=False),), (BACK,), []),
        ((ReplicationRule(target="b", prefix="logs/"),), (BACK,), []),
        ((RULE,), (ReplicationRule(target="a", prefix="production/"),), []),
        ((RULE,), (ReplicationRule(target="a", prefix="pro"),), ["b"]),
        ((RULE,), (ReplicationRule(target="a", prefix="prod/raw-blobs/"),), ["b"]),
    ],
)
def test_two_way_replication_is_a_rule_of_both_buckets(
    rules: tuple[ReplicationRule, ...], back: tuple[ReplicationRule, ...] | None, found: list[str]
) -> None:
    assert two_way_targets("a", "prod/", rules, {"b": back}) == found


async def test_a_spool_does_not_start_for_a_replica_and_starts_without_a_network(
    tmp_path: Path,
) -> None:
    remote, bucket = opened()
    await remote.create(AUTHORITY_SETTINGS, SETTINGS)
    async with open_local_store(tmp_path) as spool:
        await mirror_authority(spool, remote, SystemClock())
        down, _ = opened(bucket=bucket, plan=Always(Fault.NOT_SENT))
        await mirror_authority(spool, down, SystemClock())
        bucket.replicate(PREFIX + AUTHORITY_SETTINGS, SETTINGS)
        with pytest.raises(StoreMisconfigured, match="is a replica"):
            await mirror_authority(spool, remote, SystemClock())


@pytest.mark.parametrize(
    ("fault", "kind"), [(Fault.DENIED, StoreDenied), (Fault.NOT_SENT, StoreUnavailable)]
)
async def test_a_store_that_cannot_be_read_is_not_taken_for_an_original(
    fault: Fault, kind: type[Exception]
) -> None:
    store, _ = opened(plan=Always(fault))
    with pytest.raises(kind):
        await refuse_replica(store)


async def test_a_directory_is_no_replica(tmp_path: Path) -> None:
    async with open_local_store(tmp_path) as store:
        assert not isinstance(store, ReplicationReader)
        await create_authority(store, Authority(authority_id="A", lanes=1))
        await refuse_replica(store)
