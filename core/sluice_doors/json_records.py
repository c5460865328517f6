"""Map JSON objects of any form to log records: the JSON door, and documents of Elasticsearch.

Two fields have a meaning, the time and the message. All others become attributes: objects inside
objects have dotted keys, and arrays are JSON text.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Final

from sluice_doors.any_values import free_name, json_text
from sluice_doors.decoded import ERROR_ATTRIBUTE
from sluice_doors.otlp_attributes import EMPTY_KEY
from sluice_doors.otlp_times import TS_END
from sluice_doors.tally import Tally
from sluice_protocol.errors import BadUsage
from sluice_protocol.records import LogRecord
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import NS_PER_S

DEPTH_MAX: Final = 16
"""Objects deeper than this are JSON text, so that keys have a bounded length."""
_UNITS: Final = ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3))
"""Numbers below the first are in units of the second, in ns: seconds, milliseconds, microseconds.
The next unit starts where seconds would be after the year 5000.
"""
_SECOND_CHARACTERS: Final = 19
_FRACTION_DIGITS: Final = 9
_NUMBER_CHARACTERS_MAX: Final = 40
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
    ts_ns = None if stated is None else parse_time(stated)
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


def parse_time(value: object) -> int | None:
    """Return the Unix ns of a time; None if it is none.

    A number is in seconds, milliseconds, microseconds or nanoseconds, by its size. A text is RFC
    3339, in UTC if it has no offset, or such a number.
    """
    match value:
        case str():
            return _from_text(value.strip())
        case bool():
            return None
        case int() | float() | Decimal():
            return _from_number(value)
        case _:
            return None


def _from_number(value: float | Decimal) -> int | None:
    if not 0 < value < TS_END:
        return None
    unit_ns = next((unit for end, unit in _UNITS if value < end), 1)
    # A decimal keeps the digits of the text: a product of doubles is wrong by up to 256 ns.
    found = int(Decimal(str(value)) * unit_ns)
    return found if found < TS_END else None


def _from_text(text: str) -> int | None:
    if len(text) > _SECOND_CHARACTERS and text[-1] == "Z" and text[_SECOND_CHARACTERS] == ".":
        second, fraction = _second_ns(text[:_SECOND_CHARACTERS]), text[20:-1]
        if (
            second is not None
            and fraction.isascii()
            and fraction.isdigit()
            and len(fraction) <= _FRACTION_DIGITS
        ):
            return second + int(fraction.ljust(_FRACTION_DIGITS, "0"))
    if text.isascii() and text[:1].isdigit() and text.replace(".", "", 1).isdigit():
        # A double loses the nanoseconds of a fraction.
        return _from_number(Decimal(text)) if len(text) <= _NUMBER_CHARACTERS_MAX else None
    for offset in ("", "Z"):
        try:
            found = parse_rfc3339(text + offset)
        except BadUsage:
            continue
        return found if 0 <= found < TS_END else None
    return None


@lru_cache(maxsize=1_024)
def _second_ns(text: str) -> int | None:
    """Return the Unix ns of a second in UTC; many records of a request share it."""
    try:
        found = parse_rfc3339(text + "Z")
    except BadUsage:
        return None
    return found if 0 <= found < TS_END - NS_PER_S else None


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
