"""Map JSON objects of any form to log records.

Two fields of an object have a meaning when it is accepted, the time and the message, under one of
several keys (`sluice_protocol.meaning`). All others become attributes: objects inside objects have
dotted keys, and arrays are JSON text.

`columns_of` builds the columns of many objects without a record in between. Requests of 1 MiB
whose objects all pass through `record_of` take 1.85 (1.47 to 2.09) times the processor time of
the gateway, so only objects with an error do. Of objects whose keys no other object has, only the
keys of the time and the body are compared.

`event_record` is for protocols that state the time outside of the object: Fluent's records, the
events of Splunk, and the JSON inside records of Firehose.
"""

from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate, chain, islice
from typing import Any, Final, NamedTuple, TypeVar

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
from sluice_doors.rows import is_utf8, repaired_log
from sluice_protocol.columns import AttributeColumns, LogColumns
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.meaning import BESIDE, BODY_KEYS, TEMPLATE_TIME, TIME_KEYS
from sluice_protocol.records import LogRecord, string_column
from sluice_protocol.times import TS_END, read_number, read_time
from sluice_protocol.units import NS_PER_S
from sluice_protocol.values import ValueType, value_types

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
                if value and type(value) is str and _counts(key, found):
                    return key
        return self.message[0] if self.message[0] in found else None


_NAMED_TIMES: Final = frozenset(TIME_KEYS[:3])
"""Keys under which a value that is no time is an error; `ts` and others have other uses too."""
_TIME_MIN_NS: Final = 10**8 * NS_PER_S
"""Under those other keys a number below 10^8 is no time: it would be before 1973."""
_SECONDS: Final = "instant.epochSecond"
_SECONDS_REST: Final = "instant.nanoOfSecond"
"""Log4j's JSON layout has the rest of the second under another key, which stays an attribute."""


def _with_rest(ts_ns: int, found: Mapping[str, object]) -> int | None:
    """Return the time with the rest of its second; None if that is out of range."""
    rest = found.get(_SECONDS_REST)
    ts_ns += rest if type(rest) is int and 0 <= rest < NS_PER_S else 0
    return ts_ns if ts_ns < TS_END else None


def _counts(key: str, found: Container[str]) -> bool:
    """Return whether the keys that a key needs next to it are present."""
    return key not in BESIDE or all(one in found for one in BESIDE[key])


_UTC_ENDS: Final = ("Z", "z", "+00:00")


def rows_not_shown(key: str, stated: Sequence[object]) -> list[int]:
    """Return which times do not show what was sent under a key.

    A number shows it, and RFC 3339 in UTC.
    """
    if key == TEMPLATE_TIME:
        return [row for row, one in enumerate(stated) if one is not None]
    return [
        row
        for row, one in enumerate(stated)
        if type(one) is str and not (one.endswith(_UTC_ENDS) and one[10:11] in ("T", "t"))
    ]


def shows_all(key: str, stated: object) -> bool:
    """Return whether a time shows what was sent, as `rows_not_shown`."""
    if type(stated) is str and stated.endswith(_UTC_ENDS) and stated[10:11] == "T":
        return key != TEMPLATE_TIME
    return not rows_not_shown(key, [stated])


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
        if type(value) is dict and value and _is_divided(name, message, depth):
            _flatten(value, message, f"{name}.", depth + 1, flat, after)
        else:
            flat[free_name(name, flat, after) if name in flat else name] = value


def _is_divided(name: str, message: str, depth: int) -> bool:
    """Return whether an object in an object is divided."""
    return depth < DEPTH_MAX and len(name) <= DIVIDED_NAME_MAX and name != message


SHAPES_MAX: Final = 512
SHAPE_KEYS_MAX: Final = 128
SHAPE_CHARACTERS_MAX: Final = 2_048
"""Sets of keys that are remembered, and the keys of each and their characters."""

_Object = dict[str, Any]
_Key = TypeVar("_Key")


class _Attributes(NamedTuple):
    """The sorted names of attributes, and their places among the keys of an object."""

    names: tuple[str, ...]
    at: tuple[int, ...]


class _Shape:
    """What objects with the same keys in the same order have in common.

    Attributes:
        body: The place of the key of the body; None if there is none.
        when: Likewise of the time.
        is_unsure: Whether only the values show if `when` is the time.
        settled_ns: From which time on `when` is the time nevertheless.
        others: The places of further keys that may have the time.
        attributes: The attributes of an object.
        with_time: Those of an object whose time is an attribute too.
    """

    __slots__ = ("attributes", "body", "is_unsure", "others", "settled_ns", "when", "with_time")

    def __init__(
        self, keys: tuple[str, ...], time: tuple[str, ...], message: tuple[str, ...]
    ) -> None:
        fields = RecordFields(time=time, message=message, received_ns=0)
        rest = {key: place for place, key in enumerate(keys)}
        # The body is removed first: it is no time, and no companion of one.
        counted = [key for key in message if key in rest and _counts(key, rest)]
        body = counted[0] if len(message) > 1 and counted else message[0]
        self.body = rest.pop(body, None)
        times = [key for key in time if key in rest and fields.may_be_time(key, rest)]
        when = times[0] if times else None
        named = len(time) == 1 or when in _NAMED_TIMES
        self.is_unsure = len(times) > 1 or (bool(times) and not named)
        is_whole = when != _SECONDS  # the rest of its second may be elsewhere
        self.settled_ns = 0 if named and is_whole else _TIME_MIN_NS if is_whole else TS_END
        self.others = [rest[key] for key in times[1:]]
        self.with_time = _attributes_of(rest)
        self.attributes = self.with_time
        self.when = None
        if when is not None:
            self.when = rest.pop(when)
            self.attributes = _attributes_of(rest)


def _attributes_of(places: Mapping[str, int]) -> _Attributes:
    """Return attributes; raise `InvalidFrame` if a name is not UTF-8."""
    if not is_utf8("".join(places)):
        raise InvalidFrame("attr_names", "is not UTF-8")
    names = tuple(sorted(places))
    return _Attributes(names, tuple(map(places.__getitem__, names)))


_known_shape: Final = lru_cache(maxsize=SHAPES_MAX)(_Shape)


@lru_cache(maxsize=SHAPES_MAX)
def _keys_with_meaning(time: tuple[str, ...], message: tuple[str, ...]) -> frozenset[str]:
    """Return the keys that decide about the time and the body of an object."""
    return frozenset((*time, *message, *chain.from_iterable(BESIDE.values()), _SECONDS_REST))


def _is_small(keys: Sequence[str]) -> bool:
    """Return whether what keys mean is remembered between requests."""
    return len(keys) <= SHAPE_KEYS_MAX and sum(map(len, keys)) <= SHAPE_CHARACTERS_MAX


class _Table(NamedTuple):
    """Objects with the same dotted keys in the same order.

    Attributes:
        places: Their places among all objects, ascending.
        keys: The dotted keys.
        values: The values of one object after those of another.
        kinds: The classes of the values.
    """

    places: Sequence[int]
    keys: tuple[str, ...]
    values: list[Any]
    kinds: list[type]

    def rows(self, rows: Sequence[int]) -> "_Table":
        """Return some of the objects."""
        if len(rows) == len(self.places):
            return self
        width = len(self.keys)
        values = list(
            chain.from_iterable([self.values[at * width : (at + 1) * width] for at in rows])
        )
        return _table([self.places[at] for at in rows], self.keys, values)

    def column(self, at: int) -> list[Any]:
        """Return the values of a key."""
        return self.values[at :: len(self.keys)]


def _table(places: Sequence[int], keys: tuple[str, ...], values: list[Any]) -> _Table:
    return _Table(places, keys, values, list(map(type, values)))


def _equal_keys(
    keys: Sequence[_Key], places: Sequence[int]
) -> Iterable[tuple[_Key, Sequence[int]]]:
    """Return each key with its places."""
    if not keys:
        return []
    if keys.count(keys[0]) == len(keys):
        return [(keys[0], places)]
    found: dict[_Key, list[int]] = {}
    for key, place in zip(keys, places, strict=True):
        found.setdefault(key, []).append(place)
    return found.items()


def _divided(table: _Table, message: str) -> Iterator[_Table]:
    """Yield objects by the keys of the objects in them, which are opened level by level.

    An object whose keys no other has is left as it is.
    """
    work: list[tuple[_Table, Iterable[int], int]] = [(table, range(len(table.keys)), 0)]
    while work:
        table, new, depth = work.pop()
        keys, width = table.keys, len(table.keys)
        nested = (
            [
                at
                for at in new
                if dict in table.kinds[at::width] and _is_divided(keys[at], message, depth)
            ]
            if dict in table.kinds
            else []
        )
        if not nested:
            yield table if len(set(keys)) == width else _renamed(table)
            continue
        inner = [
            [tuple(one) if type(one) is dict else () for one in table.column(at)] for at in nested
        ]
        for inside, rows in _equal_keys(list(zip(*inner, strict=True)), range(len(table.places))):
            part = table.rows(rows)
            if len(rows) == 1:
                yield part
                continue
            opened = tuple(pair for pair in zip(nested, inside, strict=True) if pair[1])
            # Without any, these are the rows whose objects are empty or are other values.
            work.append((*_opened(part, opened), depth + 1) if opened else (part, (), depth))


_Inside = tuple[tuple[int, tuple[str, ...]], ...]


def _opened(table: _Table, inside: _Inside) -> tuple[_Table, Sequence[int]]:
    """Return objects with the keys of the objects in them, and which keys these are."""
    inner = chain.from_iterable(keys for _, keys in inside)
    is_small = _is_small([*table.keys, *inner])
    keys, new = (_known_opened_keys if is_small else _opened_keys)(table.keys, inside)
    old = table.values
    values: list[Any] = []
    done = 0
    for row in range(0, len(old), len(table.keys)):
        for at, _ in inside:
            values += old[done : row + at]
            values += old[row + at].values()
            done = row + at + 1
    values += old[done:]
    return _table(table.places, keys, values), new


def _opened_keys(keys: tuple[str, ...], inside: _Inside) -> tuple[tuple[str, ...], Sequence[int]]:
    new: list[int] = []
    names: list[str] = []
    done = 0
    for at, inner in inside:
        names += keys[done:at]
        new += range(len(names), len(names) + len(inner))
        names += [f"{keys[at]}.{one}" for one in inner]
        done = at + 1
    return (*names, *keys[done:]), new


_known_opened_keys: Final = lru_cache(maxsize=SHAPES_MAX)(_opened_keys)


def _renamed(table: _Table) -> _Table:
    """Return objects with a number after each dotted key that is taken."""
    taken: dict[str, str] = {}
    after: dict[str, int] = {}
    for name in table.keys:
        taken[free_name(name, taken, after)] = ""
    return table._replace(keys=tuple(taken))


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


class _Texts(NamedTuple):
    """The attributes of objects with the same ones.

    Attributes:
        places: The places of the objects, ascending.
        names: The sorted names.
        values: The texts of one object after those of another.
        types: The types of these; empty if all are text.
    """

    places: Sequence[int]
    names: tuple[str, ...]
    values: list[str]
    types: bytes


class _Rows(NamedTuple):
    """The attributes of objects that have a record each, sorted by name in each of them.

    Attributes:
        places: The places of the objects, ascending.
        sizes: How many attributes each has.
        names: The names of one object after those of another; `values` and `types` likewise.
    """

    places: Sequence[int]
    sizes: list[int]
    names: list[str]
    values: list[str]
    types: bytes


class _Built:
    """The times, texts and attributes of objects."""

    def __init__(
        self,
        values: Sequence[Any],
        fields: RecordFields,
        tally: Tally,
        known_times: Sequence[int] | None,
        *,
        repairs: bool = False,
    ) -> None:
        self._fields = fields
        self._tally = tally
        self._bodies = [""] * len(values)
        self._are_known = known_times is not None
        self._times: list[int | None] = [None] * len(values)
        if known_times is not None:
            self._times[:] = known_times
        self._parts: list[_Texts] = []
        self._rows: list[_Rows] = []
        places: Sequence[int] = range(0 if repairs else len(values))
        if set(map(type, values)) != {dict}:
            places = [at for at in places if type(values[at]) is dict]
        odd = set(range(len(values))).difference(places) if len(places) < len(values) else set()
        self._read_objects(values, places, odd)
        if odd:
            self._replace(values, sorted(odd), repairs=repairs)
        tally.timed = tally.timed and None not in self._times

    def _read_objects(self, values: Sequence[Any], places: Sequence[int], odd: set[int]) -> None:
        """Read the objects at some places; add those that need a record to `odd`."""
        undivided = self._fields.undivided
        if len(values) == len(places) == 1:
            flat = flat_fields(values[0], undivided)
            self._read(_table(places, tuple(flat), list(flat.values())), odd)
            return
        alone: list[int] = []
        for keys, alike in _equal_keys([tuple(values[at]) for at in places], places):
            if len(alike) == 1:
                alone += alike
                continue
            cells = list(chain.from_iterable([values[at].values() for at in alike]))
            for table in _divided(_table(alike, keys, cells), undivided):
                if len(table.places) == 1:
                    alone += table.places
                else:
                    self._read(table, odd)
        if alone:
            self._read_alone(values, sorted(alone), odd)

    def _read(self, table: _Table, odd: set[int]) -> None:
        """Read objects; add the places of those that need a record to `odd`."""
        self._tally.add_sizes(0, sum(map(len, table.keys)))
        shape, wrong, timed = self._read_meaning(table)
        if not wrong and not timed:
            self._add(table, shape.attributes)
            return
        odd.update(table.places[row] for row in wrong)
        again = wrong.union(timed)
        for chosen, attributes in (
            ([row for row in range(len(table.places)) if row not in again], shape.attributes),
            ([row for row in timed if row not in wrong], shape.with_time),
        ):
            if chosen:
                self._add(table.rows(chosen), attributes)

    def _read_alone(self, values: Sequence[Any], places: Sequence[int], odd: set[int]) -> None:
        """Read objects whose keys no other has; add those that need a record to `odd`.

        Objects with the same keys of the time and the body are read together.
        """
        fields = self._fields
        meant = _keys_with_meaning(fields.time, fields.message)
        objects = [values[at] for at in places]
        if dict in set(map(type, chain.from_iterable(map(dict.values, objects)))):
            undivided = fields.undivided
            objects = [flat_fields(one, undivided) for one in objects]
        kept: dict[int, list[str]] = {}
        stated = [tuple(filter(meant.__contains__, one)) for one in objects]
        for keys, alike in _equal_keys(stated, range(len(places))):
            cells = list(chain.from_iterable([map(objects[at].__getitem__, keys) for at in alike]))
            table = _table([places[at] for at in alike], keys, cells)
            shape, wrong, timed = self._read_meaning(table)
            body = None if shape.body is None else keys[shape.body]
            when = None if shape.when is None else keys[shape.when]
            with_time = set(timed)
            for row, at in enumerate(alike):
                if row in wrong or "" in objects[at]:
                    odd.add(places[at])
                    continue
                names = kept[at] = sorted(objects[at])
                if body is not None:
                    names.remove(body)
                if when is not None and row not in with_time:
                    names.remove(when)
        chosen = sorted(kept)
        self._add_rows(
            [places[at] for at in chosen],
            [kept[at] for at in chosen],
            [objects[at] for at in chosen],
        )

    def _add_rows(
        self,
        places: Sequence[int],
        names: Sequence[Sequence[str]],
        objects: Sequence[Mapping[str, Any]],
    ) -> None:
        """Add the named attributes of objects, ascending by place, as texts with their types."""
        every = list(chain.from_iterable(names))
        values: list[Any] = []
        for found, own in zip(objects, names, strict=True):
            values += map(found.__getitem__, own)
        joined = "".join(every)
        self._tally.add_sizes(len(every), len(joined))
        if not is_utf8(joined):
            raise InvalidFrame("attr_names", "is not UTF-8")
        texts, types = _typed(values)
        self._rows.append(_Rows(places, list(map(len, names)), every, texts, types))

    def _read_meaning(self, table: _Table) -> tuple[_Shape, set[int], Sequence[int]]:
        """Read times and bodies by the keys that have a meaning.

        Return also the rows that need a record, and those whose time is an attribute too.
        """
        make = _known_shape if _is_small(table.keys) else _Shape
        shape = make(table.keys, self._fields.time, self._fields.message)
        rows = range(len(table.places))
        wrong = set(rows) if "" in table.keys else set()
        if shape.body is not None:
            bodies = table.column(shape.body)
            _put(self._bodies, table.places, bodies)
            if "" in bodies or set(map(type, bodies)) != {str}:
                wrong.update(row for row in rows if type(bodies[row]) is not str or not bodies[row])
        timed = () if shape.when is None else self._read_times(table, shape, shape.when, wrong)
        return shape, wrong, timed

    def _read_times(
        self, table: _Table, shape: _Shape, when: int, wrong: set[int]
    ) -> Sequence[int]:
        """Read times; return the rows of those that are attributes too.

        Rows whose time is elsewhere or cannot be read are added to `wrong`.
        """
        stated = table.column(when)
        key = table.keys[when]
        if shape.is_unsure or not self._are_known:
            received_ns = self._fields.received_ns or None
            times = _parse_times(stated, received_ns)
            _put(self._times, table.places, times)
            least = shape.settled_ns if shape.is_unsure else 0
            for row in [row for row, at in enumerate(times) if at is None or at < least]:
                if shape.is_unsure:
                    self._find_time(table, row, key, wrong)
                elif stated[row] is not None:
                    wrong.add(row)
        for at in shape.others:  # null is no time, and no attribute
            column = table.column(at)
            if None in column:
                wrong.update(row for row, one in enumerate(column) if one is None)
        return rows_not_shown(key, stated)

    def _find_time(self, table: _Table, row: int, key: str, wrong: set[int]) -> None:
        """Read the time of an object that may have it under another key."""
        width = len(table.keys)
        values = table.values[row * width : (row + 1) * width]
        found = dict(zip(table.keys, values, strict=True))
        named, ts_ns = self._fields.time_of(found, self._fields.received_ns or None)
        self._times[table.places[row]] = ts_ns
        if ts_ns is None or named != key:
            wrong.add(row)

    def _add(self, table: _Table, attributes: _Attributes) -> None:
        """Add attributes of objects as texts with their types."""
        names, order = attributes
        width, size, count = len(table.keys), len(order), len(table.places)
        self._tally.add_sizes(size * count, 0)
        values, kinds = table.values, table.kinds
        shared: list[type | None] = [*kinds[:width]]
        if kinds != shared * count:
            shared = [
                one if kinds[at::width].count(one) == count else None
                for at, one in enumerate(kinds[:width])
            ]
        texts = [""] * (size * count)
        types = bytearray(size * count)
        scalars: list[Any] = []
        scalars_at: list[int] = []
        for place, at in enumerate(order):
            kind = shared[at]
            if kind is str:
                texts[place::size] = values[at::width]
            elif kind in _SCALARS or _SCALARS.keys() >= set(kinds[at::width]):
                scalars += values[at::width]
                scalars_at.append(place)
                types[place::size] = (
                    bytes(map(_SCALARS.__getitem__, kinds[at::width]))
                    if kind is None
                    else _SCALARS[kind].to_bytes() * count
                )
            else:
                column = [one if type(one) is str else typed_text(one) for one in values[at::width]]
                texts[place::size] = column
                found = value_types(column)
                if found is not None:
                    types[place::size] = found.tobytes()
        found_texts = _scalar_texts(scalars)
        for nth, place in enumerate(scalars_at):
            texts[place::size] = found_texts[nth * count : (nth + 1) * count]
        is_typed = types.count(0) < len(types)
        self._parts.append(_Texts(table.places, names, texts, bytes(types) if is_typed else b""))

    def _replace(self, values: Sequence[object], odd: Sequence[int], *, repairs: bool) -> None:
        """Put the records of some objects in their places."""
        found: list[Mapping[str, str]] = []
        timed, self._tally.timed = self._tally.timed, True
        for place in odd:
            self._tally.timed = True
            record = any_record(values[place], self._fields, self._tally)
            self._times[place] = record.ts_ns if self._tally.timed else None
            if repairs:
                repaired = repaired_log(record)
                is_new = repaired is not record and ERROR_ATTRIBUTE not in record.attributes
                self._tally.unreadable += is_new
                record = repaired
            self._bodies[place] = str(record.body)
            found.append(record.attributes)
        self._tally.timed = timed
        self._add_rows(odd, list(map(sorted, found)), found)

    def columns(self) -> LogColumns:
        """Return the columns; raise `InvalidFrame` if text is not UTF-8."""
        received_ns = self._fields.received_ns
        times = self._times
        if None in times:
            times = [received_ns if at is None else at for at in times]
        return LogColumns(
            ts=np.array(times, np.int64),
            body=string_column("body", self._bodies),
            severity=None,
            attributes=_attribute_columns(self._parts, self._rows, len(times)),
        )


def _typed(values: Sequence[Any]) -> tuple[list[str], bytes]:
    """Return values as texts, and the types of these; none if all are text."""
    kinds = list(map(type, values))
    if set(kinds) <= _TEXT:
        return list(values), b""
    texts = list(values)
    types = bytearray(len(texts))
    at = [place for place, kind in enumerate(kinds) if kind in _SCALARS]
    for place, text in zip(at, _scalar_texts([values[one] for one in at]), strict=True):
        texts[place], types[place] = text, _SCALARS[kinds[place]]
    at = [place for place, kind in enumerate(kinds) if kind is not str and kind not in _SCALARS]
    others = [typed_text(values[place]) for place in at]
    found = value_types(others)
    for nth, place in enumerate(at):
        texts[place] = others[nth]
        types[place] = 0 if found is None else found[nth]
    return texts, bytes(types)


def _scalar_texts(values: list[Any]) -> list[str]:
    """Return the texts of numbers, flags and nulls in one call: none of them contains a comma."""
    return json_text(values)[1:-1].split(",") if values else []


def _put(into: list[Any], places: Sequence[int], values: Sequence[Any]) -> None:
    """Put values in their places."""
    if len(values) == len(into):
        into[:] = values
    else:
        for place, value in zip(places, values, strict=True):
            into[place] = value


def _parse_times(stated: Sequence[Any], received_ns: int | None) -> list[int | None]:
    """Return the time of each value, as `parse_time`."""
    kinds = set(map(type, stated))
    if kinds == _TEXT:
        return [read_time(one, zone=UTC, received_ns=received_ns) for one in stated]
    if kinds in ({int}, {float}):
        return list(map(read_number, stated))
    return [None if one is None else parse_time(one, received_ns) for one in stated]


_TEXT: Final = {str}
_SCALARS: Final[dict[type | None, ValueType]] = {
    int: ValueType.INTEGER,
    float: ValueType.FLOAT,
    bool: ValueType.BOOLEAN,
    type(None): ValueType.JSON,
}


def any_record(value: object, fields: RecordFields, tally: Tally) -> LogRecord:
    """Return the record of a value of JSON; what is not an object is kept as text."""
    if isinstance(value, dict):
        return record_of(value, fields, tally, {})
    if isinstance(value, Unread):
        return raw_record(value.text, value.reason, fields, tally, {})
    return raw_record(json_text(value), NOT_OBJECT, fields, tally, {})


def _attribute_columns(
    parts: Sequence[_Texts], others: Sequence[_Rows], count: int
) -> AttributeColumns | None:
    """Return the attributes of all objects, which have each place once."""
    names = sorted(set().union(*(one.names for one in parts), *(other.names for other in others)))
    if not names:
        return None
    if len(parts) == 1 and not others:
        [(_, _, values, types)] = parts
        width = len(names)
        keys = array("I", range(width)).tobytes() * count
        offsets = np.arange(0, len(values) + 1, width, dtype=np.int32)
    elif len(others) == 1 and not parts:
        index = dict(zip(names, range(len(names)), strict=True))
        [(_, sizes, own_names, values, types)] = others
        keys = array("I", map(index.__getitem__, own_names)).tobytes()
        offsets = np.array([0, *accumulate(sizes)], np.int32)
    else:
        index = dict(zip(names, range(len(names)), strict=True))
        rows: list[Any] = [None] * count
        for part in parts:
            own = array("I", map(index.__getitem__, part.names)).tobytes()
            part_types = part.types or bytes(len(part.values))
            row = own, len(part.names), iter(part.values), iter(part_types)
            for place in part.places:
                rows[place] = row
        for other in others:
            numbers = array("I", map(index.__getitem__, other.names))
            following = iter(other.values), iter(other.types or bytes(len(numbers)))
            start = 0
            for place, size in zip(other.places, other.sizes, strict=True):
                rows[place] = numbers[start : start + size].tobytes(), size, *following
                start += size
        keys = b"".join([one[0] for one in rows])
        sizes = [one[1] for one in rows]
        values = list(chain.from_iterable(map(islice, [one[2] for one in rows], sizes)))
        types = bytes(chain.from_iterable(map(islice, [one[3] for one in rows], sizes)))
        offsets = np.array([0, *accumulate(sizes)], np.int32)
    return AttributeColumns(
        names=tuple(names),
        offsets=offsets,
        keys=np.frombuffer(keys, np.uint32),
        values=string_column("attr_val", values),
        types=np.frombuffer(types, np.uint8) if types.count(0) < len(types) else None,
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
