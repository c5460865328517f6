"""Every rule of `docs/protocol.md`, Frame, broken separately: the error names field and reason."""

import struct

import cbor2
import pytest
import zstandard
from support.raw_frames import (
    I32,
    I64,
    U8,
    U32,
    array,
    attributes,
    canonical,
    entries,
    envelope,
    frame,
    logs,
    metrics,
)

from sluice_protocol.errors import InvalidFrame, TooLarge, UnsupportedVersion
from sluice_protocol.frame import FRAME_DECODERS, decode_frame, decode_head

_ATTRIBUTES_OUT = dict.fromkeys(attributes())


def _refused(data: bytes) -> InvalidFrame:
    with pytest.raises(InvalidFrame) as caught:
        decode_frame(data)
    return caught.value


@pytest.mark.parametrize("compress", [False, True])
def test_valid_frames_are_accepted(compress: bool) -> None:
    """Frames of the independent encoder are accepted: each refusal below changes one thing."""
    for head, payload in (
        (envelope(), logs()),
        (envelope(), logs(severity=None, **_ATTRIBUTES_OUT)),
        (envelope(kind="metrics"), metrics(**attributes())),
        (envelope(kind="entries"), entries()),
        (envelope(kind="entries", min_ts=None, max_ts=None), entries(ts=None)),
        (envelope(min_ts=-(2**63), max_ts=2**63 - 1), logs(ts=array(I64, 2**63 - 1, -(2**63)))),
        (envelope(resource={"": "", "host": "h"}), logs()),
    ):
        decode_frame(frame(head, payload, compress=compress))


@pytest.mark.parametrize(
    ("header", "field"),
    [
        ({"magic": b"LMB2"}, "magic"),
        ({"flags": 2}, "flags"),
        ({"flags": 0x8000}, "flags"),
        ({"envelope_bytes": 65_537}, "envelope_bytes"),
        ({"envelope_bytes": 60_000}, "envelope_bytes"),
        ({"payload_bytes": 1, "payload_raw_bytes": 1}, "payload_bytes"),
        ({"payload_bytes": 0}, "payload_bytes"),
        ({"payload_raw_bytes": 0}, "payload_raw_bytes"),
        ({"payload_raw_bytes": 9}, "payload_raw_bytes"),
        ({"reserved": 1}, "reserved"),
    ],
)
def test_wrong_headers_are_rejected(header: dict[str, int | bytes], field: str) -> None:
    """Each wrong header field is named."""
    assert _refused(frame(envelope(), logs(), **header)).field == field


@pytest.mark.parametrize("size", [0, 1, 23])
def test_a_frame_shorter_than_its_header_is_rejected(size: int) -> None:
    """Nothing is read past the end of a short input."""
    assert _refused(frame(envelope(), logs())[:size]).field == "magic"


def test_every_truncation_and_any_extra_byte_is_rejected() -> None:
    """A frame ends exactly where its header states."""
    data = frame(envelope(), logs())
    for size in range(len(data)):
        _refused(data[:size])
    assert _refused(data + b"\0").field == "payload_bytes"


def test_other_versions_are_named() -> None:
    """Another version of a frame or envelope is distinguished from a broken one."""
    for data, what, found, known in (
        (frame(envelope(), logs(), frame_version=3), "frame", 3, 2),
        (frame(envelope(wire_version=2), logs()), "envelope of a frame", 2, 1),
    ):
        with pytest.raises(UnsupportedVersion) as caught:
            decode_frame(data)
        assert (caught.value.what, caught.value.found) == (what, found)
        assert caught.value.known == known


def test_a_later_frame_version_is_read_next_to_the_others() -> None:
    decoders = {**FRAME_DECODERS, 3: FRAME_DECODERS[1]}
    for version in (1, 3):
        data = frame(envelope(), logs(), frame_version=version)
        assert (
            decode_frame(data, decoders=decoders).identity
            == decode_head(data, decoders=decoders).envelope.identity
        )


def test_limits_of_size_are_named() -> None:
    """Frames and payloads above the limits raise `TooLarge` before anything is decoded."""
    data = frame(envelope(), logs())
    with pytest.raises(TooLarge, match="field=`frame`"):
        decode_frame(data, frame_bytes_max=len(data) - 1)
    with pytest.raises(TooLarge, match="field=`payload_raw_bytes`"):
        decode_frame(frame(envelope(), logs(), compress=True, payload_raw_bytes=(64 << 20) + 1))
    with pytest.raises(TooLarge, match="field=`payload_bytes`"):
        decode_head(frame(envelope(), logs(), payload_bytes=(16 << 20) + 1))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"agent_id": ""}, "agent_id"),
        ({"agent_id": "x" * 121}, "agent_id"),
        ({"agent_id": "a\x7f"}, "agent_id"),
        ({"agent_id": b"a"}, "agent_id"),
        ({"agent_id": None}, "agent_id"),
        ({"boot_id": "ü" * 33}, "boot_id"),
        ({"boot_id": 7}, "boot_id"),
        ({"seq_start": -1, "count": 8}, "seq_start"),
        ({"seq_start": 7}, "seq_start"),
        ({"seq_end": 2**63, "count": 2**63 - 4}, "seq_end"),
        ({"seq_start": 5.0}, "seq_start"),
        ({"count": 3}, "count"),
        ({"count": None}, "count"),
        ({"count": True}, "count"),
        ({"kind": "traces"}, "kind"),
        ({"kind": ["logs"]}, "kind"),
        ({"min_ts": 11}, "min_ts"),
        ({"max_ts": 21}, "min_ts"),
        ({"min_ts": None}, "min_ts"),
        ({"max_ts": None}, "max_ts"),
        ({"min_ts": None, "max_ts": None}, "min_ts"),
        ({"min_ts": -(2**63) - 1}, "min_ts"),
        ({"max_ts": 2**64}, "max_ts"),
        ({"resource": None}, "resource"),
        ({"resource": {str(n): "" for n in range(65)}}, "resource"),
        ({"resource": {"k": 1}}, "resource"),
        ({"resource": {1: "v"}}, "resource"),
        ({"resource": []}, "resource"),
        ({"wire_version": "1"}, "wire_version"),
        ({"extra": 1}, "envelope"),
    ],
)
def test_wrong_envelopes_are_rejected(changes: dict[str, object], field: str) -> None:
    """Each wrong envelope field is named."""
    assert _refused(frame(envelope(**changes), logs())).field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ts": None}, "ts"),
        ({"ts": array(I64, 10)}, "ts"),
        ({"ts": array(I64, 10, 20, 20)}, "ts"),
        ({"ts": cbor2.CBORTag(I64, b"\0" * 15)}, "ts"),
        ({"ts": array(I32, 10, 20)}, "ts"),
        ({"ts": cbor2.CBORTag(75, struct.pack(">2q", 10, 20))}, "ts"),
        ({"ts": struct.pack("<2q", 10, 20)}, "ts"),
        ({"ts": [10, 20]}, "ts"),
        ({"body": None}, "body"),
        ({"body": "äö"}, "body"),
        ({"body": b"\xc3\xa4\xc3("}, "body"),
        ({"body": b"a\xed\xa0\x80"}, "body"),
        ({"body_off": None}, "body_off"),
        ({"body_off": array(I32, 0, 4)}, "body_off"),
        ({"body_off": array(I32, 0, 2, 4, 4)}, "body_off"),
        ({"body_off": array(I32, 1, 2, 4)}, "body_off"),
        ({"body_off": array(I32, 0, 5, 4)}, "body_off"),
        ({"body_off": array(I32, 0, -2, 4)}, "body_off"),
        ({"body_off": array(I32, 0, 2, 3)}, "body_off"),
        ({"body_off": array(I32, 0, 2, 5)}, "body_off"),
        ({"body_off": array(I32, 0, 1, 4)}, "body_off"),
        ({"body_off": array(I32, 0, 3, 4)}, "body_off"),
        ({"severity": array(U8, 0, 25)}, "severity"),
        ({"severity": array(U8, 0)}, "severity"),
        ({"attr_names": None}, "attr_names"),
        ({"attr_names": ["k", "k"]}, "attr_names"),
        ({"attr_names": ["k", ""]}, "attr_names"),
        ({"attr_names": ["k"]}, "attr_key"),
        ({"attr_names": ["k", "l", "m"]}, "attr_names"),
        ({"attr_names": ["k", 1]}, "attr_names"),
        ({"attr_names": {"k": "l"}}, "attr_names"),
        ({"attr_off": None}, "attr_off"),
        ({"attr_off": array(I32, 0, 2)}, "attr_off"),
        ({"attr_off": array(I32, 0, 3, 2)}, "attr_off"),
        ({"attr_off": array(I32, 0, 1, 1)}, "attr_off"),
        ({"attr_key": None}, "attr_names"),
        ({"attr_key": array(U32, 0, 2)}, "attr_key"),
        ({"attr_key": array(U32, 0, 0)}, "attr_names"),
        ({"attr_val_off": None}, "attr_val_off"),
        ({"attr_val_off": array(I32, 0, 1, 1)}, "attr_val_off"),
        ({"attr_val": None}, "attr_val"),
        ({"attr_val": b"v\xff"}, "attr_val"),
        ({"extra": b""}, "payload"),
        ({"names": ["m"]}, "payload"),
    ],
)
def test_wrong_log_columns_are_rejected(changes: dict[str, object], field: str) -> None:
    """Each wrong column is named."""
    assert _refused(frame(envelope(), logs(**changes))).field == field


def test_an_attribute_key_twice_in_a_record_is_rejected() -> None:
    """The same key may be in two records, but not twice in one, in any order."""
    three = {
        "attr_key": array(U32, 0, 1, 0),
        "attr_val_off": array(I32, 0, 1, 2, 2),
    }
    apart = logs(**three, attr_off=array(I32, 0, 2, 3))
    decode_frame(frame(envelope(), apart))
    together = logs(**three, attr_off=array(I32, 0, 3, 3))
    error = _refused(frame(envelope(), together))
    assert (error.field, error.reason) == ("attr_key", "a record has an attribute key twice")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ts": None}, "ts"),
        ({"type": array(U8, 0, 3)}, "type"),
        ({"type": None}, "type"),
        ({"name": array(U32, 1, 2)}, "name"),
        ({"name": array(U32, 1, 1)}, "names"),
        ({"name": array(U32, 1)}, "names"),
        ({"name": None}, "names"),
        ({"names": ["m", "m"]}, "names"),
        ({"names": ["m", "n", "o"]}, "names"),
        ({"value": array(I64, 1, 2)}, "value"),
        ({"value": None}, "value"),
        ({"severity": array(U8, 1, 2)}, "payload"),
    ],
)
def test_wrong_metric_columns_are_rejected(changes: dict[str, object], field: str) -> None:
    """Each wrong column is named."""
    assert _refused(frame(envelope(kind="metrics"), metrics(**changes))).field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"key": None}, "key"),
        ({"key_off": array(I32, 0, 0, 2)}, "key_off"),
        ({"val_off": array(I32, 0, 1)}, "val_off"),
        ({"ts": array(I64, 10)}, "ts"),
        ({"ts": None}, "min_ts"),
        ({"attr_names": ["k"]}, "payload"),
    ],
)
def test_wrong_entry_columns_are_rejected(changes: dict[str, object], field: str) -> None:
    """Each wrong column is named."""
    assert _refused(frame(envelope(kind="entries"), entries(**changes))).field == field


def test_entries_without_ts_have_no_span() -> None:
    """A time span without times is rejected."""
    assert _refused(frame(envelope(kind="entries"), entries(ts=None))).field == "min_ts"


def _swap(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"\x65count\x02", b"\x65count\x18\x02", "head is not the shortest"),
        (b"\x65count\x02", b"\x65count\x1b" + b"\0" * 7 + b"\x02", "head is not the shortest"),
        (b"\x65count\x02", b"\x78\x05count\x02", "head is not the shortest"),
        (b"\x65count\x02", b"\x65count\xc2\x41\x02", "must be an integer"),
        (b"\x65count\x02", b"\x65count\xf9\x40\x00", "must be an integer"),
        (b"\x65count\x02", b"\x65count\x1c", "indefinite"),
        (b"\x65count\x02", b"\x7f\x65count\xff\x02", "indefinite"),
        (b"\x68agent_id\x61a", b"\x68agent_id\x61\xff", "not valid UTF-8"),
        (b"\x68agent_id\x61a", b"\x68agent_id\x7b" + b"\xff" * 8, "longer than the frame"),
        (b"\x68resource\xa0", b"\x68resource\xbf\xff", "indefinite"),
        (b"\x68resource\xa0", b"\x68resource\xa2\x61a\x60\x61a\x60", "twice"),
        (b"\x68resource\xa0", b"\x68resource\xa2\x61b\x60\x61a\x60", "out of order"),
        (b"\x68resource\xa0", b"\x68resource\xa2\x62aa\x60\x61b\x60", "out of order"),
        (b"\x68resource\xa0", b"\x68resource\xa0\x00", "text string"),
    ],
)
def test_cbor_of_the_envelope_is_strict(old: bytes, new: bytes, reason: str) -> None:
    """Only the core deterministic encoding is accepted."""
    error = _refused(frame(_swap(canonical(envelope()), old, new), logs()))
    assert reason in error.reason


def test_cbor_of_the_payload_is_strict() -> None:
    """The payload must have the same encoding: order, heads, tags and end."""
    good = canonical(logs())
    items = list(logs().items())
    unsorted = b"\xa9" + b"".join(cbor2.dumps(key) + cbor2.dumps(value) for key, value in items)
    for payload, reason in (
        (unsorted, "out of order"),
        (_swap(good, b"\x44\xc3\xa4\xc3\xb6", b"\x58\x04\xc3\xa4\xc3\xb6"), "not the shortest"),
        (_swap(good, b"\x64body\x44", b"\x64body\xc2\x44"), "must be a byte string"),
        (_swap(good, b"\xd8\x4f\x50", b"\xd9\x00\x4f\x50"), "not the shortest"),
        (b"\xd9\xd9\xf7" + good, "must be a map"),
        (good + b"\0", "bytes follow"),
        (b"\xbf" + good[1:] + b"\xff", "indefinite"),
        (b"\xbb" + b"\xff" * 8 + good[1:], "more than"),
        (b"\x80", "must be a map"),
    ):
        assert reason in _refused(frame(envelope(), payload)).reason


def _zstd(raw: bytes, **parameters: int | bool) -> bytes:
    return zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters.from_level(3, **parameters)
    ).compress(raw)


def test_zstd_payload_is_one_frame_of_the_stated_size() -> None:
    """Every other size, and everything besides exactly one frame, is rejected."""
    raw = canonical(logs())
    good = _zstd(raw)
    unsized = _zstd(raw, write_content_size=False)
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    decode_frame(frame(envelope(), raw, compress=True, stored=unsized))
    for stored, raw_bytes, field in (
        (good, len(raw) + 1, "payload_raw_bytes"),
        (good, len(raw) - 1, "payload_raw_bytes"),
        (unsized, len(raw) + 1, "payload_raw_bytes"),
        (unsized, len(raw) - 1, "payload"),
        (good + good, len(raw), "payload"),
        (good + skippable, len(raw), "payload"),
        (skippable + good, len(raw), "payload"),
        (skippable, 4, "payload"),
        (good + b"\0", len(raw), "payload"),
        (good[:-1], len(raw), "payload"),
        (good[:6], len(raw), "payload"),
        (raw, len(raw), "payload"),
        (b"\x28\xb5\x2f\xfd", len(raw), "payload"),
        (_zstd(raw, write_checksum=True)[:-1] + b"\0", len(raw), "payload"),
    ):
        data = frame(envelope(), raw, compress=True, stored=stored, payload_raw_bytes=raw_bytes)
        assert _refused(data).field == field, (stored, raw_bytes)


def test_zstd_windows_and_dictionaries_are_rejected() -> None:
    """A frame whose header requires much memory or a dictionary is rejected."""
    raw = bytes(20 << 20)
    wide = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters.from_level(3, window_log=24)
    ).compress(raw)
    error = _refused(frame(envelope(), raw, compress=True, stored=wide))
    assert (error.field, "window" in error.reason) == ("payload", True)
    book = zstandard.train_dictionary(2048, [b"line %d of a log" % n for n in range(500)])
    told = zstandard.ZstdCompressor(dict_data=book).compress(canonical(logs()))
    error = _refused(frame(envelope(), logs(), compress=True, stored=told))
    assert "dictionary" in error.reason


def test_names_longer_than_their_index_are_rejected_unread() -> None:
    """A list of names is bounded by its index column before its first name is read."""
    many = metrics(names=[str(n) for n in range(100_000)])
    error = _refused(frame(envelope(kind="metrics"), many))
    assert (error.field, "longer" in error.reason) == ("names", True)
