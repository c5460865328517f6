"""Random frames round-trip, and damaged frames raise only typed errors."""

import os
import random
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.frames import assert_same
from support.mutations import damaged, seeds
from support.repetitions import times

from sluice_protocol.columns import Columns, kind_of
from sluice_protocol.envelope import Envelope, encode_envelope
from sluice_protocol.errors import SluiceError
from sluice_protocol.frame import (
    HEADER_BYTES,
    Frame,
    check_frame,
    decode_frame,
    decode_head,
    encode_frame,
    frame_version,
)
from sluice_protocol.identity import Identity
from sluice_protocol.ndjson import columns_from_ndjson, ndjson_from_columns
from sluice_protocol.payload import encode_payload
from sluice_protocol.payload_layout import LAYOUTS
from sluice_protocol.records import (
    EntryRecord,
    LogRecord,
    MetricPoint,
    entries_from_records,
    logs_from_records,
    metrics_from_records,
)
from sluice_protocol.units import PAYLOAD_RAW_BYTES_MAX

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_TS = st.integers(-(2**63), 2**63 - 1)
_ATTRIBUTES = st.dictionaries(_TEXT.filter(bool), _TEXT, max_size=3)
_LOGS = st.lists(
    st.builds(
        LogRecord,
        ts_ns=_TS,
        body=_TEXT | st.binary(max_size=12),
        severity=st.integers(0, 24),
        attributes=_ATTRIBUTES,
    ),
    min_size=1,
    max_size=8,
).map(logs_from_records)
_METRICS = st.lists(
    st.builds(
        MetricPoint,
        ts_ns=_TS,
        name=_TEXT.filter(bool),
        value=st.floats(),
        type=st.integers(0, 2),
        attributes=_ATTRIBUTES,
    ),
    min_size=1,
    max_size=8,
).map(metrics_from_records)


def _entries(ts: st.SearchStrategy[int] | st.SearchStrategy[None]) -> st.SearchStrategy[Columns]:
    one = st.builds(EntryRecord, key=st.binary(max_size=9), value=st.binary(max_size=9), ts_ns=ts)
    return st.lists(one, min_size=1, max_size=8).map(entries_from_records)


_COLUMNS = _LOGS | _METRICS | _entries(_TS) | _entries(st.none())
_ID = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=16)
_RESOURCE = st.dictionaries(_TEXT, _TEXT, max_size=5).map(lambda pairs: tuple(pairs.items()))


@given(
    columns=_COLUMNS,
    agent=_ID,
    boot=_ID,
    start=st.integers(0, 2**63 - 9),
    resource=_RESOURCE,
    stored=st.tuples(st.booleans(), st.sampled_from([1, 2])),
)
@settings(max_examples=300, deadline=None)
def test_round_trip(
    columns: Columns,
    agent: str,
    boot: str,
    start: int,
    resource: tuple[tuple[str, str], ...],
    stored: tuple[bool, int],
) -> None:
    """Any records decode to equal values, and encode to the same bytes again."""
    compress, version = stored
    who = Identity(agent_id=agent, boot_id=boot, seq_start=start, seq_end=start + len(columns) - 1)
    data = encode_frame(
        identity=who, columns=columns, resource=resource, compress=compress, version=version
    )
    frame = decode_frame(data)
    assert frame.identity == who
    assert dict(frame.envelope.resource) == dict(resource)
    assert_same(frame.columns, columns)
    again = encode_frame(
        identity=who,
        columns=frame.columns,
        resource=frame.envelope.resource,
        compress=compress,
        version=version,
    )
    assert again == data
    assert check_frame(data) == frame.envelope


@given(columns=_COLUMNS)
@settings(max_examples=200, deadline=None)
def test_ndjson_round_trip(columns: Columns) -> None:
    """Any columns that plain records can express round-trip through NDJSON; NaN stays NaN."""
    again = columns_from_ndjson(kind_of(columns), list(ndjson_from_columns(columns)))
    lines = list(ndjson_from_columns(columns))
    assert list(ndjson_from_columns(again)) == lines


@given(data=st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_any_bytes_raise_a_typed_error(data: bytes) -> None:
    """Arbitrary bytes raise a typed error, with and without a valid magic."""
    for start in (b"", b"LMB1\x01\0\0\0", b"LMB1\x02\0\0\0"):
        with pytest.raises(SluiceError):
            decode_frame(start + data)


def _check_canonical(data: bytes, frame: Frame) -> None:
    """An accepted frame has exactly one encoding: the bytes that were decoded."""
    head = decode_head(data)
    stored = data[head.payload_start :]
    raw = (
        zstandard.ZstdDecompressor().decompress(stored, head.payload_raw_bytes)[:]
        if (head.flags)
        else stored
    )
    assert encode_payload(frame.columns, LAYOUTS[frame_version(data)]) == raw
    assert encode_envelope(frame.envelope) == data[HEADER_BYTES : head.payload_start]


def _hurt(seed: int, count: int, good: list[bytes] | None = None) -> tuple[int, int]:
    taken = refused = 0
    for data in damaged(random.Random(seed), count, good):
        try:
            frame = decode_frame(data)
        except SluiceError as error:
            refused += bool(str(error))
            decided: object = (type(error), str(error))
        else:
            _check_canonical(data, frame)
            decided = frame.envelope
            taken += 1
        assert _outcome(check_frame, data) == decided, data
    return taken, refused


def test_damage_raises_only_typed_errors() -> None:
    """Thousands of damaged frames: each raises a typed error, or is accepted with exactly one
    encoding.
    """
    taken, refused = _hurt(seed=1, count=4_000)
    assert refused > taken > 0


@pytest.mark.long
@pytest.mark.parametrize("versions", [(1, 2), (2,)], ids=["every version", "version 2"])
def test_long_damage_raises_only_typed_errors_in_bounded_memory(versions: tuple[int, ...]) -> None:
    """Many damaged frames, each within the memory limits of its version."""
    seed = int(os.environ.get("SLUICE_FUZZ_SEED", "2026"))
    print(f"seed={seed}")  # also shown if an unexpected exception ends the test
    good = [one for one in [*seeds(), *_plain_logs()] if frame_version(one) in versions]
    count = times(10_000)
    tracemalloc.start()
    try:
        taken, refused = _hurt(seed, count, good)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken + refused == count
    assert min(taken, refused) > count / 100
    assert peak_bytes < PAYLOAD_RAW_BYTES_MAX + (16 << 20)


def test_decompression_bombs_are_rejected_before_memory_is_allocated() -> None:
    """A small frame that would decompress to 256 MiB uses no more memory than its own size."""
    bomb = zstandard.ZstdCompressor().compress(bytes(256 << 20))
    good = encode_frame(
        identity=Identity(agent_id="a", boot_id="b", seq_start=0, seq_end=0),
        columns=logs_from_records([LogRecord(ts_ns=0, body="x")]),
        compress=False,
    )
    head = decode_head(good)
    envelope = good[HEADER_BYTES : head.payload_start]
    sizes = np.array([len(envelope), len(bomb), 64 << 20, 0], "<u4").tobytes()
    frame = b"LMB1\x01\0\x01\0" + sizes + envelope + bomb
    tracemalloc.start()
    try:
        with pytest.raises(SluiceError, match="payload_raw_bytes"):
            decode_frame(frame)
        assert tracemalloc.get_traced_memory()[1] < (1 << 20)
    finally:
        tracemalloc.stop()


def _plain_logs() -> list[bytes]:
    """Return frames of a few logs without attributes."""
    rows = (["a"], ["a", "", "ccc"], ["\xe9", "b"], ["x" * 40] * 63, ["x"] * 64, ["x"] * 65)
    return [
        encode_frame(
            identity=Identity(agent_id="a", boot_id="b", seq_start=5, seq_end=4 + len(row)),
            columns=logs_from_records(
                [
                    LogRecord(ts_ns=9 - at, body=text, severity=severity, attributes={})
                    for at, text in enumerate(row)
                ]
            ),
            compress=compress,
            version=version,
        )
        for row in rows
        for severity in (0, 24)
        for compress in (False, True)
        for version in (1, 2)
    ]


def _outcome(check: Callable[[bytes], Envelope], frame: bytes) -> object:
    """Return the envelope, or the type and text of the refusal."""
    try:
        return check(frame)
    except SluiceError as error:
        return type(error), str(error)


@pytest.mark.parametrize("good", [None, _plain_logs()], ids=["every kind", "plain logs"])
def test_a_check_without_columns_decides_as_a_decoder(good: list[bytes] | None) -> None:
    """Damaged frames too, and with the same error."""
    accepted = 0
    for frame in (*(good or ()), *damaged(random.Random(7), 4_000, good)):
        wanted = _outcome(lambda one: decode_frame(one).envelope, frame)
        assert _outcome(check_frame, frame) == wanted
        accepted += isinstance(wanted, Envelope)
    assert accepted > 10
