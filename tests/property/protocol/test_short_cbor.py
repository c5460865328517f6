"""The reader for short maps accepts only what the strict reader accepts, with the same values."""

import sys
from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sluice_protocol.payload_layout import LAYOUTS

from sluice_protocol import envelope, payload, short_cbor
from sluice_protocol.columns import Columns
from sluice_protocol.errors import InvalidFrame, SluiceError
from sluice_protocol.frame import decode_frame, encode_frame, frame_version
from sluice_protocol.identity import Identity
from sluice_protocol.records import (
    EntryRecord,
    LogRecord,
    MetricPoint,
    entries_from_records,
    logs_from_records,
    metrics_from_records,
)

ATTRIBUTES: Mapping[str, str] = {"path": "/var/log/syslog", "ä": "€"}
COLUMNS: list[Columns] = [
    logs_from_records([LogRecord(ts_ns=-5, body="x" * 300, severity=9, attributes=ATTRIBUTES)]),
    logs_from_records([LogRecord(ts_ns=2**40 + n, body=f"{n}") for n in range(30)]),
    metrics_from_records(
        [MetricPoint(ts_ns=n, name=f"m{n}", value=0.5, attributes=ATTRIBUTES) for n in range(3)]
    ),
    entries_from_records([EntryRecord(key=b"k", value=b"", ts_ns=None)]),
]


def frames() -> list[bytes]:
    return [
        encode_frame(
            identity=Identity(
                agent_id="a" * 30, boot_id="b", seq_start=2**33, seq_end=2**33 + len(one) - 1
            ),
            columns=one,
            resource=(("host.name", "h"), ("b", "")),
            compress=False,
            version=version,
        )
        for one in COLUMNS
        for version in (1, 2)
    ]


def outcome(frame: bytes) -> object:
    try:
        found = decode_frame(frame)
    except SluiceError as error:
        return type(error), str(error)
    return found.envelope, payload.encode_payload(found.columns, LAYOUTS[frame_version(frame)])


def strictly(frame: bytes, monkeypatch: pytest.MonkeyPatch) -> object:
    with monkeypatch.context() as patch:
        patch.setattr(payload, "read_short_map", lambda *_: None)
        patch.setattr(envelope, "read_short_map", lambda *_: None)
        return outcome(frame)


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("frame", frames())
def test_each_changed_byte_has_the_same_outcome_in_both_readers(
    frame: bytes, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third byte is changed daily, and every byte in the long run."""
    for place in range(24, min(len(frame), 300), step):
        for value in {
            0,
            1,
            0x18,
            0x40,
            0x5F,
            0x60,
            0x78,
            0xFF,
            frame[place] ^ 1,
            frame[place] ^ 32,
        }:
            changed = frame[:place] + bytes([value]) + frame[place + 1 :]
            assert outcome(changed) == strictly(changed, monkeypatch)


@pytest.mark.parametrize("frame", frames())
def test_frames_of_our_encoder_do_not_need_the_strict_reader(
    frame: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the strict reader was used")

    monkeypatch.setattr(payload, "CborReader", refuse)
    monkeypatch.setattr(envelope, "CborReader", refuse)
    decode_frame(frame)


@settings(max_examples=300)
@given(st.binary(max_size=40), st.sampled_from([1, 2]))
@example(b"\xa0", 1)
def test_any_bytes_are_refused_or_read_as_the_strict_reader_does(data: bytes, version: int) -> None:
    layout = LAYOUTS[version]
    found = short_cbor.read_short_map(memoryview(data), layout.keys["logs"])
    if found is not None:
        try:
            strict = payload._read("logs", memoryview(data), layout, sys.maxsize)
        except InvalidFrame:
            raise AssertionError("the strict reader refuses it") from None
        assert {name: bytes(view) for name, view in strict.views.items()} == {
            name: bytes(one) for name, one in found.items() if isinstance(one, memoryview)
        }
