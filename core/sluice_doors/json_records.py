"""Map JSON objects of any form to log records: the JSON door, and documents of Elasticsearch.

Two fields have a meaning, the time and the message. All others become attributes: objects inside
objects have dotted keys, and arrays are JSON text.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from typing import Final

from sluice_doors.any_values import free_name, json_text
from sluice_doors.decoded import ERROR_ATTRIBUTE
from sluice_doors.otlp_attributes import EMPTY_KEY
from sluice_doors.tally import Tally
from sluice_protocol.records import LogRecord
from sluice_protocol.times import read_number, read_time

DEPTH_MAX: Final = 16
"""Objects deeper than this are JSON text, so that keys have a bounded length."""
BAD_TIME: Final = "time is not RFC 3339 or a Unix time from 1970 to 2262"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFields:
    """The fields of an object that have a meaning.

    Attributes:
        time: The field with the time; a key, or keys separated by dots.
        message: The field that becomes the body.
        received_ns: The time of records without one.
    """

    time: str
    message: str
    received_ns: int


def record_of(
    found: Mapping[str, object], fields: RecordFields, tally: Tally, extra: Mapping[str, str]
) -> LogRecord:
    """Return the record of an object.

    Args:
        found: The object.
        fields: The fields with a meaning.
        tally: Counts errors; the caller counts sizes.
        extra: Attributes that the object does not contain; renamed `<key>#2` if it does.
    """
    # A shallow copy: the fields with a meaning are removed from it.
    flat = (
        flat_fields(found, fields.message) if dict in set(map(type, found.values())) else {**found}
    )
    message = flat.pop(fields.message, None)
    body = message if isinstance(message, str) else "" if message is None else json_text(message)
    stated = flat.pop(fields.time, None)
    ts_ns = None if stated is None else parse_time(stated, fields.received_ns)
    attributes = {
        key or EMPTY_KEY: value if type(value) is str else json_text(value)
        for key, value in flat.items()
    }
    after: dict[str, int] = {}
    if stated is not None and ts_ns is None:
        tally.unreadable += 1
        text = stated if isinstance(stated, str) else json_text(stated)
        attributes[free_name(fields.time, attributes, after)] = text
        attributes[free_name(ERROR_ATTRIBUTE, attributes, after)] = BAD_TIME
    for key, text in extra.items():
        attributes[free_name(key, attributes, after)] = text
    if ts_ns is None:
        tally.timed = False
        ts_ns = fields.received_ns
    return LogRecord(ts_ns=ts_ns, body=body, attributes=attributes)


def raw_record(
    text: str, reason: str, fields: RecordFields, tally: Tally, extra: Mapping[str, str]
) -> LogRecord:
    """Return what cannot be read as a record: its text, and the reason as an attribute."""
    tally.timed = False
    tally.unreadable += 1
    attributes = {**extra, ERROR_ATTRIBUTE: reason}
    return LogRecord(ts_ns=fields.received_ns, body=text, attributes=attributes)


def parse_time(value: object, received_ns: int | None = None) -> int | None:
    """Return the Unix ns of a time; None if it cannot be read.

    Args:
        value: A number, or a text, which is in UTC if it has no zone (`sluice_protocol.times`).
        received_ns: The basis of a missing year; without it, such a time cannot be read.
    """
    match value:
        case str():
            return read_time(value, zone=UTC, received_ns=received_ns)
        case bool():
            return None
        case int() | float() | Decimal():
            return read_number(value)
        case _:
            return None


def flat_fields(found: Mapping[str, object], message: str) -> dict[str, object]:
    """Return the values of an object by their dotted key.

    Args:
        found: The object.
        message: The key whose value is not divided.
    """
    flat: dict[str, object] = {}
    after: dict[str, int] = {}
    for key, value in _leaves(found, message):
        flat[free_name(key, flat, after)] = value
    return flat


def _leaves(
    found: Mapping[str, object], message: str, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, object]]:
    """Yield the values of an object by their dotted key; the message as a whole."""
    for key, value in found.items():
        name = prefix + key
        if type(value) is dict and value and depth < DEPTH_MAX and name != message:
            yield from _leaves(value, message, f"{name}.", depth + 1)
        else:
            yield name, value
