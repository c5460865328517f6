"""The conformance suite over each store, and the known deviations of each store from it.

Also here: a PUT whose second half arrives late, to measure what Last-Modified means on a server.

The tests assert every line of the table. A server that no longer deviates fails them too, so that
the table stays correct. `docs/store.md` contains it.
"""

import asyncio
import http.client
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import botocore.session
from botocore.config import Config
from support.store_versitygw import ACCESS, SECRET

from sluice_protocol.errors import StoreError
from sluice_protocol.outcomes import (
    Applied,
    Deleted,
    Exists,
    Found,
    Mismatch,
    NotFound,
    ObjectInfo,
)
from sluice_protocol.units import NS_PER_S, NULL_VERSION, ETag, ObjectKey
from sluice_store.conformance import (
    Check,
    Nonconforming,
    check_create_once,
    check_delete_spares_newer,
    check_delete_then_create,
    check_head_reports_checksum,
    check_replace,
    check_times,
    check_versioning,
    check_wrong_checksum,
    collect_incarnations,
    collect_keys,
    create_object,
    expect,
    expect_type,
    race_create,
    race_replace,
    read_found,
)
from sluice_store.doctor import DoctorResult
from sluice_store.port import NewObject, ObjectStore


async def increment(store: ObjectStore, key: ObjectKey, times: int, writer: str) -> int:
    """Add one to a counter `times` times by compare-and-swap; return the number of lost swaps.

    Every body contains the writer and its turn, so that no two states are equal and a read shows
    whether an unknown swap was applied.
    """
    lost = 0
    for turn in range(times):
        mark = f"{writer}.{turn}"
        while not await _swap_once(store, key, mark):
            lost += 1
    return lost


async def _swap_once(store: ObjectStore, key: ObjectKey, mark: str) -> bool:
    read = expect_type("the counter is readable", await store.get(key), Found)
    count, *marks = read.body.decode().split(" ")
    if mark in marks:
        return True  # an earlier try with an unknown outcome was applied
    body = " ".join([str(int(count) + 1), *marks, mark]).encode()
    return isinstance(await store.replace(key, body, if_match=read.info.etag), Applied)


async def read_counter(store: ObjectStore, key: ObjectKey) -> int:
    """Return the value of a counter that `increment` changes."""
    read = expect_type("the counter is readable", await store.get(key), Found)
    return int(read.body.split(b" ", 1)[0])


MANY: Final = 20

RACERS: Final = 64

RACE_ROUNDS: Final = 3

COUNTER_WRITERS: Final = 8

COUNTER_INCREMENTS: Final = 10

LISTED: Final = 1003
"""More than one page of S3."""

ODD_NAMES: Final = (
    *("a b", "a+b", "a%2Fb", "a%", "a?b#c", "a=b&c;d", "a<b>\"'", "~!*'()", "é/ü", "日本", "🙂"),
)


async def check_bodies_are_read_back_unchanged(store: ObjectStore, place: str) -> None:
    """Empty, binary and large bodies are read back byte for byte, with their size."""
    for name, body in (("empty", b""), ("binary", bytes(range(256))), ("large", b"\x00x" * 2**20)):
        await create_object(store, f"{place}{name}", body)
        read = await read_found(store, f"{place}{name}")
        expect("a body is read back unchanged", holds=read.body == body, seen=name)
        size = read.info.size_bytes
        expect("a read reports the size", holds=size == len(body), seen=size)


async def check_ranges(store: ObjectStore, place: str) -> None:
    """A ranged read includes both ends, ends with the object, and is empty past its end."""
    key = ObjectKey(f"{place}range")
    await create_object(store, key, b"0123456789")
    wanted = {(0, 3): b"0123", (4, 4): b"4", (8, 99): b"89", (4, None): b"456789", (10, 20): b""}
    for (first, last), body in wanted.items():
        read = await store.get(key, first=first, last=last)
        found = expect_type("a range of an object is readable", read, Found)
        expect("a range includes both ends", holds=found.body == body, seen=found.body)
        size = found.info.size_bytes
        expect(
            "a ranged read reports the size of the whole object",
            holds=size == len(b"0123456789"),
            seen=size,
        )


async def check_missing(store: ObjectStore, place: str) -> None:
    """A key that does not exist reads as not found, and the response has the store's time."""
    for read in (
        await store.get(ObjectKey(f"{place}no")),
        await store.head(ObjectKey(place + "n")),
    ):
        missing = expect_type("a key that does not exist is not found", read, NotFound)
        expect("a response has the store's time", holds=missing.date_ns > 0, seen=missing)


async def check_replace_missing(store: ObjectStore, place: str) -> None:
    """A replace of a key that does not exist reports `Mismatch` and creates nothing."""
    key, other = ObjectKey(f"{place}absent"), ObjectKey(f"{place}other")
    tag = (await create_object(store, other, b"x")).etag
    outcome = await store.replace(key, b"y", if_match=tag)
    expect_type("a replace of a key that does not exist reports `Mismatch`", outcome, Mismatch)
    expect_type("and creates nothing", await store.head(key), NotFound)


async def check_overwrite_keeps_old(store: ObjectStore, place: str) -> None:
    """An overwrite creates a new object version; the old one stays, noncurrent, with its size."""
    key = ObjectKey(f"{place}over")
    old = await create_object(store, key, b"old")
    new = expect_type("overwrite applies", await store.overwrite(key, b"newer"), Applied)
    read = await read_found(store, key)
    expect("the new bytes are current", holds=read.body == b"newer", seen=read.body)
    listed = await collect_incarnations(store, key)
    states = [(one.incarnation, one.current, one.size_bytes) for one in listed]
    wanted = [(new.incarnation, True, 5), (old.incarnation, False, 3)]
    expect("both object versions are listed, newest first", holds=states == wanted, seen=states)
    for incarnation, size in ((new.incarnation, 5), (old.incarnation, 3)):
        info = await store.head_incarnation(key, incarnation or NULL_VERSION)
        exact = expect_type("an exact object version has a HEAD", info, ObjectInfo)
        expect("with the size of that version", holds=exact.size_bytes == size, seen=exact)


async def check_overwrite_free_key(store: ObjectStore, place: str) -> None:
    """An overwrite of a key that does not exist creates the object."""
    key = ObjectKey(f"{place}fresh")
    expect_type("overwrite applies", await store.overwrite(key, b"new"), Applied)
    read = await read_found(store, key)
    expect("its bytes are current", holds=read.body == b"new", seen=read.body)


async def check_list_after_write(store: ObjectStore, place: str) -> None:
    """A listing shows a write as soon as it was acknowledged, and no deleted object."""
    for i in range(10):
        written = await create_object(store, f"{place}seen/{i}", b"x")
        keys = [listed.key for listed in await collect_keys(store, f"{place}seen/")]
        fresh = keys == [f"{place}seen/{n}" for n in range(i + 1)]
        expect("a listing shows every acknowledged write", holds=fresh, seen=keys)
    await store.delete(ObjectKey(f"{place}seen/9"), written.incarnation or NULL_VERSION)
    count = len(await collect_keys(store, f"{place}seen/"))
    expect("a listing shows no deleted object", holds=count == 9, seen=count)


async def check_list_order(store: ObjectStore, place: str) -> None:
    """A listing is in the order of the keys' bytes and within its bounds: after, and up to."""
    names = ["a-", "a-b", "a/b", "a/b=c", "a/é", "a0", "b", "c/d/e"]
    for name in names:
        await create_object(store, f"{place}{name}", b"x")
    every = [listed.key for listed in await collect_keys(store, place)]
    wanted = sorted((f"{place}{name}" for name in names), key=str.encode)
    expect("a listing is in key order", holds=every == wanted, seen=every)
    bounded = await collect_keys(store, place, start_after=wanted[1], end_at=wanted[4])
    inside = [listed.key for listed in bounded]
    expect("a listing keeps its bounds", holds=inside == wanted[2:5], seen=inside)
    part = [listed.key for listed in await collect_keys(store, f"{place}a/")]
    under = [key for key in wanted if key.startswith(f"{place}a/")]
    expect("a listing keeps its prefix", holds=part == under, seen=part)


async def check_odd_keys(store: ObjectStore, place: str) -> None:
    """A key with spaces, marks, quotes or letters of any script names one object everywhere.

    URLs, XML and signatures encode such characters in different ways.
    """
    made = {
        key: await create_object(store, key, key.encode()) for key in map(place.__add__, ODD_NAMES)
    }
    for key in made:
        read = await read_found(store, key)
        expect("an odd key has its bytes", holds=read.body == key.encode(), seen=read.body)
    wanted = sorted(made, key=str.encode)
    keys = [listed.key for listed in await collect_keys(store, place)]
    expect("odd keys are listed", holds=keys == wanted, seen=keys)
    both = [one.key for one in await collect_incarnations(store, place)]
    expect("versions of odd keys are listed", holds=both == wanted, seen=both)
    for key, written in made.items():
        await store.delete(ObjectKey(key), written.incarnation or NULL_VERSION)
    left = await collect_incarnations(store, place)
    expect("versions of odd keys are deleted", holds=not left, seen=left)


async def check_key_below_key(store: ObjectStore, place: str) -> None:
    """A key may be below another key, as `x/y` is below `x`."""
    await create_object(store, f"{place}x", b"above")
    try:
        outcome: object = await store.create(ObjectKey(f"{place}x/y"), b"below")
    except StoreError as error:
        outcome = type(error).__name__
    expect_type("a key may be below another key", outcome, Applied)


async def check_list_nothing(store: ObjectStore, place: str) -> None:
    """An empty listing is one empty page with the store's time."""
    pages = [page async for page in store.list(f"{place}nothing/")]
    one = len(pages) == 1 and not pages[0].objects and pages[0].last and pages[0].date_ns > 0
    expect("an empty listing is one page with the store's time", holds=one, seen=pages)


async def check_list_pages(store: ObjectStore, place: str) -> None:
    """A listing longer than a page contains every key once; so does one of object versions."""
    gate = asyncio.Semaphore(32)

    async def put(i: int) -> None:
        async with gate:
            await create_object(store, f"{place}many/{i:05d}", b"x")

    await asyncio.gather(*(put(i) for i in range(LISTED)))
    wanted = [f"{place}many/{i:05d}" for i in range(LISTED)]
    keys = [str(listed.key) for listed in await collect_keys(store, f"{place}many/")]
    expect("every key is listed once, over the pages", holds=keys == wanted, seen=len(keys))
    both = [str(one.key) for one in await collect_incarnations(store, f"{place}many/")]
    expect(
        "every object version is listed once, over the pages", holds=both == wanted, seen=len(both)
    )


async def check_delete_restores_previous_version(store: ObjectStore, place: str) -> None:
    """Deleting the current object version makes the version before it current again."""
    key = ObjectKey(f"{place}back")
    await create_object(store, key, b"old")
    new = expect_type("overwrite applies", await store.overwrite(key, b"new"), Applied)
    await store.delete(key, new.incarnation or NULL_VERSION)
    read = await read_found(store, key)
    expect("the object version before is current again", holds=read.body == b"old", seen=read.body)


async def check_delete_absent(store: ObjectStore, place: str) -> None:
    """A delete of an object version that was already deleted succeeds."""
    key = ObjectKey(f"{place}gone")
    gone = (await create_object(store, key, b"x")).incarnation or NULL_VERSION
    await store.delete(key, gone)
    expect_type("a repeated delete succeeds", await store.delete(key, gone), Deleted)
    absent = await store.head_incarnation(key, gone)
    expect_type("a deleted object version is not found", absent, NotFound)


async def check_many(store: ObjectStore, place: str) -> None:
    """A call for many objects has the outcome of a call for each, in order."""
    new = [NewObject(key=ObjectKey(f"{place}many/{i}"), body=b"%d" % i) for i in range(MANY)]
    await create_object(store, new[0].key, b"old")
    for i, created in enumerate(await store.create_many(new)):
        expect_type("each object is created or exists", created, Applied if i else Exists)
    keys = [one.key for one in reversed(new)]
    absent = ObjectKey(f"{place}many/absent")
    *found, missing = await store.get_many([*keys, absent])
    bodies = [expect_type("each object is read", one, Found).body for one in found]
    wanted = [one.body for one in new[:0:-1]] + [b"old"]
    expect("bodies are in the order of their keys", holds=bodies == wanted, seen=bodies)
    expect_type("a missing object is not found", missing, NotFound)
    *heads, gone = await store.head_many([*keys, absent])
    expect("heads are too", holds=[getattr(one, "key", None) for one in heads] == keys, seen=heads)
    expect_type("a missing object has no metadata", gone, NotFound)


async def check_race_create(store: ObjectStore, place: str) -> None:
    """Of 64 concurrent creates of one key exactly one is applied."""
    for i in range(RACE_ROUNDS):
        await race_create([store], ObjectKey(f"{place}race/{i}"), RACERS)


async def check_race_replace(store: ObjectStore, place: str) -> None:
    """Of 64 concurrent replaces of one state exactly one is applied."""
    for i in range(RACE_ROUNDS):
        key = f"{place}swap/{i}"
        tag: ETag = (await create_object(store, key, b"start")).etag
        await race_replace([store], ObjectKey(key), tag, RACERS)


async def check_counter(store: ObjectStore, place: str) -> None:
    """A counter to which N writers add M each by compare-and-swap ends at N times M."""
    key = ObjectKey(f"{place}counter")
    await create_object(store, key, b"0")
    writers = (increment(store, key, COUNTER_INCREMENTS, f"w{i}") for i in range(COUNTER_WRITERS))
    await asyncio.gather(*writers)
    count = await read_counter(store, key)
    wanted = COUNTER_WRITERS * COUNTER_INCREMENTS
    expect("no increment is lost or applied twice", holds=count == wanted, seen=count)


CHECKS: Final[tuple[Check, ...]] = (
    check_create_once,
    check_bodies_are_read_back_unchanged,
    check_head_reports_checksum,
    check_wrong_checksum,
    check_ranges,
    check_missing,
    check_times,
    check_replace,
    check_replace_missing,
    check_overwrite_keeps_old,
    check_overwrite_free_key,
    check_list_after_write,
    check_list_order,
    check_odd_keys,
    check_key_below_key,
    check_list_nothing,
    check_list_pages,
    check_delete_spares_newer,
    check_delete_then_create,
    check_delete_restores_previous_version,
    check_delete_absent,
    check_versioning,
    check_many,
    check_race_create,
    check_race_replace,
    check_counter,
)
"""Every check, in a useful order for a new store."""


DELAY_S = 3.0
BODY = b"x" * 65536


def put_slowly(endpoint: str, bucket: str, key: str) -> tuple[int, int]:
    """Return when the last byte was sent, and when the server responded, Unix ns."""
    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=ACCESS,
        aws_secret_access_key=SECRET,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    url = urlsplit(client.generate_presigned_url("put_object", {"Bucket": bucket, "Key": key}))
    wire = http.client.HTTPConnection(url.netloc, timeout=30)
    try:
        wire.putrequest("PUT", f"{url.path}?{url.query}")
        wire.putheader("Content-Length", str(len(BODY)))
        wire.endheaders()
        wire.send(BODY[:32768])
        time.sleep(DELAY_S)
        wire.send(BODY[32768:])
        sent_ns = time.time_ns()
        answer = wire.getresponse()
        answer.read()
        assert answer.status == http.client.OK, answer.status
        return sent_ns, time.time_ns()
    finally:
        wire.close()


def assert_dated_when_complete(last_modified_ns: int, sent_ns: int, responded_ns: int) -> None:
    """Assert that the object is dated by its application, to the second, not by its arrival."""
    assert sent_ns // NS_PER_S * NS_PER_S <= last_modified_ns <= responded_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A promise that a server does not keep.

    Attributes:
        check: The conformance check that fails.
        promise: The promise in the failure.
        seen: Text in the failure's `seen`.
        effect: The consequence for sluice.
        always: Whether it fails in every run; a race fails only sometimes.
    """

    check: str
    promise: str
    seen: str
    effect: str
    always: bool = True


LOCAL: Final = (
    Deviation(
        check="check_key_below_key",
        promise="a key may be below another key",
        seen="StoreMisconfigured",
        effect="none: no key of the layout is the folder of another",
    ),
)

VERSITYGW: Final = (
    Deviation(
        check="check_key_below_key",
        promise="a key may be below another key",
        seen="ObjectParentIsFile",
        effect="none: no key of the layout is the folder of another",
    ),
)

MOTO: Final = (
    Deviation(
        check="check_head_reports_checksum",
        promise="a HEAD reports the verified sha256",
        seen="None",
        effect="every existing blob is read and hashed, because a HEAD does not prove its bytes",
    ),
    Deviation(
        check="check_wrong_checksum",
        promise="a wrong checksum is refused",
        seen="Applied",
        effect=(
            "a body that was corrupted in transit would be stored: never use it as an authority"
        ),
    ),
    Deviation(
        check="check_counter",
        promise="no increment is lost or applied twice",
        seen="",
        effect="its check and its write are not under one lock: never use it as an authority",
        always=False,
    ),
    Deviation(
        check="check_race_replace",
        promise="exactly one of the racing conditional writes wins",
        seen="",
        effect="as above",
        always=False,
    ),
    Deviation(
        check="check_race_create",
        promise="exactly one of the racing conditional writes wins",
        seen="",
        effect="as above",
        always=False,
    ),
)

SEAWEEDFS: Final = (
    Deviation(
        check="check_list_order",
        promise="a listing is in key order",
        seen="place/a/é",
        effect=(
            "none: a versioned bucket is listed in the order of the encoded keys, and names of the"
            " layout differ only in letters, digits, `-` and `.`, whose order is the same"
        ),
    ),
    Deviation(
        check="check_odd_keys",
        promise="odd keys are listed",
        seen="place/é/ü",
        effect="as above",
    ),
)

KNOWN: Final[dict[str, tuple[Deviation, ...]]] = {
    "local": LOCAL,
    "memory": (),
    "memory over HTTP": (),
    "moto": MOTO,
    "seaweedfs": SEAWEEDFS,
    "versitygw": VERSITYGW,
}
"""Deviations by server, of the versions in `docs/store.md`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """What the doctor reports of a server.

    Attributes:
        always: The probes that fail in every run.
        sometimes: The probes of races that fail in some.
    """

    always: frozenset[str] = frozenset()
    sometimes: frozenset[str] = frozenset()


DOCTOR: Final = {
    "moto": Broken(
        always=frozenset({"checksum", "head-checksum"}),
        sometimes=frozenset({"race-create", "race-replace"}),
    ),
    "seaweedfs": Broken(),
    "versitygw": Broken(always=frozenset({"marker-create"})),
}
"""The probes of `sluice doctor` that report a broken promise of a bucket with versioning."""

MOTO_ALLOWS: Final = frozenset(
    {
        *("put-without-header", "console-overwrite-approval"),
        *("overwrite-registration", "overwrite-journal"),
        *("put-other-encryption", "put-unnamed-key", "gc-lock-blob"),
        *("copy-into-accepted", "copy-into-blobs", "copy-into-journals"),
    }
)
"""The probes of `sluice policies verify` that only the bucket policy denies.

moto evaluates no condition: under the bucket policy it denies every request, with a response that
is not the store's. So it is tested with the policies of the roles alone.
"""

MOTO_DEFAULT_RETENTION: Final = "MissingUploadObjectWithObjectLockHeaders"
"""The error of a PUT without `x-amz-sdk-checksum-algorithm` in a bucket with default retention.

S3 accepts any `x-amz-checksum-` header there, and the adapter sends one.
"""


def assert_doctor(server: str, result: DoctorResult) -> None:
    """Check that the doctor found exactly the known deviations of a server."""
    broken = {one.probe for one in result.findings if not one.kept}
    known = DOCTOR[server]
    assert known.always <= broken <= known.always | known.sometimes


async def assert_conforms(server: str, check: Check, store: ObjectStore, place: str) -> None:
    """Run the check; where the table has a deviation, exactly that one must occur."""
    known = next((one for one in KNOWN.get(server, ()) if one.check == check.__name__), None)
    if known is None:
        await check(store, place)
        return
    failure: Nonconforming | None = None
    try:
        await check(store, place)
    except Nonconforming as error:
        failure = error
    if failure is None:
        assert not known.always, f"{server} deviates no longer: take the line out of the table"
        return
    assert failure.promise == known.promise
    assert known.seen in failure.seen
