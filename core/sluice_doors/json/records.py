"""Map JSON objects of any form to log records.

For the JSON door and Elasticsearch, two fields have a meaning, the time and the message. All others
become attributes: objects inside objects have dotted keys, and arrays are JSON text.

`columns_of` builds the columns of many objects without a record in between. Requests of 1 MiB
whose objects all pass through `record_of` take 1.85 (1.47 to 2.09) times the processor time of
the gateway, so only objects with an error do.

`event_record` is for protocols that state the time outside of the object: Fluent's records, the
events of Splunk, and the JSON inside records of Firehose. The body is the first of the fields in
which the usual senders put the line.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import numpy as np

from sluice_doors.attributes import EMPTY_KEY, OWN, Pairs, free_name, json_text, merged
from sluice_doors.decoded import ERROR_ATTRIBUTE, Tally
from sluice_doors.json.values import Unread
from sluice_doors.rows import repaired_log
from sluice_protocol.columns import AttributeColumns, LogColumns
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.records import LogRecord, string_column
from sluice_protocol.times import read_number, read_time

DEPTH_MAX: Final = 16
"""Objects deeper than this are JSON text, so that keys have a bounded length."""
NOT_OBJECT: Final = "record is not a JSON object"
BAD_TIME: Final = "time is not RFC 3339 or a Unix time from 1970 to 2262"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFields:
    """The fields of an object that have a meaning.

    `time` is a key, or keys separated by dots. `message` becomes the body. `received_ns` is the
    time of records without one.
    """

    time: str
    message: str
    received_ns: int


def record_of(
    found: Mapping[str, object], fields: RecordFields, tally: Tally, extra: Mapping[str, str]
) -> LogRecord:
    """Return the record of an object.

    An attribute of `extra` is renamed `<key>#2` if the object contains it. `tally` counts errors;
    the caller counts sizes.
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

    A text without a zone is in UTC (`sluice_protocol.times`). `received_ns` is the basis of a
    missing year; without it, such a time cannot be read.
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
    """Return the values of an object by dotted key; the value of `message` is not divided."""
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


_FEW_OBJECTS: Final = 64
SHAPES_MAX: Final = 1_024
"""Sets of keys that are remembered."""

_Object = dict[str, Any]


class _Shape:
    """The attributes of all objects that have the same keys in the same order."""

    __slots__ = ("names", "values")

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.values = _getter(names)


def _getter(names: Sequence[str]) -> Callable[[_Object], tuple[object, ...]]:
    match names:
        case []:
            return lambda _: ()
        case [name]:
            return lambda found: (found[name],)
        case _:
            return itemgetter(*names)


def columns_of(
    values: Sequence[object],
    fields: RecordFields,
    tally: Tally,
    known_times: Sequence[int] | None = None,
) -> LogColumns:
    """Return the columns of objects in canonical form; what is not an object is kept as text.

    `tally` counts attributes and errors; the caller counts texts. `known_times` are the times of
    the objects, where they were read before.
    """
    before = tally.timed, tally.unreadable
    try:
        return _Built(values, fields, tally, known_times).columns()
    except InvalidFrame:  # text that is not UTF-8
        tally.timed, tally.unreadable = before
        return _Built(values, fields, tally, known_times, repairs=True).columns()


class _Built:
    """The times, texts and attributes of objects."""

    def __init__(
        self,
        values: Sequence[object],
        fields: RecordFields,
        tally: Tally,
        known_times: Sequence[int] | None,
        *,
        repairs: bool = False,
    ) -> None:
        self._fields = fields
        self._tally = tally
        objects: list[_Object] = [one if type(one) is dict else {} for one in values]
        self._read_attributes(objects)
        if dict in set(map(type, chain.from_iterable(self._parts))):
            objects = [_flat(one, fields.message) for one in objects]
            self._read_attributes(objects)
        stated = [one.get(fields.time) for one in objects]
        self._times: list[int | None] = (
            [None if one is None else parse_time(one, fields.received_ns) for one in stated]
            if known_times is None
            else list(known_times)
        )
        self._bodies: list[object] = [one.get(fields.message, "") for one in objects]
        for place, value in enumerate(values):
            if (
                repairs
                or type(value) is not dict
                or (self._times[place] is None and stated[place] is not None)
                or "" in value
                or fields.time == fields.message
            ):
                self._replace(place, value, repairs=repairs)
        tally.timed = tally.timed and None not in self._times

    def _read_attributes(self, objects: Sequence[_Object]) -> None:
        """Read the shape of each object, and the values of its attributes in their order."""
        known: dict[tuple[str, ...], _Shape] = {}
        shapes: list[_Shape] = []
        parts: list[tuple[object, ...]] = []
        meant = {self._fields.time, self._fields.message}
        for found in objects:
            keys = tuple(found)
            shape = known.get(keys)
            if shape is None:
                if len(known) == SHAPES_MAX:
                    known.clear()
                shape = known[keys] = _Shape(sorted(set(keys) - meant))
            shapes.append(shape)
            parts.append(shape.values(found))
        self._shapes, self._parts = shapes, parts

    def _replace(self, place: int, value: object, *, repairs: bool) -> None:
        """Put the record of an object with an error in its place."""
        timed, self._tally.timed = self._tally.timed, True
        record = any_record(value, self._fields, self._tally)
        self._times[place] = record.ts_ns if self._tally.timed else None
        self._tally.timed = timed
        if repairs:
            repaired = repaired_log(record)
            is_new = repaired is not record and ERROR_ATTRIBUTE not in record.attributes
            self._tally.unreadable += is_new
            record = repaired
        self._bodies[place] = record.body
        shape = _Shape(sorted(record.attributes))
        self._shapes[place] = shape
        self._parts[place] = shape.values(dict(record.attributes))

    def columns(self) -> LogColumns:
        """Return the columns; raise `InvalidFrame` if text is not UTF-8."""
        values = list(chain.from_iterable(self._parts))
        self._tally.add_sizes(len(values), 0)
        received_ns = self._fields.received_ns
        return LogColumns(
            ts=np.array([received_ns if at is None else at for at in self._times], np.int64),
            body=string_column("body", _texts(self._bodies, missing="")),
            severity=None,
            attributes=_attribute_columns(self._shapes, _texts(values, missing="null")),
        )


def any_record(value: object, fields: RecordFields, tally: Tally) -> LogRecord:
    """Return the record of a value of JSON; what is not an object is kept as text."""
    if isinstance(value, dict):
        return record_of(value, fields, tally, {})
    if isinstance(value, Unread):
        return raw_record(value.text, value.reason, fields, tally, {})
    return raw_record(json_text(value), NOT_OBJECT, fields, tally, {})


def _texts(values: list[Any], *, missing: str) -> list[str]:
    if set(map(type, values)) <= {str}:
        return values
    return [one if type(one) is str else missing if one is None else _text(one) for one in values]


def _text(value: object) -> str:
    return str(value) if type(value) is int else json_text(value)


def _attribute_columns(shapes: Sequence[_Shape], values: list[str]) -> AttributeColumns | None:
    distinct = list(dict.fromkeys(shapes))
    names = sorted(set().union(*(shape.names for shape in distinct)))
    if not names:
        return None
    string_column("attr_names", names)
    index = {name: place for place, name in enumerate(names)}
    places = {shape: [index[name] for name in shape.names] for shape in distinct}
    if len(distinct) == 1:
        width = len(distinct[0].names)
        offsets = np.arange(0, len(values) + 1, width, dtype=np.int32)
        few = len(shapes) <= _FEW_OBJECTS  # for these, `tile` costs more than a list
        place = places[distinct[0]]
        keys = np.array(place * len(shapes) if few else np.tile(place, len(shapes)), np.uint32)
    else:
        offsets = np.zeros(len(shapes) + 1, np.int32)
        np.cumsum(np.fromiter((len(shape.names) for shape in shapes), np.int32), out=offsets[1:])
        keys = np.fromiter(
            chain.from_iterable(places[shape] for shape in shapes), np.uint32, len(values)
        )
    return AttributeColumns(
        names=tuple(names),
        offsets=offsets,
        keys=keys,
        values=string_column("attr_val", values),
    )


def _flat(found: _Object, message: str) -> _Object:
    nested = dict in set(map(type, found.values()))
    return flat_fields(found, message) if nested else found


MESSAGE_FIELDS: Final = ("message", "log", "MESSAGE", "line")
"""Fluentd and syslog, Fluent Bit and Kubernetes, systemd, and Docker's driver for Splunk."""


def event_record(
    found: Mapping[str, object], *, ts_ns: int, sources: Sequence[tuple[str, Pairs]] = ()
) -> LogRecord:
    """Return the record of an object.

    `sources` are what the protocol states next to the object: pairs of names and texts, and the
    prefix of those names that the object has too.
    """
    field = _message_field(found)
    nested = dict in set(map(type, found.values()))
    flat = flat_fields(found, field) if nested else {**found}
    message = flat.pop(field) if field else ""
    attributes = {
        key: value if type(value) is str else value_as_text(value) for key, value in flat.items()
    }
    if "" in attributes or any(pairs for _, pairs in sources):
        attributes = merged([(OWN, list(attributes.items())), *sources])
    return LogRecord(ts_ns=ts_ns, body=value_as_text(message), attributes=attributes)


def _message_field(found: Mapping[str, object]) -> str:
    for name in MESSAGE_FIELDS:
        if found.get(name) is not None:
            return name
    return ""


def value_as_text(value: object) -> str:
    """Return a text as it is, and any other value as canonical JSON text."""
    if isinstance(value, Unread):
        return value.text
    return value if type(value) is str else json_text(value)
