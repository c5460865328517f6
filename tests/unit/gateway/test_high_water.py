"""High-water marks in memory and in a store, without uploads."""

import asyncio

import pytest
from support.gateway import CountingStore, identity
from support.memory_bucket.transport import open_memory_store

from sluice_gateway.uploads.service import BOOTS_MAX, HighWaterMarks
from sluice_protocol.keys import high_water_key
from sluice_protocol.manifests import HighWaterMark, decode_record
from sluice_protocol.outcomes import Found, GetOutcome
from sluice_protocol.units import ObjectKey
from sluice_protocol.upload_http import parse_high_water
from sluice_store.port import ObjectStore

KEY = high_water_key("host-1", "b1")


async def stored(store: ObjectStore) -> int | None:
    read = await store.get(KEY)
    return decode_record(KEY, read.body, HighWaterMark).seq_end if isinstance(read, Found) else None


async def test_a_mark_never_falls_and_a_damaged_one_is_replaced() -> None:
    """The higher value of two workers is kept; a damaged record is written again."""
    store, _ = open_memory_store()
    one, two = HighWaterMarks(store), HighWaterMarks(store)
    one.note(identity(), 9)
    two.note(identity(), 5)
    assert (await one.flush(), await two.flush(), await stored(store)) == (1, 1, 9)
    two.note(identity(), 12)
    assert (await two.flush(), await stored(store)) == (1, 12)
    await store.overwrite(KEY, b"{broken")
    one.note(identity(), 13)
    assert (await one.flush(), await stored(store)) == (1, 13)


def test_a_mark_that_is_reached_during_a_flush_is_not_written() -> None:
    """Uploads are accepted while the store responds, also of boots that are yet to be written."""

    class AcceptingStore(CountingStore):
        async def get(
            self, key: ObjectKey, *, first: int = 0, last: int | None = None
        ) -> GetOutcome:
            for boot in ("b2", "b3"):
                marks.note(identity(seq=9, boot=boot), 9)
            return await super().get(key, first=first, last=last)

    store, _ = open_memory_store()
    marks = HighWaterMarks(AcceptingStore(store))
    for boot in ("b1", "b2", "b3"):
        marks.note(identity(boot=boot), 9)
    assert asyncio.run(marks.flush()) == 1
    assert len(marks) == 0


def test_marks_are_bounded() -> None:
    """The memory of marks is bounded, whatever number of boots an agent claims."""
    store, _ = open_memory_store()
    marks = HighWaterMarks(store)
    for number in range(BOOTS_MAX + 10):
        marks.note(identity(boot=f"b{number}"), 9)
    assert len(marks) == BOOTS_MAX


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("42", 42), (str(2**63 - 1), 2**63 - 1), (str(2**63), None), (None, None)]
    + [(bad, None) for bad in ("", "-1", "1.0", "\uff19", "1" * 400)],
)
def test_parse_high_water(text: str | None, number: int | None) -> None:
    assert parse_high_water(text) == number
