"""Columns of JSON objects without a record in between: the fast road of the JSON door.

It builds the columns that `record_of` and `logs_from_records` lead to; a property test compares
the two. Objects with errors are left to that road, which takes twice the processor time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Final

import numpy as np

from sluice_doors.any_values import json_text
from sluice_doors.json_records import RecordFields, flat_fields, parse_time
from sluice_protocol.columns import AttributeColumns, LogColumns
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.records import string_column

_FEW_OBJECTS: Final = 64
SHAPES_MAX: Final = 1_024
"""A body with more sets of keys than this is decoded record by record."""

_Object = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoundColumns:
    """The columns of objects, and whether all of them contain their time."""

    columns: LogColumns
    timed: bool


class _Shape:
    """The attributes of all objects that have the same keys in the same order.

    Attributes:
        names: The names, sorted.
        values: Returns their values.
    """

    __slots__ = ("names", "values")

    def __init__(self, keys: Sequence[str], fields: RecordFields) -> None:
        """Sort the keys without the two that have a meaning."""
        self.names = sorted(set(keys) - {fields.time, fields.message})
        self.values = _getter(self.names)


def _getter(names: Sequence[str]) -> Callable[[_Object], tuple[object, ...]]:
    match names:
        case []:
            return lambda _: ()
        case [name]:
            return lambda found: (found[name],)
        case _:
            return itemgetter(*names)


def columns_of(
    objects: Sequence[_Object], fields: RecordFields, known_times: Sequence[int] | None = None
) -> FoundColumns | None:
    """Return the columns of objects.

    Args:
        objects: The objects, at least one.
        fields: The fields with a meaning.
        known_times: The times of the objects, where they were read before.

    Returns:
        None where a time cannot be read, a key is empty, or text is not UTF-8.
    """
    if fields.time == fields.message:
        return None
    shaped = _attributes(objects, fields)
    if shaped is not None and dict in set(map(type, shaped[1])):
        objects = [_flat(found, fields.message) for found in objects]
        shaped = _attributes(objects, fields)
    times = _times(objects, fields) if known_times is None else known_times
    if shaped is None or times is None:
        return None
    shapes, values = shaped
    bodies = _texts([found.get(fields.message, "") for found in objects], missing="")
    try:
        columns = LogColumns(
            ts=np.array([fields.received_ns if at is None else at for at in times], np.int64),
            body=string_column("body", bodies),
            severity=None,
            attributes=_columns(shapes, _texts(values, missing="null")),
        )
    except InvalidFrame:
        return None
    return FoundColumns(columns=columns, timed=None not in times)


def _times(objects: Sequence[_Object], fields: RecordFields) -> Sequence[int | None] | None:
    """Return the time of each object, None for none; None for all if one cannot be read."""
    stated = [found.get(fields.time) for found in objects]
    times = [None if one is None else parse_time(one, fields.received_ns) for one in stated]
    if None in times and any(
        at is None and one is not None for at, one in zip(times, stated, strict=True)
    ):
        return None
    return times


def _attributes(
    objects: Sequence[_Object], fields: RecordFields
) -> tuple[list[_Shape], list[object]] | None:
    """Return the shape of each object, and the values of all attributes in their order."""
    known: dict[tuple[str, ...], _Shape] = {}
    shapes: list[_Shape] = []
    parts: list[tuple[object, ...]] = []
    for found in objects:
        keys = tuple(found)
        shape = known.get(keys)
        if shape is None:
            if "" in found or len(known) == SHAPES_MAX:
                return None
            shape = known[keys] = _Shape(keys, fields)
        shapes.append(shape)
        parts.append(shape.values(found))
    return shapes, list(chain.from_iterable(parts))


def _texts(values: list[object], *, missing: str) -> list[str]:
    types = set(map(type, values))
    if types <= {str}:
        return values  # type: ignore[return-value]  # only texts
    return [one if type(one) is str else missing if one is None else _text(one) for one in values]


def _text(value: object) -> str:
    return str(value) if type(value) is int else json_text(value)


def _columns(shapes: Sequence[_Shape], values: list[str]) -> AttributeColumns | None:
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
