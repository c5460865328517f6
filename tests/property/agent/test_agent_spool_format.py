"""Damaged spool files: the decoder never returns other content and always reports a reason."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.golden import golden

from sluice_agent.errors import CorruptEntry
from sluice_agent.spool.format import (
    FORMAT_VERSION,
    EntryHeader,
    FileCheckpoint,
    SpoolState,
    decode_spool_entry,
    decode_state,
    encode_spool_entry,
    encode_state,
)
from sluice_protocol.errors import UnsupportedVersion
from sluice_protocol.keys import digest_of

FRAME = b"frame bytes" * 20
MARK = FileCheckpoint(source="1:2", path="/var/log/x", start=0, offset=10)
NOTE = EntryHeader(
    version=FORMAT_VERSION,
    order=7, agent_id="host-1", boot_id="boot", seq_start=3, seq_end=9, kind="logs",
    frame_bytes=len(FRAME), frame_sha256=digest_of(FRAME), sealed_at_unix_ns=1, checkpoints=(MARK,),
    requests=b"0123456789abcdef",
)  # fmt: skip
ENTRY = b"".join(encode_spool_entry(NOTE, FRAME))
STATED = SpoolState(
    through=7, checkpoints={"1:2": MARK}, high_water={"boot": 9}, requests=b"0123456789abcdef"
)
STATE = encode_state(STATED)


def test_an_entry_is_read_as_it_was_written() -> None:
    """Header, name, size and frame."""
    assert decode_spool_entry(ENTRY) == (NOTE, FRAME)
    assert len(ENTRY) == NOTE.size_bytes
    span = "00000000000000000003-00000000000000000009"
    assert NOTE.name == f"00000000000000000007-boot-{span}.batch"


def test_the_stored_bytes_are_pinned() -> None:
    """A change is a new version."""
    assert golden("agent/entry.batch", ENTRY) == ENTRY
    assert golden("agent/state.json", STATE) == STATE


@pytest.mark.parametrize("version", [FORMAT_VERSION - 1, FORMAT_VERSION + 1])
def test_another_version_is_refused_and_no_damage(version: int) -> None:
    """Whatever else its header or state contains."""
    with pytest.raises(UnsupportedVersion, match=f"spool entry.*found=`{version}`"):
        decode_spool_entry(b"".join(encode_spool_entry(replace(NOTE, version=version), FRAME)))
    with pytest.raises(UnsupportedVersion, match=f"state of the spool.*found=`{version}`"):
        decode_state(encode_state(replace(STATED, version=version)))
    text = b'{"version":%d}' % version
    with pytest.raises(UnsupportedVersion):
        decode_state(text + b"\n" + digest_of(text).encode() + b"\n")


@given(at=st.integers(0, len(ENTRY) - 1), flip=st.integers(1, 255))
def test_one_changed_byte_is_detected(at: int, flip: int) -> None:
    damaged = bytearray(ENTRY)
    damaged[at] ^= flip
    with pytest.raises(CorruptEntry):
        decode_spool_entry(bytes(damaged))


@given(size=st.integers(0, len(ENTRY) - 1), more=st.binary(max_size=5))
def test_a_file_of_another_length_is_detected(size: int, more: bytes) -> None:
    with pytest.raises(CorruptEntry):
        decode_spool_entry(ENTRY[:size])
    if more:
        with pytest.raises(CorruptEntry):
            decode_spool_entry(ENTRY + more)


@given(st.binary(max_size=200))
def test_other_bytes_raise_corrupt_entry(data: bytes) -> None:
    for decode in (decode_spool_entry, decode_state):
        with contextlib.suppress(CorruptEntry):
            decode(data)


@given(at=st.integers(0, len(STATE) - 2), flip=st.integers(1, 255))
def test_a_damaged_state_is_detected(at: int, flip: int) -> None:
    """Checkpoints are never guessed."""
    damaged = bytearray(STATE)
    damaged[at] ^= flip
    with pytest.raises(CorruptEntry):
        decode_state(bytes(damaged))
