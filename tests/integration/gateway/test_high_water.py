"""What agents say they have made, from the header to the record in the store."""

from pathlib import Path

import pytest
from support.gateway import Running, TestKey, frame_of, identity, run, running

from sluice_gateway.high_water import BOOTS_MAX, HighWaterMarks
from sluice_protocol.keys import high_water_key
from sluice_protocol.manifests import HighWaterMark, decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.upload_http import parse_high_water
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore

HOST = TestKey("host-1", ("host-1",))
KEY = high_water_key("host-1", "b1")


async def stored(store: ObjectStore) -> int | None:
    read = await store.get(KEY)
    return decode_record(KEY, read.body, HighWaterMark).seq_end if isinstance(read, Found) else None


async def upload(served: Running, seq: int, high_water: str) -> int:
    frame = frame_of(identity(seq=seq))
    return (await served.client.upload(frame, Sluice_High_Water=high_water)).status


def test_mark_beyond_the_batch_is_written_beside_the_uploads(tmp_path: Path) -> None:
    """No store call of the upload is for the mark; a flush writes the highest of them once."""

    async def body() -> None:
        async with running(tmp_path, HOST) as served:
            marks, store = served.gateway.uploads.high_water, served.store.inner
            assert [await upload(served, 0, "7"), await upload(served, 1, "9")] == [200, 200]
            assert await upload(served, 0, "8") == 200
            assert await stored(store) is None
            assert (len(marks), await marks.flush(), await marks.flush()) == (1, 1, 0)
            assert await stored(store) == 9

    run(body())


def test_mark_that_the_batches_show_or_that_is_none_is_not_written(tmp_path: Path) -> None:
    """An agent that is up to date costs no write; a header of another form is ignored."""

    async def body() -> None:
        async with running(tmp_path, HOST) as served:
            marks = served.gateway.uploads.high_water
            assert await upload(served, 0, "3") == 200
            assert await upload(served, 3, "3") == 200
            assert await upload(served, 4, "-5") == 200
            assert (len(marks), await marks.flush()) == (0, 0)

    run(body())


def test_mark_never_falls_and_heals(tmp_path: Path) -> None:
    """Of two workers the higher value stands; a broken record is written anew."""

    async def body() -> None:
        async with open_local_store(tmp_path) as store:
            one, two = HighWaterMarks(store), HighWaterMarks(store)
            one.note(identity(), 9)
            two.note(identity(), 5)
            assert (await one.flush(), await two.flush(), await stored(store)) == (1, 1, 9)
            two.note(identity(), 12)
            assert (await two.flush(), await stored(store)) == (1, 12)
            await store.overwrite(KEY, b"{broken")
            one.note(identity(), 13)
            assert (await one.flush(), await stored(store)) == (1, 13)

    run(body())


def test_marks_are_bounded(tmp_path: Path) -> None:
    """However many lives an agent claims, the memory of marks ends."""

    async def body() -> None:
        async with open_local_store(tmp_path) as store:
            marks = HighWaterMarks(store)
            for number in range(BOOTS_MAX + 10):
                marks.note(identity(boot=f"b{number}"), 9)
            assert len(marks) == BOOTS_MAX

    run(body())


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("42", 42), (str(2**63 - 1), 2**63 - 1), (str(2**63), None), (None, None)]
    + [(bad, None) for bad in ("", "-1", "1.0", "\uff19", "1" * 400)],
)
def test_parse_high_water(text: str | None, number: int | None) -> None:
    assert parse_high_water(text) == number
