"""Every rule of `docs/protocol.md`, Frame, broken separately: the error names field and reason."""

import struct

import cbor2
import pytest
import zstandard
from support.raw_frames import (
    DIFFERENCES,
    ENVELOPE,
    F64,
    I64,
    NAMES_U8,
    NAMES_U16,
    TEXT_U8,
    TEXT_U16,
    TEXT_U32,
    U8,
    U16,
    U32,
    ZSTD,
    Raw,
    assembled,
    attributes,
    directory,
    encoded,
    entries,
    envelope,
    frame,
    logs,
    metrics,
    names,
    numbers,
    steps,
    texts,
)

from sluice_protocol.errors import InvalidFrame, TooLarge, UnsupportedVersion
from sluice_protocol.frame import decode_frame, decode_head

_ATTRIBUTES_OUT = dict.fromkeys(attributes())


def _refused(data: bytes) -> InvalidFrame:
    with pytest.raises(InvalidFrame) as caught:
        decode_frame(data)
    return caught.value


@pytest.mark.parametrize("compress", [False, True])
def test_valid_frames_are_accepted(compress: bool) -> None:
    """Frames of the independent encoder are accepted: each refusal below changes one thing."""
    for head, columns in (
        (envelope(), logs()),
        (envelope(), logs(severity=None, **_ATTRIBUTES_OUT)),
        (envelope(kind="metrics"), metrics(**attributes())),
        (envelope(kind="entries"), entries()),
        (envelope(kind="entries", min_ts=None, max_ts=None), entries(ts=None)),
        (envelope(min_ts=-(2**63), max_ts=2**63 - 1), logs(ts=steps(2**63 - 1, 1))),
        (envelope(resource={"": "", "host": "h"}), logs()),
    ):
        decode_frame(frame(head, columns, compress=compress))


@pytest.mark.parametrize(
    ("header", "field"),
    [
        ({"magic": b"LMB2"}, "magic"),
        ({"envelope_bytes": 60_000}, "envelope_bytes"),
        ({"envelope_bytes": 0}, "envelope"),
        ({"envelope_bytes": 3}, "boot_id"),
    ],
)
def test_wrong_headers_are_rejected(header: dict[str, int | bytes], field: str) -> None:
    assert _refused(frame(envelope(), logs(), **header)).field == field


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_frame_shorter_than_its_header_is_rejected(size: int) -> None:
    """Nothing is read past the end of a short input."""
    assert _refused(frame(envelope(), logs())[:size]).field == "magic"


def test_every_truncation_and_any_extra_byte_is_rejected() -> None:
    """A frame ends exactly where its directory states."""
    data = frame(envelope(), logs())
    for size in range(len(data)):
        _refused(data[:size])
    assert _refused(data + b"\0").field == "columns"


@pytest.mark.parametrize("version", [0, 1, 2, 4, 65_535])
def test_other_versions_are_named(version: int) -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        decode_frame(frame(envelope(), logs(), frame_version=version))
    assert (caught.value.what, caught.value.found, caught.value.known) == ("frame", version, 3)


def test_limits_of_size_are_named() -> None:
    """Frames and columns above the limits raise `TooLarge` before anything is decoded."""
    data = frame(envelope(), logs())
    with pytest.raises(TooLarge, match="field=`frame`"):
        decode_frame(data, frame_bytes_max=len(data) - 1)
    items, body = directory(logs(), compress=True)
    with pytest.raises(TooLarge, match="field=`columns before compression`"):
        decode_head(assembled(encoded(envelope(), [*items[:-1], 64 << 20]), body))
    items, body = directory(logs())
    with pytest.raises(TooLarge, match="field=`columns`"):
        decode_head(assembled(encoded(envelope(), [*items[:-3], 16 << 20, *items[-2:]]), body))


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
        ({"seq_end": 2**63, "count": 2**63 - 4}, "seq_start"),
        ({"seq_start": 5.0}, "seq_start"),
        ({"seq_start": float("nan")}, "seq_start"),
        ({"seq_end": cbor2.undefined}, "seq_end"),
        ({"count": 3}, "count"),
        ({"count": None}, "count"),
        ({"count": True}, "count"),
        ({"kind": "traces"}, "kind"),
        ({"kind": ["logs"]}, "kind"),
        ({"min_ts": 11}, "min_ts"),
        ({"max_ts": 21}, "min_ts"),
        ({"min_ts": None}, "min_ts"),
        ({"max_ts": None}, "min_ts"),
        ({"min_ts": None, "max_ts": None}, "min_ts"),
        ({"min_ts": -(2**63) - 1}, "min_ts"),
        ({"max_ts": 2**64 - 1}, "max_ts"),
        ({"max_ts": float("inf")}, "max_ts"),
        ({"resource": None}, "resource"),
        ({"resource": {str(n): "" for n in range(65)}}, "resource"),
        ({"resource": {"k": 1}}, "resource"),
        ({"resource": {1: "v"}}, "resource"),
        ({"resource": {"k": float("nan")}}, "resource"),
        ({"resource": {"k": {}}}, "resource"),
        ({"resource": []}, "resource"),
    ],
)
def test_wrong_envelopes_are_rejected(changes: dict[str, object], field: str) -> None:
    assert _refused(frame(envelope(**changes), logs())).field == field


def _item(field: str) -> bytes:
    """Return the encoded item of a field, as it is in a valid envelope."""
    return cbor2.dumps({**envelope(), "columns": directory(logs())[0]}[field])


def _spliced(field: str, item: bytes) -> bytes:
    """Return a frame whose envelope has these bytes as one of its items."""
    good = {**envelope(), "columns": directory(logs())[0]}
    items = [item if name == field else cbor2.dumps(good[name]) for name in ENVELOPE]
    return assembled(b"\x8a" + b"".join(items), directory(logs())[1])


TAGS = (0, 1, 2, 3, 4, 5, 24, 25, 28, 29, 30, 35, 36, 37, 64, 100, 256, 258, 260, 1234, 55_799)


@pytest.mark.parametrize("field", ENVELOPE)
def test_only_the_deterministic_encoding_is_accepted(field: str) -> None:
    """Each item of the envelope with a tag, a long head, or another form of the same value."""
    decode_frame(_spliced(field, _item(field)))
    item = _item(field)
    for tag in TAGS:
        error = _refused(_spliced(field, cbor2.dumps(cbor2.CBORTag(tag, 0))[:-1] + item))
        assert (error.field, error.reason) == (field, "has a tag")
    for other in _longer(item):
        assert _refused(_spliced(field, other)).field == field, other.hex()
    assert _refused(_spliced(field, b"\x1c")).field == field  # reserved
    assert _refused(_spliced(field, b"\xff")).field == field  # an end without a beginning
    assert _refused(_spliced(field, b"\xf7")).field == field
    assert _refused(_spliced(field, b"\xf9\x7e\x00")).field == field  # NaN
    deep = b"\x81" * 300 + b"\x00"
    assert _refused(_spliced(field, deep)).field == field


def _longer(item: bytes) -> list[bytes]:
    """Return the item with a longer head, and with an indefinite length if its type has one."""
    major, size = item[0] & 0xE0, item[0] & 0x1F
    if size == 24:
        size, rest = item[1], item[2:]
    elif size < 24:
        rest = item[1:]
    else:
        return []
    found = [bytes((major | 25,)) + struct.pack(">H", size) + rest]
    found += [bytes((major | 26,)) + struct.pack(">I", size) + rest]
    found += [bytes((major | 27,)) + struct.pack(">Q", size) + rest]
    if major in {0x60, 0x40}:
        found.append(bytes((major | 31,)) + item + b"\xff")
    if major in {0x80, 0xA0}:
        found.append(bytes((major | 31,)) + rest + b"\xff")
    return found


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (b"\xa2\x61a\x60\x61a\x60", "cannot be read"),
        (b"\xa2\x61b\x60\x61a\x60", "has keys out of order"),
        (b"\xa2\x62aa\x60\x61b\x60", "has keys out of order"),
        (b"\xa1\x61a\x78\x01b", "shortest form"),
        (b"\xa1\x61a\x61\xff", "cannot be read"),
        (b"\xa1\x61a", "cannot be read"),
        (b"\xbb" + b"\xff" * 8, "cannot be read"),
        (b"\xa1\xa0\x61a", "must be a map from text to text"),
    ],
)
def test_the_resource_has_one_encoding(item: bytes, reason: str) -> None:
    error = _refused(_spliced("resource", item))
    assert error.field == "resource"
    assert reason in error.reason


def test_an_envelope_is_one_array_of_ten_items() -> None:
    good = encoded(envelope(), directory(logs())[0])
    body = directory(logs())[1]
    for head in (
        b"",
        b"\x80",
        b"\xa0",
        b"\x89" + good[1:],
        b"\x8b" + good[1:] + b"\x00",
        b"\x98\x0a" + good[1:],
        b"\x9f" + good[1:] + b"\xff",
        b"\xd9\xd9\xf7" + good,
        good + b"\x00",
        good + good,
    ):
        assert _refused(assembled(head, body)).field == "envelope", head[:4].hex()
    for size in range(1, len(good)):
        assert _refused(assembled(good[:size], body)).field in {"envelope", *ENVELOPE}


@pytest.mark.parametrize(
    ("place", "value", "field"),
    [
        (0, "tt", "columns"),
        (0, 7, "columns"),
        (1, 99, "ts"),
        (1, "i64", "columns"),
        (1, -1, "ts"),
        (2, 0, "ts"),
        (2, 5, "ts"),
        (2, 9, "ts"),
        (2, -1, "ts"),
        (2, DIFFERENCES | ZSTD, "ts"),
        (2, True, "columns"),
        (3, 1, "ts"),
        (3, -1, "ts"),
        (4, 15, "body"),
        (4, 17, "body"),
        (4, 0, "ts"),
        (4, -16, "ts"),
        (4, 16.0, "columns"),
        (5, b"\0\0\0\0", "ts"),
        (5, b"\0\0\0", "ts"),
        (5, 0, "columns"),
        (6, 16, "ts"),
        (6, -1, "ts"),
        (6, None, "columns"),
    ],
)
def test_wrong_entries_of_the_directory_are_rejected(place: int, value: object, field: str) -> None:
    """Each item of the first entry, which is that of `ts`."""
    items, body = directory(logs())
    assert items[0] == "ts"
    items[place] = value
    assert _refused(assembled(encoded(envelope(), items), body)).field == field


@pytest.mark.parametrize("checksum", [b"", b"\0\0\0", b"\0" * 5])
def test_a_checksum_of_another_length_is_refused_before_its_column_is_read(checksum: bytes) -> None:
    items, body = directory(logs())
    items[5] = checksum
    error = _refused(assembled(encoded(envelope(), items), body))
    assert (error.field, error.reason) == ("ts", "must have a checksum of four bytes")


def test_the_directory_lists_each_column_once_in_order() -> None:
    items, body = directory(logs())
    one, two = items[:7], items[7:14]
    swapped = [*two[:3], 0, *two[4:], *one[:3], two[4], *one[4:], *items[14:]]
    error = _refused(assembled(encoded(envelope(), swapped), body))
    assert (error.field, error.reason) == ("ts", "is out of order")
    again = [*one, *one[:3], one[4], *one[4:]]
    error = _refused(assembled(encoded(envelope(), again), body))
    assert (error.field, error.reason) == ("ts", "occurs twice")
    for wrong in ([], items[:-1], [*items, "x"], [items]):
        assert _refused(assembled(encoded(envelope(), wrong), body)).field == "columns"


def test_each_damaged_byte_of_a_column_is_found_by_its_checksum() -> None:
    data = frame(envelope(), logs())
    head = decode_head(data)
    for column in head.columns:
        for at in range(
            head.body_start + column.offset, head.body_start + column.offset + column.length
        ):
            wrong = data[:at] + bytes((data[at] ^ 0x10,)) + data[at + 1 :]
            error = _refused(wrong)
            assert (error.field, error.reason) == (column.name, "does not match its checksum")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ts": None}, "ts"),
        ({"ts": steps(10)}, "ts"),
        ({"ts": steps(10, 10, 0)}, "ts"),
        ({"ts": steps(10, 20)}, "min_ts"),
        ({"ts": Raw(I64, b"\0" * 15, DIFFERENCES)}, "ts"),
        ({"ts": numbers(I64, 10, 20)}, "ts"),
        ({"ts": numbers(U32, 10, 20)}, "ts"),
        ({"body": None}, "body"),
        ({"body": texts(b"\xc3\xa4", b"\xc3(")}, "body"),
        ({"body": texts(b"a", b"\xed\xa0\x80")}, "body"),
        ({"body": texts(b"\xc3", b"\xa4\xc3\xb6")}, "body"),
        ({"body": texts(b"abcd")}, "body"),
        ({"body": texts(b"a", b"b", b"")}, "body"),
        ({"body": Raw(TEXT_U8, b"\x02\x02abc")}, "body"),
        ({"body": Raw(TEXT_U8, b"\x02\x02abcde")}, "body"),
        ({"body": Raw(TEXT_U8, b"\x02")}, "body"),
        ({"body": texts(b"a", b"b", kind=TEXT_U16)}, "body"),
        ({"body": texts(b"a", b"b", kind=TEXT_U32)}, "body"),
        ({"body": texts(b"a", b"b" * 256, kind=TEXT_U32)}, "body"),
        ({"body": Raw(TEXT_U32, struct.pack("<2I", 2**32 - 1, 5) + b"abcd")}, "body"),
        ({"body": Raw(TEXT_U32, struct.pack("<2I", 2**32 - 1, 2**32 - 1) + b"ab")}, "body"),
        ({"body": names((0, 1), b"a", b"b")}, "body"),
        ({"severity": numbers(U8, 0, 25)}, "severity"),
        ({"severity": numbers(U8, 0)}, "severity"),
        ({"severity": numbers(U16, 0, 256)}, "severity"),
        ({"severity": Raw(U8, b"\0\0", DIFFERENCES)}, "severity"),
        ({"attr_key": names((0, 1), b"k", b"k")}, "attr_key"),
        ({"attr_key": names((0, 1), b"k", b"")}, "attr_key"),
        ({"attr_key": names((0, 1), b"k")}, "attr_key"),
        ({"attr_key": names((0, 1), b"k", b"l", b"m")}, "attr_key"),
        ({"attr_key": names((0, 2), b"k", b"l", b"m")}, "attr_key"),
        ({"attr_key": names((0, 0), b"k")}, "attr_key"),
        ({"attr_key": names((1, 1), b"k", b"l")}, "attr_key"),
        ({"attr_key": names((0, 1), b"k", b"\xff")}, "attr_key"),
        ({"attr_key": names((0, 1), b"k", b"l", kind=NAMES_U16)}, "attr_key"),
        ({"attr_key": Raw(NAMES_U8, b"\0\1\1\2kl")}, "attr_key"),
        ({"attr_key": texts(b"k", b"l")}, "attr_key"),
        ({"attr_key": None}, "attr_key"),
        ({"attrs": None}, "attrs"),
        ({"attrs": numbers(U8, 2)}, "attrs"),
        ({"attrs": numbers(U8, 0, 0)}, "attrs"),
        ({"attrs": numbers(U8, 2, 255)}, "attrs"),
        ({"attrs": numbers(U8, 1, 0)}, "attr_key"),
        ({"attrs": numbers(U16, 2, 0)}, "attrs"),
        ({"attrs": numbers(U32, 2**32 - 1, 2**32 - 1)}, "attrs"),
        ({"attr_val": None}, "attr_val"),
        ({"attr_val": texts(b"v")}, "attr_val"),
        ({"attr_val": texts(b"v", b"\xff")}, "attr_val"),
        ({"extra": texts(b"", b"")}, "columns"),
        ({"name": names((0, 0), b"m")}, "columns"),
    ],
)
def test_wrong_log_columns_are_rejected(changes: dict[str, Raw | None], field: str) -> None:
    """Each wrong column is named, plain and compressed."""
    for compress in (False, True):
        assert _refused(frame(envelope(), logs(**changes), compress=compress)).field == field


def test_an_attribute_key_twice_in_a_record_is_rejected() -> None:
    """The same key may be in two records, but not twice in one, in any order."""
    three = {"attr_key": names((0, 1, 0), b"k", b"l"), "attr_val": texts(b"v", b"w", b"")}
    decode_frame(frame(envelope(), logs(**three, attrs=numbers(U8, 2, 1))))
    error = _refused(frame(envelope(), logs(**three, attrs=numbers(U8, 3, 0))))
    assert (error.field, error.reason) == ("attr_key", "a record has an attribute key twice")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ts": None}, "ts"),
        ({"type": numbers(U8, 0, 3)}, "type"),
        ({"type": None}, "type"),
        ({"name": names((1, 2), b"m", b"n")}, "name"),
        ({"name": names((1, 1), b"m", b"n")}, "name"),
        ({"name": names((1,), b"m", b"n")}, "name"),
        ({"name": names((0, 1), b"m", b"m")}, "name"),
        ({"name": None}, "name"),
        ({"value": numbers(I64, 1, 2)}, "value"),
        ({"value": numbers(F64, 1)}, "value"),
        ({"value": None}, "value"),
        ({"severity": numbers(U8, 1, 2)}, "columns"),
    ],
)
def test_wrong_metric_columns_are_rejected(changes: dict[str, Raw | None], field: str) -> None:
    assert _refused(frame(envelope(kind="metrics"), metrics(**changes))).field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"key": None}, "key"),
        ({"key": texts(b"k")}, "key"),
        ({"val": Raw(TEXT_U8, b"\1\1v")}, "val"),
        ({"ts": steps(10)}, "ts"),
        ({"ts": None}, "min_ts"),
        ({"attr_key": names((0, 0), b"k")}, "columns"),
    ],
)
def test_wrong_entry_columns_are_rejected(changes: dict[str, Raw | None], field: str) -> None:
    assert _refused(frame(envelope(kind="entries"), entries(**changes))).field == field


def _zstd(raw: bytes, **parameters: int | bool) -> bytes:
    return zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters.from_level(3, **parameters)
    ).compress(raw)


def _packed(stored: bytes, raw_bytes: int) -> bytes:
    """Return a frame whose column `body` is stored as these bytes, of a stated raw length."""
    columns = logs()
    columns["body"] = columns["body"]._replace(coding=ZSTD)
    items, body = directory(columns, stored={"body": stored})
    items[items.index("body") + 6] = raw_bytes
    return assembled(encoded(envelope(), items), body)


def test_a_compressed_column_is_one_zstd_frame_of_the_stated_size() -> None:
    """Every other size, and everything besides exactly one frame, is rejected."""
    raw = logs()["body"].data
    good, unsized = _zstd(raw), _zstd(raw, write_content_size=False)
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    decode_frame(_packed(good, len(raw)))
    decode_frame(_packed(unsized, len(raw)))
    for stored, raw_bytes in (
        (good, len(raw) + 1),
        (good, len(raw) - 1),
        (good, 64 << 19),
        (unsized, len(raw) + 1),
        (unsized, len(raw) - 1),
        (good + good, len(raw)),
        (good + skippable, len(raw)),
        (skippable + good, len(raw)),
        (skippable, 4),
        (good + b"\0", len(raw)),
        (good[:-1], len(raw)),
        (good[:6], len(raw)),
        (raw, len(raw)),
        (b"\x28\xb5\x2f\xfd", len(raw)),
        (_zstd(raw, write_checksum=True)[:-1] + b"\0", len(raw)),
    ):
        assert _refused(_packed(stored, raw_bytes)).field == "body", (stored, raw_bytes)


def test_zstd_windows_and_dictionaries_are_rejected() -> None:
    raw = bytes(20 << 20)
    wide = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters.from_level(3, window_log=24)
    ).compress(raw)
    error = _refused(_packed(wide, len(raw)))
    assert (error.field, "window" in error.reason) == ("body", True)
    book = zstandard.train_dictionary(2048, [b"line %d of a log" % n for n in range(500)])
    told = zstandard.ZstdCompressor(dict_data=book).compress(logs()["body"].data)
    assert "dictionary" in _refused(_packed(told, len(logs()["body"].data))).reason
