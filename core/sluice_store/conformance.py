"""The conformance suite: the promises that every adapter and every server behind it must keep.

The checks are plain async functions over any store. Each uses a separate prefix that ends in a
slash, and raises `Nonconforming`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from sluice_protocol.authority import SKEW_S_MAX
from sluice_protocol.errors import ChecksumRefused, StoreError
from sluice_protocol.keys import digest_of
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
from sluice_store.checks import (
    expect,
    expect_type,
    increment,
    race_create,
    race_replace,
    read_counter,
)
from sluice_store.port import ListedIncarnation, ListedObject, NewObject, ObjectStore, Versioning

Check = Callable[[ObjectStore, str], Awaitable[None]]

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


async def _create(store: ObjectStore, key: str, body: bytes) -> Applied:
    outcome = await store.create(ObjectKey(key), body)
    return expect_type("a create of a new key is applied", outcome, Applied)


async def _read(store: ObjectStore, key: str) -> Found:
    return expect_type("an object is readable", await store.get(ObjectKey(key)), Found)


async def _info(store: ObjectStore, key: str) -> ObjectInfo:
    return expect_type("a HEAD finds an object", await store.head(ObjectKey(key)), ObjectInfo)


async def check_create_once(store: ObjectStore, place: str) -> None:
    """The first create is applied; the second reports `Exists` and changes nothing."""
    await _create(store, f"{place}once", b"first")
    again = await store.create(ObjectKey(f"{place}once"), b"second")
    expect_type("a create on an existing key reports `Exists`", again, Exists)
    read = await _read(store, f"{place}once")
    expect("a refused create changes nothing", holds=read.body == b"first", seen=read.body)


async def check_bodies_are_read_back_unchanged(store: ObjectStore, place: str) -> None:
    """Empty, binary and large bodies are read back byte for byte, with their size."""
    for name, body in (("empty", b""), ("binary", bytes(range(256))), ("large", b"\x00x" * 2**20)):
        await _create(store, f"{place}{name}", body)
        read = await _read(store, f"{place}{name}")
        expect("a body is read back unchanged", holds=read.body == body, seen=name)
        size = read.info.size_bytes
        expect("a read reports the size", holds=size == len(body), seen=size)


async def check_head_reports_checksum(store: ObjectStore, place: str) -> None:
    """A HEAD reports size, tag, object version and the sha256 that was verified at upload."""
    written = await _create(store, f"{place}head", b"checked")
    info = await _info(store, f"{place}head")
    expect("a HEAD reports the size", holds=info.size_bytes == len(b"checked"), seen=info)
    expect("a HEAD reports the tag of the write", holds=info.etag == written.etag, seen=info)
    same = info.incarnation == written.incarnation
    expect("a HEAD reports the object version of the write", holds=same, seen=info)
    known = info.sha256 == digest_of(b"checked")
    expect("a HEAD reports the verified sha256", holds=known, seen=info.sha256)


async def check_wrong_checksum(store: ObjectStore, place: str) -> None:
    """A body that does not match its sha256 is refused and not stored."""
    key = ObjectKey(f"{place}wrong")
    try:
        outcome = await store.create(key, b"body", sha256=digest_of(b"another"))
    except ChecksumRefused:
        outcome = None
    expect("a wrong checksum is refused", holds=outcome is None, seen=type(outcome).__name__)
    expect_type("a refused body is not stored", await store.head(key), NotFound)


async def check_ranges(store: ObjectStore, place: str) -> None:
    """A ranged read includes both ends, ends with the object, and is empty past its end."""
    key = ObjectKey(f"{place}range")
    await _create(store, key, b"0123456789")
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


async def check_times(store: ObjectStore, place: str) -> None:
    """Last-Modified is within the allowed skew of the Date of the response to the write."""
    written = await _create(store, f"{place}time", b"now")
    info = await _info(store, f"{place}time")
    skew_ns = abs(info.last_modified_ns - written.date_ns)
    expect("Last-Modified is near Date", holds=skew_ns <= SKEW_S_MAX * NS_PER_S, seen=skew_ns)
    expect("Date does not fall", holds=info.date_ns >= written.date_ns, seen=info.date_ns)


async def check_replace(store: ObjectStore, place: str) -> None:
    """A replace with the current tag is applied; one with a stale tag reports `Mismatch`."""
    key = ObjectKey(f"{place}register")
    first = await _create(store, key, b"one")
    swapped = await store.replace(key, b"two", if_match=first.etag)
    second = expect_type("a replace of the current state is applied", swapped, Applied)
    expect("a new state has a new tag", holds=second.etag != first.etag, seen=second.etag)
    stale = await store.replace(key, b"three", if_match=first.etag)
    expect_type("a replace of a stale state reports `Mismatch`", stale, Mismatch)
    read = await _read(store, key)
    expect("a refused replace changes nothing", holds=read.body == b"two", seen=read.body)
    expect("a read reports the tag", holds=read.info.etag == second.etag, seen=read.info.etag)


async def check_replace_missing(store: ObjectStore, place: str) -> None:
    """A replace of a key that does not exist reports `Mismatch` and creates nothing."""
    key, other = ObjectKey(f"{place}absent"), ObjectKey(f"{place}other")
    tag = (await _create(store, other, b"x")).etag
    outcome = await store.replace(key, b"y", if_match=tag)
    expect_type("a replace of a key that does not exist reports `Mismatch`", outcome, Mismatch)
    expect_type("and creates nothing", await store.head(key), NotFound)


async def check_overwrite_keeps_old(store: ObjectStore, place: str) -> None:
    """An overwrite creates a new object version; the old one stays, noncurrent, with its size."""
    key = ObjectKey(f"{place}over")
    old = await _create(store, key, b"old")
    new = expect_type("overwrite applies", await store.overwrite(key, b"newer"), Applied)
    read = await _read(store, key)
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
    read = await _read(store, key)
    expect("its bytes are current", holds=read.body == b"new", seen=read.body)


async def collect_keys(
    store: ObjectStore, prefix: str, *, start_after: str = "", end_at: str | None = None
) -> list[ListedObject]:
    """Return every listed object of all pages."""
    pages = store.list(prefix, start_after=start_after, end_at=end_at)
    return [listed async for page in pages for listed in page.objects]


async def collect_incarnations(store: ObjectStore, prefix: str) -> list[ListedIncarnation]:
    """Return every listed object version of all pages."""
    return [one async for page in store.list_incarnations(prefix) for one in page.incarnations]


async def check_list_after_write(store: ObjectStore, place: str) -> None:
    """A listing shows a write as soon as it was acknowledged, and no deleted object."""
    for i in range(10):
        written = await _create(store, f"{place}seen/{i}", b"x")
        keys = [listed.key for listed in await collect_keys(store, f"{place}seen/")]
        fresh = keys == [f"{place}seen/{n}" for n in range(i + 1)]
        expect("a listing shows every acknowledged write", holds=fresh, seen=keys)
    await store.delete(ObjectKey(f"{place}seen/9"), written.incarnation or NULL_VERSION)
    count = len(await collect_keys(store, f"{place}seen/"))
    expect("a listing shows no deleted object", holds=count == 9, seen=count)  # noqa: PLR2004


async def check_list_order(store: ObjectStore, place: str) -> None:
    """A listing is in the order of the keys' bytes and within its bounds: after, and up to."""
    names = ["a-", "a-b", "a/b", "a/b=c", "a/é", "a0", "b", "c/d/e"]
    for name in names:
        await _create(store, f"{place}{name}", b"x")
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
    made = {key: await _create(store, key, key.encode()) for key in map(place.__add__, ODD_NAMES)}
    for key in made:
        read = await _read(store, key)
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
    await _create(store, f"{place}x", b"above")
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
            await _create(store, f"{place}many/{i:05d}", b"x")

    await asyncio.gather(*(put(i) for i in range(LISTED)))
    wanted = [f"{place}many/{i:05d}" for i in range(LISTED)]
    keys = [str(listed.key) for listed in await collect_keys(store, f"{place}many/")]
    expect("every key is listed once, over the pages", holds=keys == wanted, seen=len(keys))
    both = [str(one.key) for one in await collect_incarnations(store, f"{place}many/")]
    expect(
        "every object version is listed once, over the pages", holds=both == wanted, seen=len(both)
    )


async def check_delete_spares_newer(store: ObjectStore, place: str) -> None:
    """A delete of an old object version keeps the newer one, however often it is repeated."""
    key = ObjectKey(f"{place}spared")
    old = (await _create(store, key, b"same")).incarnation
    await store.overwrite(key, b"same")
    for _ in range(2):
        outcome = await store.delete(key, old or NULL_VERSION)
        expect_type("a delete of an object version succeeds", outcome, Deleted)
    read = await _read(store, key)
    expect("the newer object version stays", holds=read.info.incarnation != old, seen=read.info)
    left = await collect_incarnations(store, key)
    expect("and is the only object version", holds=len(left) == 1 and left[0].current, seen=left)


async def check_delete_then_create(store: ObjectStore, place: str) -> None:
    """A key whose only version was deleted can be created again, and a late repeat keeps it."""
    key = ObjectKey(f"{place}again")
    old = (await _create(store, key, b"same")).incarnation or NULL_VERSION
    await store.delete(key, old)
    expect_type("a deleted object is not found", await store.get(key), NotFound)
    fresh = (await _create(store, key, b"same")).incarnation
    expect("a new object is a new object version", holds=fresh != old, seen=fresh)
    await store.delete(key, old)
    read = await _read(store, key)
    expect("a late repeated delete keeps it", holds=read.info.incarnation == fresh, seen=read.info)


async def check_delete_restores_previous_version(store: ObjectStore, place: str) -> None:
    """Deleting the current object version makes the version before it current again."""
    key = ObjectKey(f"{place}back")
    await _create(store, key, b"old")
    new = expect_type("overwrite applies", await store.overwrite(key, b"new"), Applied)
    await store.delete(key, new.incarnation or NULL_VERSION)
    read = await _read(store, key)
    expect("the object version before is current again", holds=read.body == b"old", seen=read.body)


async def check_delete_absent(store: ObjectStore, place: str) -> None:
    """A delete of an object version that was already deleted succeeds."""
    key = ObjectKey(f"{place}gone")
    gone = (await _create(store, key, b"x")).incarnation or NULL_VERSION
    await store.delete(key, gone)
    expect_type("a repeated delete succeeds", await store.delete(key, gone), Deleted)
    absent = await store.head_incarnation(key, gone)
    expect_type("a deleted object version is not found", absent, NotFound)


async def check_versioning(store: ObjectStore, place: str) -> None:
    """Versioning reads `Enabled`, and a write has an object version that is not `null`."""
    state = await store.read_versioning()
    expect("versioning is Enabled", holds=state is Versioning.ENABLED, seen=state)
    written = await _create(store, f"{place}versioned", b"x")
    real = written.incarnation not in {None, NULL_VERSION}
    expect("a write has an object version", holds=real, seen=written.incarnation)


async def check_many(store: ObjectStore, place: str) -> None:
    """A call for many objects has the outcome of a call for each, in order."""
    new = [NewObject(key=ObjectKey(f"{place}many/{i}"), body=b"%d" % i) for i in range(MANY)]
    await _create(store, new[0].key, b"old")
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
        tag: ETag = (await _create(store, key, b"start")).etag
        await race_replace([store], ObjectKey(key), tag, RACERS)


async def check_counter(store: ObjectStore, place: str) -> None:
    """A counter to which N writers add M each by compare-and-swap ends at N times M."""
    key = ObjectKey(f"{place}counter")
    await _create(store, key, b"0")
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
