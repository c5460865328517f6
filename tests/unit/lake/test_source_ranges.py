"""Source ranges of rollups: their key and their bytes."""

import pytest

from sluice_lake.source_ranges import DeleteIds, IdsPart, SourceRange, source_range_key
from sluice_protocol.errors import UnsupportedRecord
from sluice_protocol.manifests import decode_record, encode_record

ID = "01" + "A" * 24
PART = IdsPart(key="rollup/v1/deletes/P.txt.z", sha256="0" * 64, count=9, first=ID, last=ID)
RANGE = SourceRange(
    number=7,
    after={"0": 3},
    through={"0": 9, "1": 2},
    deletes=DeleteIds(listed=(ID,), parts=(PART,)),
    metrics_version=12,
)
STORED = (
    b'{"after":{"0":3},"deletes":{"listed":["' + ID.encode() + b'"],"parts":[{"count":9,'
    b'"first":"' + ID.encode() + b'","key":"rollup/v1/deletes/P.txt.z",'
    b'"last":"' + ID.encode() + b'","sha256":"' + b"0" * 64 + b'"}]},"metrics_version":12,'
    b'"number":7,"schema":"sluice.source_range.v3","through":{"0":9,"1":2}}'
)


def test_the_stored_bytes_and_the_key_do_not_change() -> None:
    assert encode_record(RANGE) == STORED
    assert decode_record("key", STORED, SourceRange) == RANGE
    assert source_range_key(7) == "rollup/v1/source-ranges/00000000000000000007.json"
    assert [RANGE.ends(lane) for lane in (0, 1, 2)] == [(3, 9), (0, 2), (0, 0)]


@pytest.mark.parametrize("version", [2, 4])
def test_another_version_is_refused(version: int) -> None:
    """A job would otherwise apply deletes again, and so remove rows of later points."""
    other = STORED.replace(b"range.v3", b"range.v%d" % version)
    with pytest.raises(UnsupportedRecord, match=r"of sluice\.source_range: .*supported=`3`"):
        decode_record("key", other, SourceRange)
