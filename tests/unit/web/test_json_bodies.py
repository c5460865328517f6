from datetime import date
from enum import IntEnum
from typing import Any
from uuid import UUID

import msgspec
import pytest

from sluice_protocol.errors import BadUsage, ErrorCode
from sluice_web.json_bodies import decode_json_body, encode_json
from sluice_web.problems import problem_of, problem_response


class Colour(msgspec.Struct, frozen=True):
    """A body."""

    name: str


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"name":1}', b'"\xff"', b'{"a":' * 5000, b"[" * 5000]
)
def test_a_body_of_another_form_is_refused(body: bytes) -> None:
    """A deeply nested body, too, is a fault of the client."""
    with pytest.raises(BadUsage, match="body is not a valid Colour"):
        decode_json_body(body, Colour)


class Level(IntEnum):
    """A key."""

    LOW = 1


class Keyed(msgspec.Struct, frozen=True):
    """A response with a mapping in it."""

    by_key: dict[Any, Any]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("b", "a"), b'{"a":0,"b":0}'),
        ((11, 3), b'{"11":0,"3":0}'),
        ((2.5,), b'{"2.5":0}'),
        ((Level.LOW,), b'{"1":0}'),
        ((UUID(int=1),), b'{"00000000-0000-0000-0000-000000000001":0}'),
        ((date(2026, 11, 27),), b'{"2026-11-27":0}'),
    ],
)
def test_keys_of_every_type_are_sorted_texts(keys: tuple[Any, ...], expected: bytes) -> None:
    mapping = dict.fromkeys(keys, 0)
    assert encode_json(mapping) == expected
    assert encode_json(Keyed({"inner": mapping})) == b'{"by_key":{"inner":%b}}' % expected


def test_a_problem_may_quote_text_that_is_not_unicode() -> None:
    response = problem_response(problem_of(ErrorCode.BAD_REQUEST, "not a name, name=`\udcff`"))
    assert b"name=`?`" in bytes(response.body)  # bytes
