"""Records that a work list names as repeated are left out of tables."""

import pytest
from msgspec.structs import replace
from support.builders import log_columns, make_identity, manifest_of

from sluice_lake.blobs import RejectedBlob, decode_blob
from sluice_lake.records import kept_batches, records_table, small_blobs_table
from sluice_protocol.frame import encode_frame
from sluice_protocol.manifests import RecordRange

FRAME = encode_frame(identity=make_identity(7, count=5), columns=log_columns(list("abcde")))


@pytest.mark.parametrize(
    ("repeated", "kept"),
    [
        ((), "abcde"),
        (((0, 2),), "cde"),
        (((1, 2), (3, 5)), "ac"),
        (((0, 5),), ""),
    ],
)
def test_repeated_records_are_left_out(repeated: tuple[RecordRange, ...], kept: str) -> None:
    one = replace(manifest_of(FRAME), repeated=repeated)
    frame = decode_blob(one, FRAME)
    assert not isinstance(frame, RejectedBlob)
    batches = kept_batches(frame, one, 3)
    if not kept:
        assert batches == []
        return
    table = records_table("logs", batches, plain=True)
    assert "".join(table.column("body").to_pylist()) == kept
    wanted = [7 + "abcde".index(body) for body in kept]
    assert table.column("seq").to_pylist() == wanted
    assert sum(one.frame.envelope.count for one in batches) == len(kept)
    assert set(table.column("queue_sequence").to_pylist()) == {3}


def test_such_batches_are_not_decoded_together() -> None:
    one = manifest_of(FRAME)
    assert small_blobs_table("logs", [one], [FRAME]) is not None
    assert small_blobs_table("logs", [replace(one, repeated=((0, 1),))], [FRAME]) is None
