"""Every delete in one read: the pack changes how many requests it takes, not what is read."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.memory_bucket import MemoryBucket, open_memory_store
from support.memory_bucket.faults import Call

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import PACKED_DELETES
from sluice_protocol.manifests import encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.record_deletes import DeleteRecord, delete_key
from sluice_protocol.system_clock import SystemClock
from sluice_store import stored_deletes
from sluice_store.port import ObjectStore
from sluice_store.stored_deletes import (
    PACK_MIN,
    DeletesPack,
    PackedDelete,
    decode_pack,
    encode_pack,
    read_all_deletes,
    read_known_deletes,
)

STORED = (
    b'{"records":[{"body":"{}","etag":"\\"e\\"","key":"deletes/v1/x.json"}],'
    b'"schema":"sluice.packed_deletes.v1"}'
)


class Counts:
    """Counts the reads of delete records."""

    def __init__(self) -> None:
        self.reads = 0

    def fault_of(self, call: Call) -> None:
        self.reads += call.method == "GET" and str(call.key).startswith("deletes/")


def record(number: int) -> DeleteRecord:
    return DeleteRecord(
        delete_id=f"01{number:024d}",
        kind="logs",
        accepted_until_unix_ns=number,
        agent_id=f"agent-{number}",
    )


async def write(store: ObjectStore, numbers: range) -> None:
    for number in numbers:
        one = record(number)
        await store.create(delete_key(one.delete_id), encode_record(one))


def counted_store() -> tuple[ObjectStore, Counts]:
    counts = Counts()
    bucket = MemoryBucket(clock=SystemClock(), rng=random.Random(0))
    return open_memory_store(bucket, plan=counts)[0], counts


def test_the_stored_form_does_not_change() -> None:
    import zlib  # noqa: PLC0415 - only to state the form

    one = PackedDelete(key="deletes/v1/x.json", etag='"e"', body="{}")
    pack = DeletesPack(records=(one,))
    assert zlib.decompress(encode_pack(pack)) == STORED
    assert decode_pack(zlib.compress(STORED)) == pack


async def test_only_records_that_are_not_packed_are_read() -> None:
    store, counts = counted_store()
    await write(store, range(PACK_MIN + 5))
    wanted = await read_all_deletes(store)
    for reads in (PACK_MIN + 5, 0):
        counts.reads = 0
        assert await read_known_deletes(store) == wanted
        assert counts.reads == reads
    await write(store, range(1000, 1003))
    counts.reads = 0
    assert await read_known_deletes(store) == await read_all_deletes(store)
    assert counts.reads == 3 + PACK_MIN + 5 + 3


@given(seed=st.integers(0, 2**32))
def test_any_pack_gives_the_deletes_that_exist(seed: int) -> None:
    """A pack that is missing, damaged, of another store, or older than the deletes."""

    async def scene() -> None:
        store, _ = counted_store()
        rng = random.Random(seed)
        numbers = rng.sample(range(400), rng.choice([3, PACK_MIN, 150]))
        for number in numbers[: len(numbers) // 2]:
            await write(store, range(number, number + 1))
        await read_known_deletes(store)
        for number in numbers[len(numbers) // 2 :]:
            await write(store, range(number, number + 1))
        read = await store.get(PACKED_DELETES)
        packed = decode_pack(read.body).records if isinstance(read, Found) else ()
        foreign = PackedDelete(key=delete_key("01" + "Z" * 24), etag='"x"', body="{}")
        stale = tuple(PackedDelete(key=one.key, etag='"other"', body="{}") for one in packed[:5])
        body = encode_pack(DeletesPack(records=(foreign, *packed[5:], *stale)))
        await store.overwrite(PACKED_DELETES, rng.choice([body, b"damaged", body[:-3]]))
        assert await read_known_deletes(store) == await read_all_deletes(store)

    asyncio.run(scene())


async def test_a_damaged_delete_is_refused() -> None:
    store, _ = counted_store()
    await store.create(delete_key("01" + "A" * 24), b"\xff")
    with pytest.raises(InvalidRecord):
        await read_known_deletes(store)


async def test_records_are_read_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_deletes, "READ_TOGETHER", 7)
    store, _ = counted_store()
    await write(store, range(30))
    assert len(await read_known_deletes(store)) == 30
