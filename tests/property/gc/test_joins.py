"""Membership of digests is exact for any order and any common prefix."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sluice_gc.eligible_versions import are_named

HEADS = st.sampled_from([b"\x00" * 8, b"\x00" * 7 + b"\x01", b"\xff" * 8, b"\x80" + b"\x00" * 7])
TAILS = st.sampled_from([b"\x00" * 24, b"\x01" + b"\x00" * 23, b"\xff" * 24])
DIGESTS = st.lists(st.builds(bytes.__add__, HEADS, TAILS), max_size=20)


def column(values: list[bytes], cut: int) -> pa.ChunkedArray:
    """Return a column with chunks, one of them with an offset."""
    whole = pa.array(values, pa.binary(32))
    at = min(cut, len(values))
    return pa.chunked_array([whole[:at], whole[at:]], pa.binary(32))


@given(
    digests=DIGESTS,
    names=DIGESTS,
    cut=st.integers(0, 20),
    in_order=st.booleans(),
    step_digests=st.integers(1, 20),
)
def test_are_named_is_membership(
    digests: list[bytes], names: list[bytes], cut: int, in_order: bool, step_digests: int
) -> None:
    """The result equals Python's `in`, also for names with equal first 8 bytes."""
    known = sorted(names) if in_order else names
    found = are_named(column(digests, cut), column(known, cut), step_digests=step_digests)
    assert found.tolist() == [one in set(names) for one in digests]
