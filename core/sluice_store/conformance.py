"""The conformance suite: what every adapter and every server behind one must do.

Plain async functions over any store; each takes a place of its own, a prefix that ends in a slash.
They raise `Nonconforming`. A server that is known to deviate is asserted to deviate in the stated
way: see `sluice_store.deviations`.
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
from sluice_store.port import ListedIncarnation, ListedObject, ObjectStore, Versioning

Check = Callable[[ObjectStore, str], Awaitable[None]]

RACERS: Final = 64
RACE_ROUNDS: Final = 3
COUNTER_WRITERS: Final = 8
COUNTER_INCREMENTS: Final = 10
LISTED: Final = 1003
"""More than one page of S3."""


async def _create(store: ObjectStore, key: str, body: bytes) -> Applied:
    outcome = await store.create(ObjectKey(key), body)
    return expect_type("a create on a free key is applied", outcome, Applied)


async def _read(store: ObjectStore, key: str) -> Found:
    return expect_type("an object is readable", await store.get(ObjectKey(key)), Found)


async def _info(store: ObjectStore, key: str) -> ObjectInfo:
    return expect_type("a HEAD finds an object", await store.head(ObjectKey(key)), ObjectInfo)


async def check_create_once(store: ObjectStore, place: str) -> None:
    """The first create is applied, the second meets it, and the first bytes stay."""
    await _create(store, f"{place}once", b"first")
    again = await store.create(ObjectKey(f"{place}once"), b"second")
    expect_type("a create on a taken key says that it exists", again, Exists)
    read = await _read(store, f"{place}once")
    expect("a refused create changes nothing", holds=read.body == b"first", seen=read.body)


async def check_bodies_come_back(store: ObjectStore, place: str) -> None:
    """Empty, binary and large bodies are read back byte for byte, with their size and sha256."""
    for name, body in (("empty", b""), ("binary", bytes(range(256))), ("large", b"\x00x" * 2**20)):
        await _create(store, f"{place}{name}", body)
        read = await _read(store, f"{place}{name}")
        expect("a body comes back as it went", holds=read.body == body, seen=name)
        size = read.info.size_bytes
        expect("a read tells the size", holds=size == len(body), seen=size)


async def check_head_tells_checksum(store: ObjectStore, place: str) -> None:
    """A HEAD tells size, tag, incarnation and the sha256 that was verified at upload."""
    written = await _create(store, f"{place}head", b"checked")
    info = await _info(store, f"{place}head")
    expect("a HEAD tells the size", holds=info.size_bytes == len(b"checked"), seen=info)
    expect("a HEAD tells the tag of the write", holds=info.etag == written.etag, seen=info)
    same = info.incarnation == written.incarnation
    expect("a HEAD tells the incarnation of the write", holds=same, seen=info)
    known = info.sha256 == digest_of(b"checked")
    expect("a HEAD tells the verified sha256", holds=known, seen=info.sha256)


async def check_wrong_checksum(store: ObjectStore, place: str) -> None:
    """A body that does not match its sha256 is refused, and nothing stands."""
    key = ObjectKey(f"{place}wrong")
    try:
        outcome = await store.create(key, b"body", sha256=digest_of(b"another"))
    except ChecksumRefused:
        outcome = None
    expect("a wrong checksum is refused", holds=outcome is None, seen=type(outcome).__name__)
    expect_type("a refused body is not stored", await store.head(key), NotFound)


async def check_ranges(store: ObjectStore, place: str) -> None:
    """A ranged read gives both ends, cut at the end of the object; past it there is nothing."""
    key = ObjectKey(f"{place}range")
    await _create(store, key, b"0123456789")
    wanted = {(0, 3): b"0123", (4, 4): b"4", (8, 99): b"89", (4, None): b"456789", (10, 20): b""}
    for (first, last), body in wanted.items():
        read = await store.get(key, first=first, last=last)
        found = expect_type("a range of an object is readable", read, Found)
        expect("a range is both ends inclusive", holds=found.body == body, seen=found.body)
        size = found.info.size_bytes
        expect("a range tells the whole size", holds=size == len(b"0123456789"), seen=size)


async def check_missing(store: ObjectStore, place: str) -> None:
    """A free key reads as missing, and the answer carries the store's time."""
    for read in (
        await store.get(ObjectKey(f"{place}no")),
        await store.head(ObjectKey(place + "n")),
    ):
        missing = expect_type("a free key is missing", read, NotFound)
        expect("an answer carries the store's time", holds=missing.date_ns > 0, seen=missing)


async def check_times(store: ObjectStore, place: str) -> None:
    """Last-Modified lies within the allowed skew of the Date of the answer that wrote it."""
    written = await _create(store, f"{place}time", b"now")
    info = await _info(store, f"{place}time")
    skew_ns = abs(info.last_modified_ns - written.date_ns)
    expect("Last-Modified is near Date", holds=skew_ns <= SKEW_S_MAX * NS_PER_S, seen=skew_ns)
    expect("Date does not fall", holds=info.date_ns >= written.date_ns, seen=info.date_ns)


async def check_replace(store: ObjectStore, place: str) -> None:
    """A replace with the right tag is applied, with a stale one it meets another state."""
    key = ObjectKey(f"{place}register")
    first = await _create(store, key, b"one")
    swapped = await store.replace(key, b"two", if_match=first.etag)
    second = expect_type("a replace of the right state is applied", swapped, Applied)
    expect("a new state has a new tag", holds=second.etag != first.etag, seen=second.etag)
    stale = await store.replace(key, b"three", if_match=first.etag)
    expect_type("a replace of a stale state mismatches", stale, Mismatch)
    read = await _read(store, key)
    expect("a refused replace changes nothing", holds=read.body == b"two", seen=read.body)
    expect("a read tells the tag", holds=read.info.etag == second.etag, seen=read.info.etag)


async def check_replace_missing(store: ObjectStore, place: str) -> None:
    """A replace on a free key mismatches and makes nothing."""
    key, other = ObjectKey(f"{place}absent"), ObjectKey(f"{place}other")
    tag = (await _create(store, other, b"x")).etag
    outcome = await store.replace(key, b"y", if_match=tag)
    expect_type("a replace on a free key mismatches", outcome, Mismatch)
    expect_type("and makes nothing", await store.head(key), NotFound)


async def check_overwrite_keeps_old(store: ObjectStore, place: str) -> None:
    """An overwrite makes a new incarnation, and the old one stays, noncurrent, with its size."""
    key = ObjectKey(f"{place}over")
    old = await _create(store, key, b"old")
    new = expect_type("overwrite applies", await store.overwrite(key, b"newer"), Applied)
    read = await _read(store, key)
    expect("the new bytes are current", holds=read.body == b"newer", seen=read.body)
    listed = await collect_incarnations(store, key)
    states = [(one.incarnation, one.current, one.size_bytes) for one in listed]
    wanted = [(new.incarnation, True, 5), (old.incarnation, False, 3)]
    expect("both incarnations are listed, newest first", holds=states == wanted, seen=states)
    for incarnation, size in ((new.incarnation, 5), (old.incarnation, 3)):
        info = await store.head_incarnation(key, incarnation or NULL_VERSION)
        exact = expect_type("an exact incarnation has a HEAD", info, ObjectInfo)
        expect("of its own size", holds=exact.size_bytes == size, seen=exact)


async def check_overwrite_free_key(store: ObjectStore, place: str) -> None:
    """An overwrite on a free key makes the object."""
    key = ObjectKey(f"{place}fresh")
    expect_type("overwrite applies", await store.overwrite(key, b"new"), Applied)
    read = await _read(store, key)
    expect("its bytes are current", holds=read.body == b"new", seen=read.body)


async def collect_keys(
    store: ObjectStore, prefix: str, *, start_after: str = "", end_at: str | None = None
) -> list[ListedObject]:
    """Gives every listed object of all pages."""
    pages = store.list(prefix, start_after=start_after, end_at=end_at)
    return [listed async for page in pages for listed in page.objects]


async def collect_incarnations(store: ObjectStore, prefix: str) -> list[ListedIncarnation]:
    """Gives every listed incarnation of all pages."""
    return [one async for page in store.list_incarnations(prefix) for one in page.incarnations]


async def check_list_after_write(store: ObjectStore, place: str) -> None:
    """A listing shows a write as soon as it was answered, and no longer what was deleted."""
    for i in range(10):
        written = await _create(store, f"{place}seen/{i}", b"x")
        keys = [listed.key for listed in await collect_keys(store, f"{place}seen/")]
        fresh = keys == [f"{place}seen/{n}" for n in range(i + 1)]
        expect("a listing shows every answered write", holds=fresh, seen=keys)
    await store.delete(ObjectKey(f"{place}seen/9"), written.incarnation or NULL_VERSION)
    count = len(await collect_keys(store, f"{place}seen/"))
    expect("a listing shows no deleted object", holds=count == 9, seen=count)  # noqa: PLR2004


async def check_list_order(store: ObjectStore, place: str) -> None:
    """A listing is in the order of the keys' bytes and keeps its bounds: after, and up to."""
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


async def check_key_below_key(store: ObjectStore, place: str) -> None:
    """A key may stand below another key, as `x/y` below `x`."""
    await _create(store, f"{place}x", b"above")
    try:
        outcome: object = await store.create(ObjectKey(f"{place}x/y"), b"below")
    except StoreError as error:
        outcome = type(error).__name__
    expect_type("a key may stand below another key", outcome, Applied)


async def check_list_nothing(store: ObjectStore, place: str) -> None:
    """A listing of nothing is one empty page with the store's time."""
    pages = [page async for page in store.list(f"{place}nothing/")]
    one = len(pages) == 1 and not pages[0].objects and pages[0].last and pages[0].date_ns > 0
    expect("an empty listing is one page that carries the time", holds=one, seen=pages)


async def check_list_pages(store: ObjectStore, place: str) -> None:
    """A listing longer than a page gives every key once, also of incarnations."""
    gate = asyncio.Semaphore(32)

    async def put(i: int) -> None:
        async with gate:
            await _create(store, f"{place}many/{i:05d}", b"x")

    await asyncio.gather(*(put(i) for i in range(LISTED)))
    wanted = [f"{place}many/{i:05d}" for i in range(LISTED)]
    keys = [str(listed.key) for listed in await collect_keys(store, f"{place}many/")]
    expect("every key comes once, over the pages", holds=keys == wanted, seen=len(keys))
    both = [str(one.key) for one in await collect_incarnations(store, f"{place}many/")]
    expect("every incarnation comes once, over the pages", holds=both == wanted, seen=len(both))


async def check_delete_spares_newer(store: ObjectStore, place: str) -> None:
    """A delete of an old incarnation spares the newer one, however often it comes."""
    key = ObjectKey(f"{place}spared")
    old = (await _create(store, key, b"same")).incarnation
    await store.overwrite(key, b"same")
    for _ in range(2):
        outcome = await store.delete(key, old or NULL_VERSION)
        expect_type("a delete of an incarnation ends in its absence", outcome, Deleted)
    read = await _read(store, key)
    expect("the newer incarnation stays", holds=read.info.incarnation != old, seen=read.info)
    left = await collect_incarnations(store, key)
    expect("and is the only one", holds=len(left) == 1 and left[0].current, seen=left)


async def check_delete_then_create(store: ObjectStore, place: str) -> None:
    """A key whose one incarnation was deleted is free; a late repeat spares what came after."""
    key = ObjectKey(f"{place}again")
    old = (await _create(store, key, b"same")).incarnation or NULL_VERSION
    await store.delete(key, old)
    expect_type("a deleted object is missing", await store.get(key), NotFound)
    fresh = (await _create(store, key, b"same")).incarnation
    expect("a new object is a new incarnation", holds=fresh != old, seen=fresh)
    await store.delete(key, old)
    read = await _read(store, key)
    expect("a late repeated delete spares it", holds=read.info.incarnation == fresh, seen=read.info)


async def check_delete_brings_back(store: ObjectStore, place: str) -> None:
    """A delete of the current incarnation makes the one before it current again."""
    key = ObjectKey(f"{place}back")
    await _create(store, key, b"old")
    new = expect_type("overwrite applies", await store.overwrite(key, b"new"), Applied)
    await store.delete(key, new.incarnation or NULL_VERSION)
    read = await _read(store, key)
    expect("the one before is current again", holds=read.body == b"old", seen=read.body)


async def check_delete_absent(store: ObjectStore, place: str) -> None:
    """A delete of an incarnation that is gone ends well: it is gone."""
    key = ObjectKey(f"{place}gone")
    gone = (await _create(store, key, b"x")).incarnation or NULL_VERSION
    await store.delete(key, gone)
    expect_type("a repeated delete is no error", await store.delete(key, gone), Deleted)
    absent = await store.head_incarnation(key, gone)
    expect_type("a deleted incarnation is missing", absent, NotFound)


async def check_versioning(store: ObjectStore, place: str) -> None:
    """Versioning reads `Enabled`, and a write has an incarnation that is not `null`."""
    state = await store.read_versioning()
    expect("versioning is Enabled", holds=state is Versioning.ENABLED, seen=state)
    written = await _create(store, f"{place}versioned", b"x")
    real = written.incarnation not in {None, NULL_VERSION}
    expect("a write has an incarnation", holds=real, seen=written.incarnation)


async def check_race_create(store: ObjectStore, place: str) -> None:
    """Of 64 creates of one key at once exactly one is applied."""
    for i in range(RACE_ROUNDS):
        await race_create([store], ObjectKey(f"{place}race/{i}"), RACERS)


async def check_race_replace(store: ObjectStore, place: str) -> None:
    """Of 64 replaces of one state at once exactly one is applied."""
    for i in range(RACE_ROUNDS):
        key = f"{place}swap/{i}"
        tag: ETag = (await _create(store, key, b"start")).etag
        await race_replace([store], ObjectKey(key), tag, RACERS)


async def check_counter(store: ObjectStore, place: str) -> None:
    """N writers that add M each by compare-and-swap end at exactly N times M."""
    key = ObjectKey(f"{place}counter")
    await _create(store, key, b"0")
    writers = (increment(store, key, COUNTER_INCREMENTS, f"w{i}") for i in range(COUNTER_WRITERS))
    await asyncio.gather(*writers)
    count = await read_counter(store, key)
    wanted = COUNTER_WRITERS * COUNTER_INCREMENTS
    expect("no increment is lost or doubled", holds=count == wanted, seen=count)


CHECKS: Final[tuple[Check, ...]] = (
    check_create_once,
    check_bodies_come_back,
    check_head_tells_checksum,
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
    check_key_below_key,
    check_list_nothing,
    check_list_pages,
    check_delete_spares_newer,
    check_delete_then_create,
    check_delete_brings_back,
    check_delete_absent,
    check_versioning,
    check_race_create,
    check_race_replace,
    check_counter,
)
"""Every check, in the order of a first look at a store."""
