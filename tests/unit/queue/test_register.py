"""The register's bytes."""

import contextlib
import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_protocol.errors import InvalidRecord, InvariantViolated, UnsupportedVersion
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_queue.errors import LaneDamaged
from sluice_queue.register import (
    ENTRIES_MAX,
    WRITERS_MAX,
    Draft,
    Register,
    Writer,
    append,
    body_descriptors,
    decode_register,
    dequeue,
    encode_register,
    open_epoch,
    seal_checksum,
)
from sluice_queue.register_client import decode_segment, spill

KEY = "queue/v1/spark.000/manifest"
NONCE = bytes(range(16))


def draft(number: int = 0, metadata: bytes = b"") -> Draft:
    return Draft(
        location=ObjectKey(f"manifests/v1/list-{number}"),
        size_bytes=100 + number,
        batches=3,
        frame_bytes=4096,
        first_accepted_at_ns=UnixNs(1),
        last_accepted_at_ns=UnixNs(2),
        ingested_at_ns=UnixNs(3),
        metadata=metadata,
    )


def writer(number: int = 1, counter: int = 1) -> Writer:
    return Writer(producer_id=number.to_bytes(16, "big"), counter=counter, first_sequence=0)


def filled(count: int) -> Register:
    drafts = tuple(draft(number) for number in range(count))
    return append(Register(revision=1, nonce=NONCE), drafts, writer(), NONCE)


def test_register_fields_have_their_documented_offsets() -> None:
    state = open_epoch(replace(filled(2), layout=5, rebuilt_ns=UnixNs(12)), bytes([7] * 16), NONCE)
    body = encode_register(state)
    assert body[:4] == b"LMQ1"
    assert struct.unpack_from("<HH", body, 4) == (3, 5)
    assert struct.unpack_from("<Q", body, 8) == (3,)
    assert body[16:32] == NONCE
    assert struct.unpack_from("<Q", body, 32) == (1,)
    assert body[40:56] == bytes([7] * 16)
    assert struct.unpack_from("<QQIHHII", body, 56) == (3, 0, 2, 1, 0, 0, len(state.entries))
    checksum = zlib.crc32(body[:96] + bytes(4) + body[100:])
    assert struct.unpack_from("<QI", body, 88) == (12, checksum)
    assert body[100:116] == (1).to_bytes(16, "big")
    assert struct.unpack_from("<QQ", body, 116) == (1, 1)
    assert body[132:] == state.entries


@given(st.integers(0, 40), st.integers(0, 40), st.binary(max_size=20))
def test_register_round_trips(count: int, acked: int, metadata: bytes) -> None:
    state = Register(revision=1, nonce=NONCE)
    if count:
        drafts = tuple(draft(number, metadata) for number in range(count))
        state = append(state, drafts, writer(), NONCE)
    if 0 < acked <= count:
        state = dequeue(KEY, state, acked, NONCE)
    assert decode_register(KEY, encode_register(state)) == state
    found = body_descriptors(KEY, state)
    assert [one.sequence for one in found] == list(range(state.acked_through + 1, count + 1))
    assert all(one.metadata == metadata for one in found)


def test_append_copies_existing_entries_undecoded() -> None:
    state = filled(1)
    garbled = Register(
        revision=1, nonce=NONCE, next_sequence=2, count=1, entries=b"?" * len(state.entries)
    )
    after = append(garbled, (draft(1),), writer(), NONCE)
    assert after.entries.startswith(garbled.entries)


def test_spill_and_dequeue_keep_every_entry_in_order() -> None:
    """A full register moves its older half to a segment; an acknowledgement past it drops the
    segment.
    """
    state = filled(10)
    moved = spill(KEY, state)
    assert [one.sequence for one in decode_segment(KEY, moved.body)] == [1, 2, 3, 4, 5]
    assert len(moved.body) == moved.ref.size_bytes
    after = decode_register(KEY, encode_register(moved.after))
    assert [one.sequence for one in body_descriptors(KEY, after)] == [6, 7, 8, 9, 10]
    inside = decode_register(KEY, encode_register(dequeue(KEY, after, 3, NONCE)))
    assert inside.segments == (moved.ref,)
    assert dequeue(KEY, inside, 5, NONCE).segments == ()
    past = decode_register(KEY, encode_register(dequeue(KEY, inside, 7, NONCE)))
    assert past.segments == ()
    assert [one.sequence for one in body_descriptors(KEY, past)] == [8, 9, 10]


def test_spill_is_a_function_of_the_state() -> None:
    assert spill(KEY, filled(10)) == spill(KEY, filled(10))


def test_writers_keep_the_latest_and_drop_the_rest() -> None:
    """The list contains 64 producers, latest first, each once."""
    state = Register(revision=1, nonce=NONCE)
    for number in range(1, WRITERS_MAX + 3):
        state = append(state, (draft(),), writer(number), NONCE)
    state = append(state, (draft(),), writer(10, counter=2), NONCE)
    assert len(state.writers) == WRITERS_MAX
    assert state.writers[0] == Writer(
        producer_id=(10).to_bytes(16, "big"), counter=2, first_sequence=WRITERS_MAX + 3
    )
    assert state.writer((1).to_bytes(16, "big")) is None


def test_register_rejects_states_out_of_bounds() -> None:
    """Too many entries, and acknowledgements out of range, are broken invariants."""
    with pytest.raises(InvariantViolated):
        encode_register(filled(ENTRIES_MAX + 1))
    with pytest.raises(InvariantViolated):
        dequeue(KEY, filled(3), 4, NONCE)
    with pytest.raises(InvariantViolated):
        dequeue(KEY, filled(3), 0, NONCE)


def test_decode_rejects_foreign_and_broken_bytes() -> None:
    """Truncation, another magic, another version and contradicting fields are rejected."""
    body = encode_register(filled(3))
    for broken in (b"", body[:40], body[:-1], body + b"x", b"LMB1" + body[4:]):
        with pytest.raises(InvalidRecord):
            decode_register(KEY, broken)
    with pytest.raises(InvalidRecord):
        decode_register(KEY, body[:64] + struct.pack("<Q", 9) + body[72:])


@given(st.binary(max_size=400))
def test_decode_of_random_bytes_raises_typed_errors(tail: bytes) -> None:
    head, rest = b"LMQ1\x03\x00\x00\x00" + tail[:88] + bytes(4), tail[88:]
    body = seal_checksum(head, rest)
    with contextlib.suppress(InvalidRecord):
        body_descriptors(KEY, decode_register(KEY, body))


@given(st.data())
def test_a_changed_bit_of_a_register_or_segment_is_found(data: st.DataObject) -> None:
    """Also in a counter, a time or a location, which no other rule would refuse."""
    body, moved = encode_register(filled(3)), spill(KEY, filled(3)).body
    whole, decode = data.draw(
        st.sampled_from([(body, decode_register), (moved, decode_segment)]), label="object"
    )
    broken = bytearray(whole)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1), label="bit")
    broken[bit // 8] ^= 1 << bit % 8
    with pytest.raises((LaneDamaged, UnsupportedVersion)):
        decode(KEY, bytes(broken))


@pytest.mark.parametrize("version", [0, 9])
def test_a_register_or_segment_of_another_version_is_refused_and_not_damaged(version: int) -> None:
    body, moved = encode_register(filled(3)), spill(KEY, filled(3))
    with pytest.raises(UnsupportedVersion) as caught:
        decode_register(KEY, body[:4] + struct.pack("<H", version) + body[6:])
    assert (caught.value.what, caught.value.found) == ("queue register", version)
    assert (caught.value.known, caught.value.location) == (3, KEY)
    with pytest.raises(UnsupportedVersion) as caught:
        decode_segment(KEY, moved.body[:4] + struct.pack("<H", version) + moved.body[6:])
    assert (caught.value.what, caught.value.found) == ("queue segment", version)


def test_reserved_bytes_that_are_not_zero_are_damage() -> None:
    body = encode_register(filled(3))
    with pytest.raises(LaneDamaged, match="reserved"):
        decode_register(
            KEY, seal_checksum(body[:78] + b"\x01" + body[79:96] + bytes(4), body[100:])
        )
    body = spill(KEY, filled(3)).body
    with pytest.raises(LaneDamaged, match="reserved"):
        decode_segment(KEY, seal_checksum(body[:6] + b"\x01" + body[7:24] + bytes(4), body[28:]))
