"""Map JSON objects of any form to log records.

Two fields of an object have a meaning when it is accepted, the time and the message, under one of
several keys (`sluice_protocol.meaning`). All others become attributes: objects inside objects have
dotted keys, and arrays are JSON text.

`columns_of` builds the columns of many objects without a record in between. Requests of 1 MiB
whose objects all pass through `record_of` take 1.85 (1.47 to 2.09) times the processor time of
the gateway, so only objects with an error do.

`event_record` is for protocols that state the time outside of the object: Fluent's records, the
events of Splunk, and the JSON inside records of Firehose.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import numpy as np

from sluice_doors.attributes import (
    EMPTY_KEY,
    OWN,
    Pairs,
    free_name,
    json_text,
    merged,
    typed_text,
)
from sluice_doors.decoded import ERROR_ATTRIBUTE, Tally
from sluice_doors.json.values import Unread
from sluice_doors.rows import repaired_log
from sluice_protocol.columns import U8, AttributeColumns, LogColumns
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.meaning import BESIDE, BODY_KEYS, TEMPLATE_TIME, TIME_KEYS
from sluice_protocol.records import LogRecord, string_column
from sluice_protocol.times import TS_END, read_number, read_time
from sluice_protocol.units import NS_PER_S
from sluice_protocol.values import TypedText, ValueType, some_types

DEPTH_MAX: Final = 16
"""Objects deeper than this are JSON text, so that keys have a bounded length."""
DIVIDED_NAME_MAX: Final = 128
"""Objects with a longer dotted name are JSON text: their name would be repeated for each key."""
NOT_OBJECT: Final = "record is not a JSON object"
BAD_TIME: Final = "time is not RFC 3339 or a Unix time from 1970 to 2262"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFields:
    """The keys of an object that have a meaning; nested ones are separated by dots.

    The first of `time` with a time counts, and the first of `message` with a text is the body. A
    single key was named by the client, and counts whatever its value is. `received_ns` is the time
    of records without one.
    """

    time: tuple[str, ...] = TIME_KEYS
    message: tuple[str, ...] = BODY_KEYS
    received_ns: int

    @property
    def undivided(self) -> str:
        """The key whose value is one text, also if it is an object."""
        return self.message[0]

    def may_be_time(self, key: str, found: Container[str]) -> bool:
        """Return whether a key of an object may have its time: named, or with its companions."""
        return key in self.time and (len(self.time) == 1 or _counts(key, found))

    def time_of(
        self, found: Mapping[str, object], received_ns: int | None
    ) -> tuple[str, int | None]:
        """Return the key of the time of an object and the time in Unix ns.

        The key is empty if the object has none, and the time None if it cannot be read; without
        `received_ns` also if it has no year.
        """
        if len(self.time) == 1:
            [key] = self.time
            stated = found.get(key)
            return ("", None) if stated is None else (key, parse_time(stated, received_ns))
        wrong = ""
        for key in self.time:
            stated = found.get(key)
            if stated is None or not _counts(key, found):
                continue
            ts_ns = parse_time(stated, received_ns)
            if ts_ns is not None and key == _SECONDS:
                ts_ns = _with_rest(ts_ns, found)
            is_named = key in _NAMED_TIMES
            if ts_ns is not None and (is_named or ts_ns >= _TIME_MIN_NS):
                return key, ts_ns
            if ts_ns is None and is_named and not wrong:
                wrong = key
        return wrong, None

    def message_of(self, found: Mapping[str, object]) -> str | None:
        """Return the key of the body of an object; None if it has none."""
        if len(self.message) > 1:
            for key in self.message:
                value = found.get(key)
                if value and type(value) is str:
                    return key
        return self.message[0] if self.message[0] in found else None


_NAMED_TIMES: Final = frozenset(TIME_KEYS[:3])
"""Keys under which a value that is no time is an error; `ts` and others have other uses too."""
_TIME_MIN_NS: Final = 10**8 * NS_PER_S
"""Under those other keys a number below 10^8 is no time: it would be before 1973."""
_SECONDS: Final = "instant.epochSecond"
"""Log4j's JSON layout has the rest of the second under another key, which stays an attribute."""


def _with_rest(ts_ns: int, found: Mapping[str, object]) -> int | None:
    """Return the time with the rest of its second; None if that is out of range."""
    rest = found.get("instant.nanoOfSecond")
    ts_ns += rest if type(rest) is int and 0 <= rest < NS_PER_S else 0
    return ts_ns if ts_ns < TS_END else None


def _counts(key: str, found: Container[str]) -> bool:
    """Return whether the keys that a key needs next to it are present."""
    return key not in BESIDE or all(one in found for one in BESIDE[key])


_UTC_ENDS: Final = ("Z", "z", "+00:00")


def shows_all(key: str, stated: object) -> bool:
    """Return whether the time shows what was sent under a key: a number, or RFC 3339 in UTC."""
    if key == TEMPLATE_TIME:
        return False
    return type(stated) is not str or (stated.endswith(_UTC_ENDS) and stated[10:11] in ("T", "t"))


def record_of(
    found: Mapping[str, object], fields: RecordFields, tally: Tally, extra: Mapping[str, str]
) -> LogRecord:
    """Return the record of an object.

    An attribute of `extra` is renamed `<key>#2` if the object contains it. `tally` counts errors;
    the caller counts sizes.
    """
    # A shallow copy: the fields with a meaning are removed from it.
    flat = {**flat_fields(found, fields.undivided)}
    body_key = fields.message_of(flat)
    message = None if body_key is None else flat.pop(body_key)
    body = message if isinstance(message, str) else "" if message is None else json_text(message)
    key, ts_ns = fields.time_of(flat, fields.received_ns or None)
    wrong = flat.pop(key) if key and ts_ns is None else None
    if ts_ns is not None and shows_all(key, flat[key]):
        del flat[key]
    attributes = {
        name or EMPTY_KEY: value if type(value) is str else typed_text(value)
        for name, value in flat.items()
        if value is not None or not fields.may_be_time(name, flat)
    }
    after: dict[str, int] = {}
    if wrong is not None:
        tally.unreadable += 1
        text = typed_text(wrong)
        attributes[free_name(key, attributes, after)] = text
        attributes[free_name(ERROR_ATTRIBUTE, attributes, after)] = BAD_TIME
    for name, text in extra.items():
        attributes[free_name(name, attributes, after)] = text
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


def flat_fields(found: Mapping[str, Any], message: str) -> Mapping[str, Any]:
    """Return the values of an object by dotted key; the value of `message` is not divided.

    An object without objects inside is returned itself.
    """
    if dict not in set(map(type, found.values())):
        return found
    flat: dict[str, Any] = {}
    _flatten(found, message, "", 0, flat, {})
    return flat


def names_size(found: Mapping[str, object]) -> int:
    """Return the characters of the dotted keys of an object."""
    return sum(map(len, flat_fields(found, "")))


def _flatten(
    found: Mapping[str, Any],
    message: str,
    prefix: str,
    depth: int,
    flat: dict[str, Any],
    after: dict[str, int],
) -> None:
    """Add the values of an object under their dotted keys; the message as a whole."""
    for key, value in found.items():
        name = prefix + key
        if (
            type(value) is dict
            and value
            and depth < DEPTH_MAX
            and len(name) <= DIVIDED_NAME_MAX
            and name != message
        ):
            _flatten(value, message, f"{name}.", depth + 1, flat, after)
        else:
            flat[free_name(name, flat, after) if name in flat else name] = value


_FEW_OBJECTS: Final = 64
SHAPES_MAX: Final = 1_024
"""Sets of keys that are remembered."""

_Object = Mapping[str, Any]


_NO_FIELDS: Final = RecordFields(time=(), message=(), received_ns=0)
_NO_KEY: Final[Any] = None
"""A key that no object has."""


class _Shape:
    """What objects with the same keys in the same order have in common.

    Attributes:
        when: The key of the time; a key that no object has if there is none.
        body: Likewise of the body.
        is_unsure: Whether only the values show if `when` is the time.
        settled_ns: From which time on `when` is the time nevertheless.
        others: Further keys that may have the time.
        names: The keys of the attributes, sorted.
        values: Gets the values of these from an object.
    """

    __slots__ = ("_timed", "body", "is_unsure", "names", "others", "settled_ns", "values", "when")

    def __init__(self, keys: Sequence[str], fields: RecordFields) -> None:
        bodies = [key for key in fields.message if key in keys]
        self.body = bodies[0] if bodies else _NO_KEY
        rest = set(keys) - {self.body}  # the body is no time, and no companion of one
        times = [key for key in fields.time if key in rest and fields.may_be_time(key, rest)]
        self.when = times[0] if times else _NO_KEY
        named = len(fields.time) == 1 or self.when in _NAMED_TIMES
        self.is_unsure = len(times) > 1 or (bool(times) and not named)
        is_whole = self.when != _SECONDS  # the rest of its second may be elsewhere
        self.settled_ns = 0 if named and is_whole else _TIME_MIN_NS if is_whole else TS_END
        self.others = times[1:]
        self._timed: _Shape | None = None
        self.set_names(rest - {self.when})

    def set_names(self, names: Iterable[str]) -> None:
        """Choose the attributes."""
        self.names = sorted(names)
        self.values = _getter(self.names)

    def with_time(self) -> "_Shape":
        """Return the shape of the objects whose time is an attribute too."""
        if self._timed is None:
            self._timed = copy(self)
            self._timed.set_names([*self.names, self.when])
        return self._timed

    def is_odd(self, found: _Object) -> bool:
        """Return whether the body of an object is elsewhere, or is not a text."""
        body = found.get(self.body, "-")
        return type(body) is not str or not body


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
        self._read(objects, known_times)
        for place, value in enumerate(values):
            if repairs or place in self._odd or type(value) is not dict or "" in value:
                self._replace(place, value, repairs=repairs)
        tally.timed = tally.timed and None not in self._times

    def _read(self, objects: Sequence[_Object], known_times: Sequence[int] | None) -> None:
        """Read time, body and attributes of each object, and which objects are odd."""
        self._read_attributes(objects)
        if dict in set(map(type, chain.from_iterable(self._parts))):
            objects = [flat_fields(one, self._fields.undivided) for one in objects]
            self._read_attributes(objects)
        rows = list(zip(objects, self._shapes, strict=True))
        self._bodies = [one.get(shape.body, "") for one, shape in rows]
        self._odd: set[int] = set()
        if set(map(type, self._bodies)) != {str} or "" in self._bodies:
            self._odd.update(at for at, (one, shape) in enumerate(rows) if shape.is_odd(one))
        stated = [one.get(shape.when) for one, shape in rows]
        received_ns = self._fields.received_ns or None
        self._are_of_when = known_times is None
        self._times: list[int | None] = (
            [None if one is None else parse_time(one, received_ns) for one in stated]
            if known_times is None
            else list(known_times)
        )
        found = enumerate(zip(self._shapes, stated, self._times, strict=True))
        for at in [
            at
            for at, (shape, value, ts_ns) in found
            if shape.is_unsure
            or (value is not None and (ts_ns is None or not shows_all(shape.when, value)))
        ]:
            self._check_time(at, objects[at])

    def _read_attributes(self, objects: Sequence[_Object]) -> None:
        """Read the shape of each object, and the values of its attributes in their order."""
        known: dict[tuple[str, ...], _Shape] = {}
        self._shapes: list[_Shape] = []
        self._parts: list[tuple[object, ...]] = []
        for found in objects:
            keys = tuple(found)
            shape = known.get(keys)
            if shape is None:
                if len(known) == SHAPES_MAX:
                    known.clear()
                shape = known[keys] = _Shape(keys, self._fields)
                self._tally.add_sizes(0, sum(map(len, keys)))
            self._shapes.append(shape)
            self._parts.append(shape.values(found))

    def _check_time(self, place: int, found: _Object) -> None:
        """Note an object whose time is elsewhere or cannot be read, or is an attribute too."""
        shape = self._shapes[place]
        key, ts_ns = shape.when, self._times[place]
        is_settled = self._are_of_when and ts_ns is not None and ts_ns >= shape.settled_ns
        if shape.is_unsure and not is_settled:
            key, self._times[place] = self._fields.time_of(found, self._fields.received_ns or None)
        has_null = None in map(found.get, shape.others)  # null is no time, and no attribute
        if self._times[place] is None or key != shape.when or has_null:
            self._odd.add(place)
        elif not shows_all(key, found[key]):
            shape = self._shapes[place] = shape.with_time()
            self._parts[place] = shape.values(found)

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
        shape = _Shape(tuple(record.attributes), _NO_FIELDS)
        self._shapes[place] = shape
        self._parts[place] = shape.values(dict(record.attributes))

    def columns(self) -> LogColumns:
        """Return the columns; raise `InvalidFrame` if text is not UTF-8."""
        values, types = _typed_texts(list(chain.from_iterable(self._parts)))
        self._tally.add_sizes(len(values), 0)
        received_ns = self._fields.received_ns
        return LogColumns(
            ts=np.array([received_ns if at is None else at for at in self._times], np.int64),
            body=string_column("body", _body_texts(self._bodies)),
            severity=None,
            attributes=_attribute_columns(self._shapes, values, types),
        )


def any_record(value: object, fields: RecordFields, tally: Tally) -> LogRecord:
    """Return the record of a value of JSON; what is not an object is kept as text."""
    if isinstance(value, dict):
        return record_of(value, fields, tally, {})
    if isinstance(value, Unread):
        return raw_record(value.text, value.reason, fields, tally, {})
    return raw_record(json_text(value), NOT_OBJECT, fields, tally, {})


def _body_texts(values: list[Any]) -> list[str]:
    if set(map(type, values)) <= {str}:
        return values
    return ["" if one is None else value_as_text(one) for one in values]


def _typed_texts(values: list[Any]) -> tuple[list[str], U8 | None]:
    """Return values as texts, in place, and their types; None if all are text."""
    classes = list(map(type, values))
    if set(classes) <= {str}:
        return values, None
    others = [place for place, one in enumerate(classes) if one is not str]
    kinds: list[int] = []
    floats: list[int] = []
    for place in others:
        kind = classes[place]
        if kind is int:
            kinds.append(ValueType.INTEGER)
            values[place] = str(values[place])
        elif kind is float:
            kinds.append(ValueType.FLOAT)
            floats.append(place)
        elif kind is bool:
            kinds.append(ValueType.BOOLEAN)
            values[place] = "true" if values[place] else "false"
        else:
            text = values[place] = typed_text(values[place])
            kinds.append(text.type if isinstance(text, TypedText) else ValueType.TEXT)
    if floats:  # one call for all of them: no text of a number contains a comma
        texts = json_text([values[place] for place in floats])[1:-1].split(",")
        for place, text in zip(floats, texts, strict=True):
            values[place] = text
    types = np.zeros(len(values), np.uint8)
    types[others] = kinds
    return values, some_types(types)


def _attribute_columns(
    shapes: Sequence[_Shape], values: list[str], types: U8 | None
) -> AttributeColumns | None:
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
        types=types,
    )


_EVENT: Final = RecordFields(received_ns=0)


def event_record(
    found: Mapping[str, object],
    *,
    ts_ns: int,
    sources: Sequence[tuple[str, Pairs]] = (),
    without: str = "",
) -> LogRecord:
    """Return the record of an object.

    `sources` are what the protocol states next to the object: pairs of names and texts, and the
    prefix of those names that the object has too. The dotted key `without` is no attribute.
    """
    flat = {**flat_fields(found, _EVENT.undivided)}
    if without:
        flat.pop(without, None)
    body_key = _EVENT.message_of(flat)
    message = None if body_key is None else flat.pop(body_key)
    attributes = {
        key: value if type(value) is str else typed_text(value) for key, value in flat.items()
    }
    if "" in attributes or any(pairs for _, pairs in sources):
        attributes = merged([(OWN, list(attributes.items())), *sources])
    body = "" if message is None else value_as_text(message)
    return LogRecord(ts_ns=ts_ns, body=body, attributes=attributes)


def value_as_text(value: object) -> str:
    """Return a text as it is, and any other value as canonical JSON text, without its type."""
    return value if type(value) is str else str(typed_text(value))
