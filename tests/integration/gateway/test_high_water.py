"""High-water marks, from the header of an upload to the record in the store."""

from pathlib import Path

from support.gateway import Running, TestKey, frame_of, identity, running

from sluice_protocol.keys import high_water_key
from sluice_protocol.manifests import HighWaterMark, decode_record
from sluice_protocol.outcomes import Found
from sluice_store.port import ObjectStore

HOST = TestKey("host-1", ("host-1",))
KEY = high_water_key("host-1", "b1")


async def stored(store: ObjectStore) -> int | None:
    read = await store.get(KEY)
    return decode_record(KEY, read.body, HighWaterMark).seq_end if isinstance(read, Found) else None


async def upload(served: Running, seq: int, high_water: str) -> int:
    frame = frame_of(identity(seq=seq))
    return (await served.client.upload(frame, Sluice_High_Water=high_water)).status


async def test_a_mark_beyond_its_batch_is_written_by_a_flush(tmp_path: Path) -> None:
    """An upload makes no store call for its mark; a flush writes the highest mark once."""
    async with running(tmp_path, HOST) as served:
        marks, store = served.gateway.uploads.high_water, served.store.inner
        assert [await upload(served, 0, "7"), await upload(served, 1, "9")] == [200, 200]
        assert await upload(served, 0, "8") == 200
        assert await stored(store) is None
        assert (len(marks), await marks.flush(), await marks.flush()) == (1, 1, 0)
        assert await stored(store) == 9


async def test_a_mark_that_the_batch_reaches_or_that_is_malformed_is_not_written(
    tmp_path: Path,
) -> None:
    """An agent without a backlog causes no write; a malformed header is ignored."""
    async with running(tmp_path, HOST) as served:
        marks = served.gateway.uploads.high_water
        assert await upload(served, 0, "3") == 200
        assert await upload(served, 3, "3") == 200
        assert await upload(served, 4, "-5") == 200
        assert (len(marks), await marks.flush()) == (0, 0)
