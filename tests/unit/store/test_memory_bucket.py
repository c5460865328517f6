"""The model of S3 beyond the port: markers, copies, locks, events, inventories.

Events and inventories of the bucket in memory, with the delays that S3 has.

Source: Amazon S3 User Guide, "Event message structure" and "Amazon S3 Inventory". Events come at
least once and in any order, their keys are URL-encoded; an inventory is no point in time and lags.
"""

import asyncio
import random
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote_plus, unquote_plus

import pytest
from support.memory_bucket import Crashed, Fault, Scripted, open_memory_store
from support.memory_bucket.bucket import BucketChange, BucketVersion, MemoryBucket

from sluice_protocol.errors import StoreDenied
from sluice_protocol.outcomes import Applied, Exists, NotFound, ObjectInfo
from sluice_protocol.units import NS_PER_S, NULL_VERSION, ObjectKey, UnixNs
from sluice_store.port import ListedObject, Versioning

REPEATED: Final = 0.1
"""The share of events that are delivered twice."""


class EventFeed:
    """The events of a bucket for one consumer: late, out of order, some of them twice."""

    def __init__(self, bucket: MemoryBucket, rng: random.Random) -> None:
        """Start with the next change."""
        self._bucket = bucket
        self._rng = rng
        self._seen = len(bucket.changes)
        self._waiting: list[Mapping[str, object]] = []

    def deliver(self, most: int) -> list[Mapping[str, object]]:
        """Return up to `most` pending events in any order; a repeated one stays pending."""
        fresh = self._bucket.changes[self._seen :]
        first, self._seen = self._seen, len(self._bucket.changes)
        self._waiting += [
            _event(self._bucket.name, change, first + i) for i, change in enumerate(fresh)
        ]
        self._rng.shuffle(self._waiting)
        given, self._waiting = self._waiting[:most], self._waiting[most:]
        self._waiting += [event for event in given if self._rng.random() < REPEATED]
        return given


def _event(bucket: str, change: BucketChange, number: int) -> Mapping[str, object]:
    marker = change.version.body is None
    removed = "ObjectRemoved:DeleteMarkerCreated" if marker else "ObjectRemoved:Delete"
    described: dict[str, object] = {
        "key": quote_plus(change.key, safe="/"),
        "versionId": change.version.incarnation,
        "sequencer": f"{number:016X}",
    }
    if change.created:
        described["size"] = len(change.version.body or b"")
        described["eTag"] = change.version.etag.strip('"')
    return {
        "eventVersion": "2.4",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put" if change.created else removed,
        "s3": {"bucket": {"name": bucket}, "object": described},
    }


def read_inventory(bucket: MemoryBucket, as_of_ns: UnixNs) -> list[ListedObject]:
    """Return the current objects as of a time in the past, in key order.

    Objects written since are missing, and objects deleted since are listed. So it may name
    candidates, and never proves an absence.
    """
    standing: dict[str, list[BucketVersion]] = {}
    for change in bucket.changes:
        if change.at_ns > as_of_ns:
            break
        versions = standing.setdefault(change.key, [])
        if change.created or change.version.body is None:
            versions.append(change.version)
        else:
            versions[:] = [v for v in versions if v.incarnation != change.version.incarnation]
    return [
        ListedObject(
            key=ObjectKey(key),
            size_bytes=len(versions[-1].body),
            etag=versions[-1].etag,
            last_modified_ns=versions[-1].last_modified_ns,
        )
        for key, versions in sorted(standing.items(), key=lambda item: item[0].encode())
        if versions and versions[-1].body is not None
    ]


KEY = ObjectKey("agent=61/key")


class _Clock:
    """A clock that tests change."""

    def __init__(self) -> None:
        self.at_ns = 1_800_000_000 * NS_PER_S + 123

    def now_ns(self) -> UnixNs:
        return UnixNs(self.at_ns)

    def monotonic_ns(self) -> int:
        return self.at_ns

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def _bucket(clock: _Clock | None = None) -> MemoryBucket:
    return MemoryBucket(clock=clock or _Clock(), rng=random.Random(1))


async def test_marker_frees_the_key_for_a_create() -> None:
    """As on S3, and unlike versitygw 1.8.0, conditions apply to the current version only."""
    store, transport = open_memory_store()
    await store.create(KEY, b"old")
    await store.delete_current(KEY)
    assert isinstance(await store.head(KEY), NotFound)
    assert isinstance(await store.create(KEY, b"new"), Applied)
    rows = list(transport.bucket.incarnations("", ""))
    assert [(row.marker, row.current) for row in rows] == [
        (False, True),
        (True, False),
        (False, False),
    ]


async def test_head_of_a_marker_is_missing() -> None:
    store, transport = open_memory_store()
    await store.create(KEY, b"old")
    await store.delete_current(KEY)
    marker = next(row for row in transport.bucket.incarnations("", "") if row.marker)
    assert isinstance(await store.head_incarnation(KEY, marker.incarnation), NotFound)


@pytest.mark.parametrize("state", [Versioning.OFF, Versioning.SUSPENDED])
def test_without_versioning_there_is_one_null_version(state: Versioning) -> None:
    """Writes replace the version `null`, and what versioning wrote before stays."""
    bucket = _bucket()
    bucket.put("k", b"kept", {})
    bucket.versioning = state
    bucket.put("k", b"one", {})
    bucket.put("k", b"two", {})
    rows = list(bucket.incarnations("", ""))
    assert [row.incarnation == NULL_VERSION for row in rows] == [True, False]
    assert bucket.get("k", {}).body == b"two"


def test_copy_applies_the_condition_to_its_destination() -> None:
    """A copy to an existing key under `If-None-Match: *` is refused, unlike on test servers."""
    bucket = _bucket()
    bucket.put("from", b"x", {})
    assert bucket.copy("from", "to", {"If-None-Match": "*"}).status == 200
    assert bucket.copy("from", "to", {"If-None-Match": "*"}).status == 412
    assert bucket.copy("from", "to", {"If-Match": '"other"'}).status == 412
    assert bucket.copy("nothing", "to", {}).status == 404


def test_conditional_delete_applies_to_the_current_version() -> None:
    """A delete with a stale tag is refused; with the current one it adds a marker."""
    bucket = _bucket()
    assert bucket.delete("k", {"If-Match": "*"}).status == 404
    tag = bucket.put("k", b"x", {}).headers["ETag"]
    assert bucket.delete("k", {"If-Match": '"stale"'}).status == 412
    assert bucket.delete("k", {"If-Match": tag}).status == 204
    assert bucket.delete("k", {"If-Match": "*"}).status == 412


async def test_object_lock_refuses_the_delete_of_a_version() -> None:
    """A locked version stays until its time; a marker over it is allowed."""
    clock = _Clock()
    bucket = _bucket(clock)
    bucket.retention_ns = 60 * NS_PER_S
    store, _ = open_memory_store(bucket, clock=clock)
    made = await store.create(KEY, b"locked")
    assert made.incarnation is not None
    with pytest.raises(StoreDenied):
        await store.delete(KEY, made.incarnation)
    await store.delete_current(KEY)
    assert isinstance(await store.head_incarnation(KEY, made.incarnation), ObjectInfo)
    clock.at_ns += 61 * NS_PER_S
    await store.delete(KEY, made.incarnation)
    assert isinstance(await store.head_incarnation(KEY, made.incarnation), NotFound)


def test_equal_bytes_have_equal_tags() -> None:
    """Equal bytes have equal tags as on S3, so bodies of compare-and-swap must never repeat."""
    bucket = _bucket()
    first = bucket.put("k", b"A", {}).headers["ETag"]
    bucket.put("k", b"B", {})
    assert bucket.put("k", b"A", {}).headers["ETag"] == first
    assert bucket.put("k", b"C", {"If-Match": first}).status == 200


def test_events_are_delivered_at_least_once_in_any_order() -> None:
    """Every change has an event, some two, in any order, with URL-encoded keys."""
    bucket = _bucket()
    feed = EventFeed(bucket, random.Random(5))
    for number in range(60):
        bucket.put(f"agent=61/{number}", b"x", {})
    told: list[str] = []
    while batch := feed.deliver(7):
        for event in batch:
            described = event["s3"]
            assert isinstance(described, dict)
            told.append(unquote_plus(described["object"]["key"]))
    assert set(told) == {f"agent=61/{number}" for number in range(60)}
    assert len(told) > 60
    assert told != sorted(told)


def test_inventory_lags() -> None:
    """An inventory does not list objects written since, and lists objects deleted since."""
    clock = _Clock()
    bucket = _bucket(clock)
    old = bucket.put("old", b"x", {}).headers["x-amz-version-id"]
    as_of = bucket.now_ns()
    clock.at_ns += 5 * NS_PER_S
    bucket.delete("old", {}, old)
    bucket.put("new", b"x", {})
    assert [row.key for row in read_inventory(bucket, as_of)] == ["old"]
    assert [row.key for row in read_inventory(bucket, bucket.now_ns())] == ["new"]


async def test_clock_jump_moves_the_dates() -> None:
    """The store's clock may move back under a plan, and the responses show it."""
    store, _ = open_memory_store(plan=Scripted({1: Fault.CLOCK_JUMP}), clock=_Clock())
    before = (await store.head(KEY)).date_ns
    assert (await store.head(KEY)).date_ns == before - 90 * NS_PER_S


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
async def test_crash_passes_every_handler(fault: Fault) -> None:
    """A crash is no `Exception`; another process reads what was applied."""
    bucket = _bucket()
    dying, _ = open_memory_store(bucket, plan=Scripted({0: fault}))
    living, _ = open_memory_store(bucket)
    with pytest.raises(Crashed):
        await dying.create(KEY, b"x")
    seen = await living.create(KEY, b"y")
    assert isinstance(seen, Exists if fault is Fault.CRASH_AFTER else Applied)


def test_seed_replays() -> None:
    def ids() -> list[str]:
        bucket = _bucket()
        return [bucket.put("k", b"x", {}).headers["x-amz-version-id"] for _ in range(5)]

    assert ids() == ids()
