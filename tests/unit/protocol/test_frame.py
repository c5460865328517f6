"""Frames round-trip, and the same input results in the same bytes."""

import pytest
from support.frames import T0_NS, all_kinds, assert_same, identity, logs

from sluice_protocol.columns import Columns
from sluice_protocol.frame import HEAD_BYTES_MAX, decode_frame, decode_head, encode_frame


@pytest.mark.parametrize("columns", all_kinds(), ids=["logs", "metrics", "entries", "bare"])
@pytest.mark.parametrize("compress", [True, False])
def test_frame_round_trip(columns: Columns, compress: bool) -> None:
    """Every kind decodes to equal values and encodes to the same bytes again."""
    data = encode_frame(identity=identity(3), columns=columns, compress=compress)
    frame = decode_frame(data)
    assert frame.identity == identity(3)
    assert_same(frame.columns, columns)
    again = encode_frame(identity=frame.identity, columns=frame.columns, compress=compress)
    assert again == data


def test_frame_resource_order_does_not_matter() -> None:
    """The same resource in another order results in the same bytes."""
    one = (("service.name", "web"), ("host", "h1"))
    first = encode_frame(identity=identity(3), columns=logs(), resource=one)
    second = encode_frame(identity=identity(3), columns=logs(), resource=one[::-1])
    assert first == second
    assert decode_frame(first).envelope.resource == (("host", "h1"), ("service.name", "web"))


def test_head_needs_only_the_first_bytes() -> None:
    """Header and envelope are decoded from the head of a frame without its payload."""
    data = encode_frame(identity=identity(3), columns=logs())
    head = decode_head(data[:HEAD_BYTES_MAX])
    cut = decode_head(data[: head.payload_start])
    assert cut == head
    assert head.frame_bytes == len(data)
    assert (head.envelope.min_ts_ns, head.envelope.max_ts_ns) == (T0_NS, T0_NS + 2)
