"""Source ranges of rollups: their key, their bytes, and records of earlier versions."""

from msgspec import UNSET
from msgspec.structs import replace

from sluice_lake.source_ranges import SourceRange, source_range_key
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
