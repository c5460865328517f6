"""Decode JSON: objects on separate lines, or one array of objects."""

from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

from sluice_doors.decoded import (
    RECORDS_MAX,
    BodyUnreadable,
    DecodedRecords,
    check_count,
    check_lines,
)
from sluice_doors.json_records import RecordFields, columns_of
from sluice_doors.json_values import (
    is_binary,
    read_json,
    read_json_lines,
    read_or_keep,
    read_tolerantly,
    value_texts,
    without_bom,
)
from sluice_doors.tally import Tally
from sluice_protocol.json_errors import UNREADABLE_JSON


def decode_json(
    body: bytes, *, time_field: str, message_field: str, received_ns: int
) -> tuple[DecodedRecords, ...]:
    """Return the records of a body of JSON; empty if it has none.

    What is not an object is kept as text.

    Args:
        body: Lines of objects, one array of objects, or objects that follow each other.
        time_field: The field with the time; keys of nested objects are separated by dots.
        message_field: The field that becomes the body of the record.
        received_ns: The time of records that contain none.

    Raises:
        BodyUnreadable: No part of the body is a JSON object, and it is no text.
        BodyTooLarge: There are too many records, or they expand to more than the limits.
    """
    check_lines(body)
    objects = _objects(body)
    check_count(objects)
    if not objects:
        return ()
    tally = Tally()
    tally.add_sizes(0, len(body))
    fields = RecordFields(time=time_field, message=message_field, received_ns=received_ns)
    columns = columns_of(objects, fields, tally)
    return (replace(tally.decoded(columns), is_canonical=True),)


def decode_objects(body: bytes) -> list[Any]:
    """Return the values on the lines, or in the one array, of a body.

    Raises:
        msgspec.DecodeError: The body, or one of its lines, is not JSON.
    """
    return read_json(body) if _is_array(body) else read_json_lines(body)


def _objects(body: bytes) -> list[Any]:
    """Return the values of a body; an `Unread` for each part that cannot be read.

    Raises:
        BodyUnreadable: It is no text.
    """
    with suppress(*UNREADABLE_JSON):
        return decode_objects(body)
    if _is_array(body):
        found = read_tolerantly(body, 1)
        if isinstance(found, list):
            return found
    lines = [read_or_keep(line) for line in body.split(b"\n") if without_bom(line).strip()]
    # An object may have line ends inside, and another may follow it on the same line.
    texts = list(islice(value_texts(body), RECORDS_MAX + 1))
    found = max(lines, [read_or_keep(text) for text in texts], key=_goodness)
    if is_binary(body) and not any(isinstance(one, dict) for one in found):
        raise BodyUnreadable(
            "cannot read body as JSON: it has no object and is no text; a compressed body needs"
            " its Content-Encoding"
        )
    return found


def _goodness(values: list[Any]) -> tuple[int, int]:
    """Return by what the better of two ways to divide a body is found."""
    return sum(isinstance(one, dict) for one in values), -len(values)


def _is_array(body: bytes) -> bool:
    return without_bom(body[:64]).lstrip()[:1] == b"["
