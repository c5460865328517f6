"""The types of attribute values: what a frame may state, and that nothing on the way loses one."""

import time
from typing import Any

import pytest
from support.frames import identity
from support.raw_frames import (
    TEXT_U8,
    TEXT_U16,
    U8,
    U16,
    Raw,
    attributes,
    envelope,
    frame,
    logs,
    numbers,
)
from support.raw_frames import texts as raw_texts

from sluice_protocol.columns import LogColumns, join_columns, slice_columns
from sluice_protocol.errors import BadUsage, InvalidFrame
from sluice_protocol.frame import (
    decode_frame,
    decode_head,
    encode_frame,
    join_columns_of,
    raw_columns,
)
from sluice_protocol.ndjson import attribute_rows, columns_from_ndjson, ndjson_from_columns
from sluice_protocol.records import LogRecord, logs_from_records, shared_attributes
from sluice_protocol.values import (
    BooleanText,
    BytesText,
    FloatText,
    IntegerText,
    JsonText,
    TypedText,
)

VALUES: dict[str, str] = {
    "text": "500",
    "word": "true",
    "integer": IntegerText("500"),
    "large": IntegerText("9223372036854775808"),
    "float": FloatText("1.5"),
    "far": FloatText("1e300"),
    "zero": FloatText("-0.0"),
    "nan": FloatText("NaN"),
    "below": FloatText("-Infinity"),
    "boolean": BooleanText("true"),
    "null": JsonText("null"),
    "list": JsonText('[1,"a\\nb"]'),
    "map": JsonText('{"a":{"b":1.50}}'),
    "bytes": BytesText("AP8="),
    "none": BytesText(""),
}


def typed(columns: Any) -> list[dict[str, tuple[str, str]]]:
    return [
        {
            key: (one.type.label if isinstance(one, TypedText) else "text", str(one))
            for key, one in row.items()
        }
        for row in attribute_rows(columns.attributes, len(columns))
    ]


def columns_of(*rows: dict[str, str]) -> LogColumns:
    return logs_from_records(
        [LogRecord(ts_ns=at, body="b", attributes=row) for at, row in enumerate(rows)]
    )


def encoded_of(columns: LogColumns, **options: Any) -> bytes:
    return encode_frame(identity=identity(len(columns)), columns=columns, **options)


@pytest.mark.parametrize("compress", [False, True])
def test_a_frame_keeps_the_text_and_the_type_of_each_value(compress: bool) -> None:
    columns = columns_of(VALUES, {}, {"integer": "500"})
    found = decode_frame(encoded_of(columns, compress=compress)).columns
    assert typed(found) == typed(columns)
    assert typed(found)[2] == {"integer": ("text", "500")}


def test_a_frame_whose_values_are_text_has_no_column_of_types() -> None:
    """Such a frame costs nothing and has the same bytes as before types existed."""
    head = decode_head(encoded_of(columns_of({"a": "1"}, {"b": "true"})))
    assert "attr_type" not in {one.name for one in head.columns}


@pytest.mark.parametrize("key", VALUES)
def test_ndjson_shows_each_value_and_reads_it_back(key: str) -> None:
    columns = columns_of({key: VALUES[key]})
    lines = list(ndjson_from_columns(columns))
    assert typed(columns_from_ndjson("logs", lines)) == typed(columns)


def test_ndjson_has_the_types_of_json() -> None:
    """Integers keep all digits, floats their form, and a text that is a number stays a string."""
    [line] = ndjson_from_columns(columns_of(VALUES))
    for shown in (
        '"text":"500"', '"word":"true"', '"integer":500', '"large":9223372036854775808',
        '"float":1.5', '"far":1e300', '"zero":-0.0', '"nan":"NaN"', '"boolean":true', '"null":null',
        '"list":[1,"a\\nb"]', '"map":{"a":{"b":1.50}}', '"bytes":"AP8="',
    ):  # fmt: skip
        assert shown in line


def test_ndjson_refuses_the_type_of_a_value_that_is_not_there() -> None:
    line = '{"ts":1,"body":"b","attributes":{"a":1},"attribute_types":{"a":"bytes"}}'
    with pytest.raises(BadUsage, match=r"line 1: .*attribute_types.*a"):
        columns_from_ndjson("logs", [line])


def test_records_without_spaces_are_the_same_as_with_them() -> None:
    line = '{"ts":1,"body":"b","attributes":{"m": { "a" : [ 1 , 2.50 ] } } }'
    assert typed(columns_from_ndjson("logs", [line])) == [{"m": ("json", '{"a":[1,2.50]}')}]


def test_ranges_and_joins_of_columns_keep_types() -> None:
    """A range without a typed value has no types, and joining it to one with types works."""
    columns = columns_of({"a": "x"}, VALUES, {"a": IntegerText("1")}, {})
    parts = [slice_columns(columns, at, at + 1) for at in range(4)]
    first, last = parts[0].attributes, parts[3].attributes
    assert first is not None
    assert first.types is None
    assert last is None
    assert typed(join_columns(parts)) == typed(columns)


def test_attributes_that_records_share_keep_types() -> None:
    found = shared_attributes(VALUES, 3)
    assert found is not None
    assert found.types is not None
    rows = list(attribute_rows(found, 3))
    assert rows == [dict(sorted(VALUES.items()))] * 3
    assert [type(one) for one in rows[2].values()] == [type(VALUES[key]) for key in rows[2]]


def joined(frames: list[bytes]) -> Any:
    heads = [decode_head(one) for one in frames]
    raw = [raw_columns(head, one) for head, one in zip(heads, frames, strict=True)]
    return join_columns_of("logs", raw, [head.envelope.count for head in heads])


def test_frames_that_are_decoded_together_keep_types() -> None:
    one, two = columns_of(VALUES), columns_of(VALUES, {"a": IntegerText("7")})
    found = joined([encoded_of(one), encoded_of(two)])
    assert typed(found) == typed(one) + typed(two)


def test_frames_are_not_decoded_together_if_one_needs_no_types() -> None:
    """The frame alone would be refused, so it is decoded alone to find the reason."""
    good = columns_of({"a": IntegerText("7")})
    frames = [encoded_of(good), frame(envelope(), logs(**attributes(), **_types(0, 0)))]
    assert joined(frames) is None


def _types(*values: int, kind: int = U8) -> dict[str, Raw]:
    return {"attr_type": numbers(kind, *values)}


def refusal(**columns: Any) -> str:
    with pytest.raises(InvalidFrame) as caught:
        decode_frame(frame(envelope(), logs(**columns)))
    return str(caught.value)


def test_a_frame_refuses_types_of_another_number_or_range() -> None:
    for values, reason in (
        ([1, 1, 1], "must have 2 values"),
        ([1], "must have 2 values"),
        ([0, 0], "leave the column out"),
        ([6, 0], "above 5"),
        ([255, 255], "above 5"),
    ):
        found = refusal(**attributes(), **_types(*values))
        assert "attr_type" in found
        assert reason in found
    assert "attr_type" in refusal(**attributes(), **_types(1, 1, kind=U16))
    assert "is missing" in refusal(**dict.fromkeys(attributes()), **_types(1))


WRONG: dict[int, list[bytes]] = {
    1: [b"", b"-", b"01", b"+1", b"1.0", b"1e3", b" 1", b"1\n2", b"1\n", b"\n", b"0x1", b"1_0"],
    2: [b"", b"1", b"1.", b".5", b"01.5", b"1e", b"nan", b"inf", b"+Infinity", b"1.0\n2.0",
        b"1 .0"],
    3: [b"", b"True", b"1", b"truefalse", b"true\nfalse", b"false\n", b"tru"],
    4: [b"", b"1", b'"a"', b"true", b"[1", b"[1],[2]", b" []", b"[] ", b"nul", b"nullnull", b"[01]",
        b"{}{}", b'{"a":}', b"[NaN]", b'["\x01"]', b"[" * 129 + b"]" * 129,
        b"[" * 5_000 + b"]" * 5_000],
    5: [b"A", b"AA", b"AA=", b"AB==", b"A===", b"AA==AA==", b"A_==", b"AA==\n", b"AA==\nAA=="],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), [(k, one) for k, ones in WRONG.items() for one in ones])
def test_a_value_without_the_form_of_its_type_is_refused(kind: int, value: bytes) -> None:
    """Otherwise a reader that shows it as JSON would show damaged JSON, or another value."""
    values = raw_texts(value, b"x", kind=TEXT_U8 if len(value) <= 255 else TEXT_U16)
    found = refusal(**(attributes() | {"attr_val": values}), **_types(kind, 0))
    assert "attr_type" in found


def test_json_of_as_many_levels_as_doors_send_is_accepted() -> None:
    """The limit does not depend on the stack of the reader; brackets in a text do not count."""
    for value in ("[" * 128 + "]" * 128, '["' + "[" * 500 + '"]', "[" + "[]," * 500 + "[]]"):
        columns = columns_of({"a": JsonText(value)})
        assert typed(decode_frame(encoded_of(columns)).columns) == typed(columns)


def test_neighbours_do_not_complete_a_value() -> None:
    """Values are checked together, but `[1` next to `2]` is no JSON, and `1` next to `2` is two."""
    values = raw_texts(b"[1", b"2]")
    found = refusal(**(attributes() | {"attr_val": values}), **_types(4, 4))
    assert "attr_type" in found


@pytest.mark.parametrize(
    "value",
    [
        IntegerText("9" * 1_000_000),
        FloatText("0." + "9" * 1_000_000),
        BytesText("AAAA" * 250_000),
        JsonText("[" + "1," * 400_000 + "1]"),
    ],
)
def test_a_huge_value_is_checked_in_linear_time(value: str) -> None:
    columns = columns_of({"a": value})
    began = time.process_time()
    data = encoded_of(columns)
    assert typed(decode_frame(data).columns) == typed(columns)
    assert time.process_time() - began < 5.0


def test_types_survive_an_unaligned_and_empty_column() -> None:
    """Records without attributes between records with them move no type to another value."""
    rows: list[dict[str, str]] = [
        {},
        {"a": IntegerText("1"), "b": "1"},
        {},
        {"b": BooleanText("false")},
        {},
    ]
    found = decode_frame(encoded_of(columns_of(*rows))).columns
    assert isinstance(found, LogColumns)
    assert found.attributes is not None
    assert found.attributes.types is not None
    assert found.attributes.types.tolist() == [1, 0, 3]
    assert [list(one) for one in typed(found)] == [[], ["a", "b"], [], ["b"], []]
