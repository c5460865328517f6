"""Source ranges of rollups: their key, their bytes, and records of earlier versions."""

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from sluice_lake.delete_ids import DeleteIds, IdsPart
from sluice_lake.source_ranges import SourceRange, source_range_key, with_deletes
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.manifests import decode_record, encode_record

STORED = (
    b'{"after":{"0":3},"deletes":["01AAAAAAAAAAAAAAAAAAAAAAAA"],"number":7,'
    b'"schema":"sluice.rollup_cover.v1","through":{"0":9,"1":2}}'
)
RANGE = SourceRange(number=7, after={"0": 3}, through={"0": 9, "1": 2}, deletes=("01" + "A" * 24,))


def test_the_stored_bytes_and_the_key_do_not_change() -> None:
    assert encode_record(RANGE) == STORED
    assert decode_record("key", STORED, SourceRange) == RANGE
    assert source_range_key(7) == "rollup/v1/covers/00000000000000000007.json"


def test_a_record_names_a_version_of_the_samples_if_one_is_known() -> None:
    named = replace(RANGE, metrics_version=12)
    stored = STORED.replace(b',"number"', b',"metrics_version":12,"number"')
    assert encode_record(named) == stored
    assert decode_record("key", stored, SourceRange) == named
    assert RANGE.metrics_version is UNSET


def test_a_record_without_deletes_honours_none() -> None:
    """Versions before deletes applied to rollups wrote no such field."""
    older = b'{"after":{},"number":1,"schema":"sluice.rollup_cover.v1","through":{"2":5}}'
    found = decode_record("key", older, SourceRange)
    assert found.deletes == ()
    assert [found.ends(lane) for lane in (0, 2)] == [(0, 0), (0, 5)]


ID = "01" + "A" * 24
PART = IdsPart(key="rollup/v1/deletes/P.txt.z", sha256="0" * 64, count=9, first=ID, last=ID)


class EarlierRange(msgspec.Struct, frozen=True, kw_only=True):
    """A source range as versions before parts declared it."""

    schema: str = "sluice.rollup_cover.v1"
    number: int
    after: dict[str, int]
    through: dict[str, int]
    deletes: tuple[str, ...] = ()


def test_a_small_set_of_deletes_is_stored_as_earlier_versions_read_it() -> None:
    small = with_deletes(RANGE, DeleteIds(listed=(ID, "01" + "B" * 24)))
    read = decode_record("key", encode_record(small), EarlierRange)
    assert (read.schema, read.deletes) == ("sluice.rollup_cover.v1", (ID, "01" + "B" * 24))
    assert small.delete_ids == DeleteIds(listed=read.deletes)


def test_a_large_set_is_stored_in_a_form_that_earlier_versions_refuse() -> None:
    """They would apply the deletes of the parts again, and so remove rows of later points."""
    large = with_deletes(RANGE, DeleteIds(listed=(ID,), parts=(PART,)))
    stored = encode_record(large)
    assert stored == (
        b'{"after":{"0":3},"deletes":{"listed":["' + ID.encode() + b'"],"parts":[{"count":9,'
        b'"first":"' + ID.encode() + b'","key":"rollup/v1/deletes/P.txt.z",'
        b'"last":"' + ID.encode() + b'","sha256":"' + b"0" * 64 + b'"}]},"number":7,'
        b'"schema":"sluice.rollup_cover.v2","through":{"0":9,"1":2}}'
    )
    assert decode_record("key", stored, SourceRange) == large
    with pytest.raises(InvalidRecord, match="v2"):
        decode_record("key", stored, EarlierRange)
