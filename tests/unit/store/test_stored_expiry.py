"""Decisions about expiry in a store: numbered rules, and holds that stop deletes until lifted."""

import random

import pytest
from msgspec.structs import replace
from support.builders import conflict_manifest, manifest, tombstone_of
from support.memory_bucket import MemoryBucket, open_memory_store

from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage
from sluice_protocol.expiry import (
    TOMBSTONE_HOURS_MAX,
    LegalHold,
    SignedTombstone,
    TableVersion,
    Tombstone,
    encode_tombstone,
    group_by_boot,
    hold_lifted_key,
    legal_hold_key,
)
from sluice_protocol.keys import digest_of, hour_of, quarantine_key
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.record_deletes import DeleteRequest
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey
from sluice_spark.compaction.file_selection import read_maintenance_input
from sluice_store.authority import create_authority
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff
from sluice_store.stored_deletes import submit_delete
from sluice_store.stored_expiry import (
    TombstoneReader,
    add_hold,
    lift_hold,
    read_holds,
    read_retention,
    set_retention,
)

DAY_S = 86_400
IDS = SystemIds()


async def deployment() -> ObjectStore:
    store = open_memory_store(MemoryBucket(clock=SystemClock(), rng=random.Random(0)))[0]
    await create_authority(store, Authority(authority_id="A"))
    return store


def backoff() -> Backoff:
    return Backoff.seeded_by(SystemClock())


async def decide(store: ObjectStore, days: int | None, by: str = "ann") -> int:
    keep_s = None if days is None else days * DAY_S
    return (await set_retention(store, keep_s, by=by, note="", backoff=backoff())).number


async def hold(store: ObjectStore, case: str = "C-1", **changes: object) -> LegalHold:
    wanted = LegalHold(
        hold_id=IDS.ulid(),
        case=case,
        reason="litigation",
        held_by="ann",
        review_at_unix_ns=2**62,
        held_at_unix_ns=1,
    )
    return await add_hold(store, replace(wanted, **changes), backoff())


async def lift(store: ObjectStore, one: LegalHold, reason: str = "settled") -> None:
    await lift_hold(store, one.hold_id, by="bob", reason=reason, backoff=backoff())


async def remove(store: ObjectStore, agent: str = "host-1") -> str:
    request = DeleteRequest(kind="logs", where=f"agent = '{agent}'")
    return (await submit_delete(store, request, "ann", backoff(), IDS)).record.delete_id


async def test_rules_are_numbered_and_the_last_one_is_in_effect() -> None:
    store = await deployment()
    assert await read_retention(store) is None
    assert [await decide(store, days) for days in (30, 30, 14, None)] == [1, 1, 2, 3]
    rule = await read_retention(store)
    assert rule is not None
    assert (rule.number, rule.raw_keep_s, rule.decided_by) == (3, None, "ann")
    assert rule.decided_at_unix_ns > 0
    with pytest.raises(BadUsage, match="use 14d or more"):
        await decide(store, 13)
    assert await read_retention(store) == rule


async def test_a_decision_about_one_of_both_leaves_the_other() -> None:
    store = await deployment()
    wanted = [(30, 90), ("unchanged", 60), (14, "unchanged"), (None, "unchanged")]
    found = []
    for raw, tables in wanted:
        raw_s, tables_s = (one * DAY_S if isinstance(one, int) else one for one in (raw, tables))
        rule = await set_retention(
            store, raw_s, tables_keep_s=tables_s, by="ann", note="", backoff=backoff()
        )
        found.append(tuple(one and one // DAY_S for one in (rule.raw_keep_s, rule.tables_keep_s)))
    assert found == [(30, 90), (30, 60), (14, 60), (None, 60)]
    assert (await decide(store, 14), (await read_retention(store)).number) == (5, 5)


async def test_the_last_hold_that_is_lifted_frees() -> None:
    store = await deployment()
    first, second = await hold(store), await hold(store, case="C-2", agent_id="host-1")
    for one, cases in ((first, "C-[12]"), (second, "C-2")):
        with pytest.raises(BadUsage, match=f"a hold covers .*case=`{cases}`"):
            await remove(store)
        await lift(store, one)
    await remove(store)
    found = await read_holds(store)
    assert found.active == ()
    assert {(one.case, end.reason) for one, end in found.lifted} == {
        ("C-1", "settled"),
        ("C-2", "settled"),
    }


async def test_a_hold_stops_deletes_of_its_own_agent_and_compaction_applies_the_rest() -> None:
    """A delete that existed before the hold stays recorded and is applied once it is lifted."""
    store = await deployment()
    before = await remove(store)
    one = await hold(store, agent_id="host-1", from_unix_ns=1_000)
    other = await remove(store, "host-2")
    applied = (await read_maintenance_input(store)).deletes
    assert [record.delete_id for record in applied] == [other]
    await lift(store, one)
    applied = (await read_maintenance_input(store)).deletes
    assert {record.delete_id for record in applied} == {before, other}


async def test_a_record_that_cannot_be_read_keeps_everything() -> None:
    store = await deployment()
    one = await hold(store, agent_id="host-9")
    await store.create(hold_lifted_key(one.hold_id), b"{}")
    assert (await read_holds(store)).active == (one,)
    await remove(store)
    await store.create(legal_hold_key("01ARZ3NDEKTSV4RRFFQ69G5FAV"), b"{}")
    with pytest.raises(BadUsage, match="unreadable"):
        await remove(store)


async def test_the_end_of_a_hold_is_recorded_once_with_a_reason() -> None:
    store = await deployment()
    one = await hold(store)
    with pytest.raises(BadUsage, match="needs a reason"):
        await lift(store, one, reason=" ")
    with pytest.raises(BadUsage, match="no such hold"):
        await lift(store, replace(one, hold_id="01ARZ3NDEKTSV4RRFFQ69G5FAV"))
    await lift(store, one)
    await lift(store, one, reason="again")
    ((_, end),) = (await read_holds(store)).lifted
    assert (end.reason, end.lifted_by) == ("settled", "bob")


HOUR_NS = 3_600 * NS_PER_S
STATE = TableVersion(version=4, commit_sha256=digest_of(b"4"))


async def put_tombstone(store: ObjectStore, run: int, *batches: AcceptedManifest) -> Tombstone:
    hours = [hour_of(one.accepted_at_unix_ns) for one in batches]
    one = replace(
        tombstone_of(batches[0], STATE, run_id=f"{run:026d}"),
        first_hour=min(hours),
        last_hour=max(hours),
        boots=group_by_boot([(one.identity, one.digest) for one in batches]),
    )
    signed = SignedTombstone(tombstone=one, key_id="k", signature="s")
    await store.create(one.key, encode_tombstone(signed))
    return one


async def test_a_tombstone_is_found_from_each_hour_of_its_week() -> None:
    """Its folder is that of its youngest batch; those of other weeks are not read."""
    store = await deployment()
    hours = (0, 1, TOMBSTONE_HOURS_MAX - 1)
    batches = [manifest(10 * n, at_ns=HOUR_NS * hour) for n, hour in enumerate(hours)]
    other = manifest(90, at_ns=HOUR_NS * TOMBSTONE_HOURS_MAX)
    week = await put_tombstone(store, 1, *batches)
    await put_tombstone(store, 2, other)
    reader = TombstoneReader(store)
    for one in (*batches, other):
        found = await TombstoneReader(store).find(one)
        assert found is not None
        assert (found.tombstone == week) == (one is not other)
        assert await reader.find(one) == found
    assert await reader.find(manifest(10, at_ns=0)) is not None
    assert await reader.find(manifest(11, at_ns=0)) is None
    assert await reader.find(replace(batches[0], frame_sha256=digest_of(b"other"))) is None


async def test_the_newest_tombstone_of_a_batch_counts_and_a_damaged_one_names_nothing() -> None:
    store = await deployment()
    batch, later = manifest(0, at_ns=0), manifest(10, at_ns=HOUR_NS)
    await put_tombstone(store, 3, batch)
    newest = await put_tombstone(store, 7, batch, later)
    await put_tombstone(store, 5, batch)
    damaged = await put_tombstone(store, 9, batch)
    await store.overwrite(damaged.key, b"damaged")
    await store.create(ObjectKey(f"{damaged.key}.copy"), b"foreign")
    found = await TombstoneReader(store).find(batch)
    assert found is not None
    assert found.tombstone == newest


async def test_a_tombstone_names_accepted_batches_or_refused_bytes_and_never_both() -> None:
    """Two refusals of one identity may differ in their bytes only."""
    store = await deployment()
    batch = manifest(0, at_ns=0)
    one, two = (
        conflict_manifest(
            batch.identity, accepted=batch.digest, submitted=digest_of(body), at_ns=HOUR_NS
        )
        for body in (b"one", b"two")
    )
    same = conflict_manifest(batch.identity, accepted=batch.digest, submitted=batch.digest, at_ns=0)
    await put_tombstone(store, 1, batch)
    assert await TombstoneReader(store).find(same) is None
    refused = replace(
        tombstone_of(batch, STATE, run_id=f"{2:026d}"),
        refused=True,
        first_hour=1,
        last_hour=1,
        boots=group_by_boot([(batch.identity, digest_of(body)) for body in (b"one", b"two")]),
    )
    signed = SignedTombstone(tombstone=refused, key_id="k", signature="s")
    await store.create(refused.key, encode_tombstone(signed))
    for conflict in (one, two):
        found = await TombstoneReader(store).find(conflict)
        assert found is not None
        assert found.tombstone == refused
        named = dict(found.tombstone.named())
        key = quarantine_key(batch.identity, Digest(conflict.submitted_frame_sha256))
        assert named[key] == conflict.submitted_frame_sha256
    accepted = replace(batch, frame_sha256=digest_of(b"one"), accepted_at_unix_ns=HOUR_NS)
    assert await TombstoneReader(store).find(accepted) is None
