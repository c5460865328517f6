"""Random frames round-trip, and damaged frames raise only typed errors.

Seeded damage to frames: flipped, cut, doubled and swapped bytes, below the checksums too.
"""

import os
import random
import struct
import tracemalloc
import zlib
from collections.abc import Iterator

import cbor2
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.frames import all_kinds, assert_same, identity
from support.repetitions import examples, times

from sluice_protocol.column_codings import ZSTD, checksum_of, encode_columns
from sluice_protocol.columns import Columns, kind_of
from sluice_protocol.errors import InvalidFrame, SluiceError
from sluice_protocol.frame import (
    HEADER_BYTES,
    Frame,
    decode_frame,
    decode_head,
    encode_envelope,
    encode_frame,
    raw_columns,
)
from sluice_protocol.identity import Identity
from sluice_protocol.ndjson import columns_from_ndjson, ndjson_from_columns
from sluice_protocol.records import (
    EntryRecord,
    LogRecord,
    MetricPoint,
    entries_from_records,
    logs_from_records,
    metrics_from_records,
)
from sluice_protocol.units import RAW_BYTES_MAX

_INTERESTING = (0, 1, 0x17, 0x18, 0x1B, 0x1F, 0x3B, 0x40, 0x5B, 0x5F, 0x7F, 0x80, 0x9F, 0xA0, 0xBF)
_BYTES = (*_INTERESTING, 0xC0, 0xD8, 0xDB, 0xF4, 0xF9, 0xFF)
_ZSTD = 2


def seeds() -> list[bytes]:
    """Return valid frames of every kind, plain and compressed."""
    return [
        encode_frame(
            identity=identity(3), columns=columns, resource=(("h", "x"),), compress=compress
        )
        for columns in all_kinds()
        for compress in (False, True)
    ]


def damaged(rng: random.Random, count: int, good: list[bytes] | None = None) -> Iterator[bytes]:
    """Yield `count` frames, each a valid one with one to four changes."""
    good = good or seeds()
    for _ in range(count):
        data = rng.choice(good)
        yield rng.choice((_wounded, _in_envelope, _in_column, _in_column))(rng, data)


def _in_envelope(rng: random.Random, data: bytes) -> bytes:
    """Change the envelope, and make its length in the header match again."""
    end = decode_head(data).body_start
    envelope = _wounded(rng, data[HEADER_BYTES:end])[: 2**16 - 1]
    return data[:6] + struct.pack("<H", len(envelope)) + envelope + data[end:]


def _in_column(rng: random.Random, data: bytes) -> bytes:
    """Change the bytes of one column, and make its entry in the directory match again."""
    head = decode_head(data)
    fields = cbor2.loads(data[HEADER_BYTES : head.body_start])
    items: list[object] = []
    body = b""
    hurt = rng.randrange(len(head.columns))
    for place, one in enumerate(head.columns):
        start = head.body_start + one.offset
        stored = data[start : start + one.length]
        coding, raw_bytes = one.coding, one.uncompressed_length
        if place == hurt:
            is_packed = coding & _ZSTD
            raw = zstandard.ZstdDecompressor().decompress(stored) if is_packed else stored
            raw = _wounded(rng, raw)
            coding = (coding & ~_ZSTD) | rng.choice((0, _ZSTD))
            stored = zstandard.ZstdCompressor().compress(raw) if coding & _ZSTD else raw
            raw_bytes = len(raw) if coding & _ZSTD else 0
            if rng.random() < 0.05:
                raw_bytes = rng.choice((0, 1, 2**26, 2**32 - 1))
        checksum = struct.pack("<I", zlib.crc32(stored))
        items += [one.name, one.type, coding, len(body), len(stored), checksum, raw_bytes]
        body += stored
    fields[-1] = items
    envelope = cbor2.dumps(fields)
    return data[:6] + struct.pack("<H", len(envelope)) + envelope + body


def _wounded(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out)) if out else 0
        match rng.randrange(7):
            case 0 if out:
                out[at] ^= 1 << rng.randrange(8)
            case 1 if out:
                out[at] = rng.choice(_BYTES)
            case 2:
                out[at:at] = bytes((rng.choice(_BYTES),))
            case 3:
                del out[at : at + rng.randint(1, 4)]
            case 4:
                other = rng.randrange(len(out)) if out else 0
                out[at:at] = out[other : other + rng.randint(1, 16)]
            case 5:
                width = rng.choice((1, 2, 4, 8))
                value = rng.choice((0, 1, 2**31, 2**63, 2**64 - 1)) & ((1 << 8 * width) - 1)
                out[at : at + width] = value.to_bytes(width, "big")
            case _:
                del out[rng.randrange(len(out) + 1) :]
    return bytes(out)


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
    compress=st.booleans(),
)
@settings(max_examples=examples(300), deadline=None)
def test_round_trip(
    columns: Columns,
    agent: str,
    boot: str,
    start: int,
    resource: tuple[tuple[str, str], ...],
    compress: bool,
) -> None:
    """Any records decode to equal values, and encode to the same bytes again."""
    who = Identity(agent_id=agent, boot_id=boot, seq_start=start, seq_end=start + len(columns) - 1)
    data = encode_frame(identity=who, columns=columns, resource=resource, compress=compress)
    frame = decode_frame(data)
    assert frame.identity == who
    assert dict(frame.envelope.resource) == dict(resource)
    assert_same(frame.columns, columns)
    again = encode_frame(
        identity=who, columns=frame.columns, resource=frame.envelope.resource, compress=compress
    )
    assert again == data


@given(columns=_COLUMNS)
@settings(max_examples=examples(200), deadline=None)
def test_ndjson_round_trip(columns: Columns) -> None:
    """Any columns that plain records can express round-trip through NDJSON; NaN stays NaN."""
    again = columns_from_ndjson(kind_of(columns), list(ndjson_from_columns(columns)))
    lines = list(ndjson_from_columns(columns))
    assert list(ndjson_from_columns(again)) == lines


@given(data=st.binary(max_size=300))
@settings(max_examples=examples(300), deadline=None)
def test_any_bytes_raise_a_typed_error(data: bytes) -> None:
    for start in (b"", b"LMB1\x03\0", b"LMB1\x03\0" + struct.pack("<H", len(data)) + data):
        with pytest.raises(SluiceError):
            decode_frame(start + data)


@pytest.mark.long
@given(seed=st.integers(0, 2**64))
@settings(max_examples=examples(1_000), deadline=None)
def test_a_hundred_thousand_damaged_frames(seed: int) -> None:
    """A hundred for each seed of hypothesis."""
    _hurt(seed, 100)


def _check_one_encoding(data: bytes, frame: Frame) -> None:
    """An accepted frame has exactly one envelope, and one encoding before compression."""
    head = decode_head(data)
    assert encode_envelope(frame.envelope, head.columns) == data[HEADER_BYTES : head.body_start]
    parts = encode_columns(frame.columns)
    assert {name: (one.type, bytes(one.data)) for name, one in parts.items()} == {
        name: (one.type, bytes(one.data)) for name, one in raw_columns(head, data).items()
    }


def _hurt(seed: int, count: int, good: list[bytes] | None = None) -> tuple[int, int]:
    taken = refused = 0
    for data in damaged(random.Random(seed), count, good):
        try:
            frame = decode_frame(data)
        except SluiceError as error:
            refused += bool(str(error))
        else:
            _check_one_encoding(data, frame)
            taken += 1
    return taken, refused


def test_damage_raises_only_typed_errors() -> None:
    taken, refused = _hurt(seed=1, count=4_000)
    assert refused > taken > 0


@pytest.mark.long
def test_long_damage_raises_only_typed_errors_in_bounded_memory() -> None:
    """Tens of thousands of damaged frames, each within the limits of memory."""
    seed = int(os.environ.get("SLUICE_FUZZ_SEED", "2026"))
    print(f"seed={seed}")  # also shown if an unexpected exception ends the test
    count = times(10_000)
    tracemalloc.start()
    try:
        taken, refused = _hurt(seed, count)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken + refused == count
    assert min(taken, refused) > count / 100
    assert peak_bytes < RAW_BYTES_MAX + (16 << 20)


def test_decompression_bombs_are_rejected_before_memory_is_allocated() -> None:
    """A small frame that would decompress to 256 MiB uses no more memory than its own size."""
    bomb = zstandard.ZstdCompressor().compress(bytes(256 << 20))
    good = encode_frame(
        identity=Identity(agent_id="a", boot_id="b", seq_start=0, seq_end=0),
        columns=logs_from_records([LogRecord(ts_ns=0, body="x")]),
        compress=False,
    )
    head = decode_head(good)
    body = next(one for one in head.columns if one.name == "body")
    packed = body._replace(
        coding=ZSTD,
        length=len(bomb),
        checksum=checksum_of(bomb),
        uncompressed_length=(64 << 20) - 100,
    )
    columns = [packed if one is body else one for one in head.columns]
    assert columns[-1] is packed
    envelope = encode_envelope(head.envelope, columns)
    start = head.body_start
    frame = b"".join(
        (
            good[:6],
            struct.pack("<H", len(envelope)),
            envelope,
            good[start : start + body.offset],
            bomb,
        )
    )
    tracemalloc.start()
    try:
        with pytest.raises(InvalidFrame, match="states another size"):
            decode_frame(frame)
        assert tracemalloc.get_traced_memory()[1] < (1 << 20)
    finally:
        tracemalloc.stop()


def test_a_hostile_envelope_needs_little_memory() -> None:
    """The largest envelope, full of the items that become the largest objects."""
    for item in (b"\x80", b"\xa0", b"\x60", b"\x1b" + b"\xff" * 8, b"\x81" * 399 + b"\0"):
        envelope = b"\x8a" + item * (65_000 // len(item))
        frame = b"LMB1\x03\0" + struct.pack("<H", len(envelope)) + envelope
        tracemalloc.start()
        try:
            with pytest.raises(InvalidFrame):
                decode_frame(frame)
            assert tracemalloc.get_traced_memory()[1] < (16 << 20)
        finally:
            tracemalloc.stop()
