"""Records that are decoded with those of other requests are the same records."""

import json
import random
from typing import Any

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from sluice_doors.decoded import DecodedRecords, canonical
from sluice_doors.json.ingest import decode_json
from sluice_doors.json.records import SHAPES_MAX, RecordFields
from sluice_doors.json.timed_lines import TimedLines, columns_of_lines, lines_digest, timed_lines
from sluice_protocol.column_codings import encode_columns
from sluice_protocol.columns import columns_bytes, join_columns
from sluice_protocol.meaning import BODY_KEYS, TIME_KEYS

TIMES = st.sampled_from(["2025-11-22T00:00:00.5Z", " 2025-11-22T00:00:00", 1_763_000_000.25, "1"])
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.lists(st.integers(0, 3), max_size=2)
    | st.lists(st.dictionaries(st.text(max_size=2), st.integers(0, 3), max_size=2), max_size=2)
)
OBJECTS = st.lists(
    st.builds(
        lambda time, others: {**others, "time": time},
        TIMES,
        st.dictionaries(st.sampled_from(["message", "a", "b.c", "é", "\0", "z"]), VALUES),
    ),
    min_size=1,
    max_size=4,
)


def body_of(objects: list[dict[str, Any]], **options: Any) -> bytes:
    return "\n".join(json.dumps(one, **options) for one in objects).encode()


def read(body: bytes) -> TimedLines:
    found = timed_lines(body, TIME_KEYS, BODY_KEYS)
    assert found is not None
    return found


def payload_of(body: bytes) -> bytes:
    (decoded,) = decode_json(body, RecordFields(received_ns=1))
    return encode_columns(decoded.columns)


@given(requests=st.lists(OBJECTS, min_size=1, max_size=3))
@example(requests=[[{"time": 1, "a": 1e300, "b": -0.0}], [{"time": "1", "a": 10**19}]])
def test_a_group_has_the_columns_of_its_requests(requests: list[list[dict[str, Any]]]) -> None:
    bodies = [body_of(one) for one in requests]
    found = [read(body) for body in bodies]
    columns = [decode_json(body, RecordFields(received_ns=1))[0].columns for body in bodies]
    together = columns_of_lines(found)
    assert together.ts.tolist() == [at for one in found for at in one.times]
    joined = DecodedRecords(columns=join_columns(columns), resource=(), timed=True, unreadable=0)
    assert encode_columns(together) == encode_columns(canonical(joined).columns)
    event(f"{len(requests)} requests")


@given(objects=OBJECTS, seed=st.integers(0, 100))
def test_the_order_of_keys_and_white_space_do_not_change_the_digest(
    objects: list[dict[str, Any]], seed: int
) -> None:
    mixed = [dict(random.Random(seed).sample(list(one.items()), len(one))) for one in objects]
    other = read(json.dumps(mixed, indent=1).encode())  # an array
    found = read(body_of(objects, separators=(",", ":")))
    assert lines_digest(other) == lines_digest(found)
    assert (other.size_bytes, other.times) == (found.size_bytes, found.times)


@given(objects=OBJECTS)
def test_columns_are_not_larger_than_stated(objects: list[dict[str, Any]]) -> None:
    found = read(body_of(objects))
    assert columns_bytes(columns_of_lines([found])) <= found.size_bytes


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"text",
        b'{"time":1}\ntext',
        b'{"time":1}\n[1]',
        b'{"message":"m"}',
        b'{"time":null}',
        b'{"time":"soon"}',
        b'{"time":1,"a":{"b":1}}',
        b'{"time":1,"":1}',
        b'{"time":1,"a":"\\ud800"}',
        b'{"time":1,"a":"\xff"}',
        b'{"time":1,"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    ],
)
def test_other_bodies_are_left_to_the_decoder(body: bytes) -> None:
    assert timed_lines(body, TIME_KEYS, BODY_KEYS) is None


def test_one_field_with_two_meanings_is_left_to_the_decoder() -> None:
    assert timed_lines(b'{"time":1}', "time", "time") is None


def test_a_group_with_more_shapes_than_the_limit_has_all_records() -> None:
    bodies = [body_of([{"time": 1, str(place): "v"}]) for place in range(SHAPES_MAX + 1)]
    columns = columns_of_lines([read(body) for body in bodies])
    assert encode_columns(columns) == payload_of(b"\n".join(bodies))


def test_each_part_changes_the_digest_and_the_form_is_pinned() -> None:
    """Gateways of all versions derive the same identity, or an upgrade doubles what is retried."""
    body = b'{"message":"m","time":1,"a":1}\n{"time":2}'
    digests = {
        lines_digest(found)
        for found in (
            read(body),
            read(body.replace(b"2", b"3")),
            timed_lines(body, TIME_KEYS, ("a",)),
            timed_lines(b'{"message":"m","time":1,"a":"1"}\n{"time":2}', TIME_KEYS, BODY_KEYS),
        )
        if found is not None
    }
    assert len(digests) == 4
    assert lines_digest(read(body)).hex() == (
        "67739756c3fb324ed7f585a72deb791f34212c69eec71c48bda0429261889f16"
    )
