"""Decode JSON: objects on separate lines, or one array of objects."""

from dataclasses import replace
from typing import Any, Final

import msgspec

from sluice_doors.any_values import json_text
from sluice_doors.decoded import (
    REASON_CHARACTERS_MAX,
    BodyUnreadable,
    DecodedRecords,
    check_count,
    check_lines,
)
from sluice_doors.json_columns import FoundColumns, columns_of
from sluice_doors.json_records import RecordFields, raw_record, record_of
from sluice_doors.otlp_logs import logs_from_rows
from sluice_doors.tally import Tally
from sluice_protocol.json_errors import UNREADABLE_JSON
from sluice_protocol.records import LogRecord

_JSON: Final = msgspec.json.Decoder()
NOT_OBJECT: Final = "record is not a JSON object"
_NO_EXTRA: Final[dict[str, str]] = {}


def decode_json(
    body: bytes, *, time_field: str, message_field: str, received_ns: int
) -> tuple[DecodedRecords, ...]:
    """Return the records of a body of JSON; empty if it has none.

    Args:
        body: Lines of objects, one array of objects, or one object.
        time_field: The field with the time; keys of nested objects are separated by dots.
        message_field: The field that becomes the body of the record.
        received_ns: The time of records that contain none.

    Raises:
        BodyUnreadable: No part of the body is a JSON object.
        BodyTooLarge: There are too many records, or they expand to more than the limits.
    """
    check_lines(body)
    fields = RecordFields(time=time_field, message=message_field, received_ns=received_ns)
    tally = Tally()
    objects = _objects(body)
    if objects is not None:
        check_count(objects)
        if set(map(type, objects)) == {dict}:
            found = columns_of(objects, fields)
            if found is not None:
                return (_counted(found, len(body)),)
        rows = [_record(one, fields, tally) for one in objects]
    else:
        rows = [_line(line, fields, tally) for line in body.split(b"\n") if line.strip()]
    if not rows:
        return ()
    if tally.raw == len(rows):
        raise BodyUnreadable("cannot read body as JSON: no line is an object")
    tally.add_sizes(sum(len(row.attributes) for row in rows), len(body))
    columns = logs_from_rows(rows, tally)
    return (tally.decoded(columns),)


def _counted(found: FoundColumns, body_bytes: int) -> DecodedRecords:
    attributes = found.columns.attributes
    tally = Tally(timed=found.timed)
    tally.add_sizes(0 if attributes is None else len(attributes.keys), body_bytes)
    return replace(tally.decoded(found.columns), is_canonical=True)


def decode_objects(body: bytes) -> list[Any]:
    """Return the values on the lines, or in the one array, of a body.

    Raises:
        msgspec.DecodeError: The body, or one of its lines, is not JSON.
    """
    return _JSON.decode(body) if _is_array(body) else _JSON.decode_lines(body)


def _objects(body: bytes) -> list[Any] | None:
    """Return the values if the whole body is JSON; None if each line has to be read."""
    try:
        return decode_objects(body)
    except UNREADABLE_JSON as error:
        if _is_array(body):
            raise BodyUnreadable(f"cannot read body as JSON: {error}") from error
    try:
        return [_JSON.decode(body)]  # one object that has line ends inside
    except UNREADABLE_JSON:
        return None


def _is_array(body: bytes) -> bool:
    return body[:64].lstrip()[:1] == b"["


def _record(found: object, fields: RecordFields, tally: Tally) -> LogRecord:
    if isinstance(found, dict):
        return record_of(found, fields, tally, _NO_EXTRA)
    return raw_record(json_text(found), NOT_OBJECT, fields, tally, _NO_EXTRA)


def _line(line: bytes, fields: RecordFields, tally: Tally) -> LogRecord:
    try:
        found = _JSON.decode(line)
    except UNREADABLE_JSON as error:
        text = line.rstrip(b"\r").decode(errors="surrogateescape")
        return raw_record(text, str(error)[:REASON_CHARACTERS_MAX], fields, tally, _NO_EXTRA)
    return _record(found, fields, tally)
