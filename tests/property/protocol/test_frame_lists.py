"""The parser of lists of frames: every list that was encoded, and nothing else."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.golden import golden

from sluice_protocol.errors import InvalidFrame, SluiceError, TooLarge, UnsupportedVersion
from sluice_protocol.units import SEQ_END
from sluice_protocol.upload_http import (
    FRAMES_MAX,
    LIST_OVERHEAD_BYTES_MAX,
    ListedFrame,
    encode_frame_list,
    listed_bytes,
    parse_frame_list,
)

HEADER_BYTES = 12
FRAMES = st.builds(
    ListedFrame,
    frame=st.binary(max_size=40),
    sent_before=st.booleans(),
    high_water=st.none() | st.integers(0, SEQ_END - 1),
)
LISTS = st.lists(FRAMES, min_size=1, max_size=6)


def refusal(body: bytes) -> SluiceError:
    with pytest.raises(SluiceError) as caught:
        parse_frame_list(body)
    return caught.value


@given(LISTS)
def test_a_list_is_read_as_it_was_written(frames: list[ListedFrame]) -> None:
    body = encode_frame_list(frames)
    assert parse_frame_list(body) == tuple(frames)
    assert len(body) == HEADER_BYTES + sum(listed_bytes(len(one.frame)) for one in frames)


@given(LISTS, st.data())
def test_a_torn_list_is_refused_as_a_whole(frames: list[ListedFrame], data: st.DataObject) -> None:
    body = encode_frame_list(frames)
    cut = data.draw(st.integers(0, len(body) - 1))
    assert isinstance(refusal(body[:cut]), InvalidFrame)


@given(LISTS, st.binary(min_size=1, max_size=40))
def test_bytes_after_the_last_frame_are_refused(frames: list[ListedFrame], more: bytes) -> None:
    error = refusal(encode_frame_list(frames) + more)
    assert isinstance(error, InvalidFrame)
    assert error.field == "count"


@given(LISTS, st.integers(0, 2**32 - 1))
def test_a_wrong_count_is_refused(frames: list[ListedFrame], count: int) -> None:
    body = bytearray(encode_frame_list(frames))
    struct.pack_into("<I", body, 8, count)
    if count != len(frames):
        assert isinstance(refusal(bytes(body)), InvalidFrame | TooLarge)


@given(LISTS, st.integers(1, 2**32 - 1))
def test_a_frame_longer_than_the_list_is_refused(frames: list[ListedFrame], more: int) -> None:
    body = bytearray(encode_frame_list(frames))
    place = len(body) - len(frames[-1].frame) - 16
    struct.pack_into("<I", body, place, min(2**32 - 1, len(frames[-1].frame) + more))
    error = refusal(bytes(body))
    assert isinstance(error, InvalidFrame)
    assert error.field == "frame_bytes"


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_are_the_bytes_of_a_list(body: bytes) -> None:
    for data in (body, b"LMF1\x01\0\0\0" + body):
        try:
            frames = parse_frame_list(data)
        except SluiceError:
            continue
        assert encode_frame_list(frames) == data


def test_the_number_of_frames_is_limited() -> None:
    most = [ListedFrame(frame=b"x")] * FRAMES_MAX
    body = encode_frame_list(most)
    assert len(parse_frame_list(body)) == FRAMES_MAX
    assert len(body) == LIST_OVERHEAD_BYTES_MAX + FRAMES_MAX
    with pytest.raises(TooLarge):
        encode_frame_list([*most, most[0]])
    assert isinstance(refusal(_changed(body, "<I", 8, FRAMES_MAX + 1)), TooLarge)
    with pytest.raises(InvalidFrame):
        encode_frame_list([])


def test_fields_that_version_1_does_not_define_are_refused() -> None:
    body = encode_frame_list([ListedFrame(frame=b"x")])
    assert isinstance(refusal(_changed(body, "<H", 4, 2)), UnsupportedVersion)
    for form, place, value, field in (
        ("<I", 0, 0, "magic"),
        ("<H", 6, 1, "reserved"),
        ("<I", 8, 0, "count"),
        ("<I", 16, 4, "flags"),
        ("<Q", 20, 7, "high_water"),
    ):
        error = refusal(_changed(body, form, place, value))
        assert isinstance(error, InvalidFrame)
        assert error.field == field
    reported = encode_frame_list([ListedFrame(frame=b"x", high_water=1)])
    error = refusal(_changed(reported, "<Q", 20, SEQ_END))
    assert isinstance(error, InvalidFrame)


def test_the_bytes_of_a_list_are_pinned() -> None:
    frames = (
        ListedFrame(frame=b"first"),
        ListedFrame(frame=b"second", sent_before=True),
        ListedFrame(frame=b"", high_water=0),
        ListedFrame(frame=b"fourth", sent_before=True, high_water=SEQ_END - 1),
    )
    pinned = golden("protocol/frames.lmbatches", encode_frame_list(frames))
    assert encode_frame_list(frames) == pinned
    assert parse_frame_list(pinned) == frames


def _changed(body: bytes, form: str, place: int, value: int) -> bytes:
    changed = bytearray(body)
    struct.pack_into(form, changed, place, value)
    return bytes(changed)
