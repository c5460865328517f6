"""Find the rows of a record table that deletes remove: lookups instead of testing each delete.

A condition of Spark SQL for each delete took minutes to compile with a thousand of them, and tested
every row against all. Here deletes with the same conditions of equality (agent, name of a metric,
attributes) form a group. A row finds its groups by its values, and in a group the time of the row
finds the latest cut-off by bisection. The cost of a row grows with the number of combinations of
conditions that occur, and with the logarithm of the number of deletes.

Texts that a log contains are searched for in groups of a hundred, and only in rows whose other
conditions are met.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import product
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice_protocol.fields import KINDS
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S

_Longs = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]
_Texts = Sequence[str]

_LEAST: Final = int(np.iinfo(np.int64).min)
_GREATEST: Final = int(np.iinfo(np.int64).max)
_TEXTS_TOGETHER: Final = 100
"""Texts in one regular expression; its automaton stays small."""
_MAPS: Final = ("attributes", "resource")
"""Columns that may contain an attribute of a delete."""
_AT_NS: Final = "coalesce(ts_ns, unix_micros(accepted_at) * 1000)"
"""The time of a record; for a record without a time, when its batch was accepted."""


@dataclass(frozen=True, slots=True)
class _CutOffs:
    """The latest cut-off of some deletes at each time: `untils[n]` from `starts[n]` on."""

    starts: _Longs
    untils: _Longs

    def remove(self, at_ns: _Longs, accepted_ns: _Longs) -> _Flags:
        if not len(self.starts):
            return np.zeros(len(at_ns), dtype=np.bool_)
        place = np.searchsorted(self.starts, at_ns, side="right") - 1
        until = self.untils[np.maximum(place, 0)]
        return np.asarray((place >= 0) & (accepted_ns <= until), dtype=np.bool_)


def _cut_offs(records: Iterable[DeleteRecord]) -> _CutOffs:
    spans = sorted(_spans(records))
    bounds = sorted({bound for start, end, _ in spans for bound in (start, end)})
    untils: list[int] = []
    current: list[tuple[int, int]] = []
    following = 0
    for bound in bounds:
        while following < len(spans) and spans[following][0] <= bound:
            _, end, until = spans[following]
            heappush(current, (-until, end))
            following += 1
        while current and current[0][1] <= bound:
            heappop(current)
        untils.append(-current[0][0] if current else _LEAST)
    within = [place for place, bound in enumerate(bounds) if bound <= _GREATEST]
    return _CutOffs(
        np.array([bounds[place] for place in within], dtype=np.int64),
        np.array([untils[place] for place in within], dtype=np.int64),
    )


def _spans(records: Iterable[DeleteRecord]) -> Iterator[tuple[int, int, int]]:
    """Yield the first time, the first time after the end, and the cut-off of each delete."""
    for one in records:
        start = _LEAST if one.from_unix_ns is None else max(one.from_unix_ns, _LEAST)
        end = _GREATEST + 1 if one.to_unix_ns is None else min(one.to_unix_ns, _GREATEST + 1)
        if start < end and one.accepted_until_unix_ns > _LEAST:
            yield start, end, min(one.accepted_until_unix_ns, _GREATEST)


class _Group:
    def __init__(self, records: Sequence[DeleteRecord]) -> None:
        texts: dict[str | None, list[DeleteRecord]] = {}
        for one in records:
            texts.setdefault(None if KINDS[one.kind].is_named else one.contains, []).append(one)
        self._every = _cut_offs(records)
        self._any_text = _cut_offs(texts.pop(None, ()))
        self._by_text = {
            text: _cut_offs(found) for text, found in texts.items() if text is not None
        }

    def remove(self, at_ns: _Longs, accepted_ns: _Longs, body: Any) -> _Flags:  # noqa: ANN401
        """Return which rows of this group the deletes remove."""
        if not self._by_text:
            return self._every.remove(at_ns, accepted_ns)
        removed = np.zeros(len(at_ns), dtype=np.bool_)
        rows = np.flatnonzero(self._every.remove(at_ns, accepted_ns))
        removed[rows] = self._any_text.remove(at_ns[rows], accepted_ns[rows])
        rows = rows[~removed[rows]]
        every = list(self._by_text)
        for first in range(0, len(every), _TEXTS_TOGETHER):
            texts = every[first : first + _TEXTS_TOGETHER]
            found = rows[_contains_any(body.take(pa.array(rows)), texts)]
            for text in texts:
                here = found[_flags(pc.match_substring(body.take(pa.array(found)), text))]
                removed[here] |= self._by_text[text].remove(at_ns[here], accepted_ns[here])
        return removed


def _contains_any(body: Any, texts: _Texts) -> _Flags:  # noqa: ANN401 - pyarrow has no types
    return _flags(pc.match_substring_regex(body, "|".join(re.escape(text) for text in texts)))


def _flags(found: Any) -> _Flags:  # noqa: ANN401 - pyarrow has no types
    return np.asarray(
        pc.fill_null(found, fill_value=False).to_numpy(zero_copy_only=False), dtype=np.bool_
    )


class _Lookup:
    """Finds the number of a key of several texts, one column after the other."""

    def __init__(self, keys: Sequence[_Texts]) -> None:
        self._steps: list[tuple[Any, _Longs]] = []
        codes = np.zeros(len(keys), dtype=np.int64)
        for column in zip(*keys, strict=True):
            values = sorted(set(column))
            places = {value: place for place, value in enumerate(values)}
            codes = codes * len(values) + np.array(
                [places[value] for value in column], dtype=np.int64
            )
            known, codes = np.unique(codes, return_inverse=True)
            self._steps.append((pa.array(values, pa.string()), known.astype(np.int64)))
        self.numbers: list[int] = codes.tolist()

    def find(self, columns: Sequence[Any], rows: int) -> _Longs:
        """Return the number of the key of each row, -1 without one."""
        codes = np.zeros(rows, dtype=np.int64)
        for (values, known), column in zip(self._steps, columns, strict=True):
            found = pc.index_in(column, value_set=values).fill_null(-1)
            places = found.to_numpy(zero_copy_only=False).astype(np.int64)
            wanted = codes * len(values) + places
            at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
            codes = np.where((codes >= 0) & (places >= 0) & (known[at] == wanted), at, -1)
        return codes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    agent: bool
    name: bool
    attributes: tuple[str, ...]

    @property
    def columns(self) -> set[str]:
        own = {"agent_id": self.agent, "name": self.name}
        return {name for name, used in own.items() if used} | set(_MAPS if self.attributes else ())

    def key(self, record: DeleteRecord) -> tuple[str, ...]:
        own = [(self.agent, record.agent_id), (self.name, record.contains)]
        texts = (text for used, text in own if used and text is not None)
        return (*texts, *(record.attributes[name] for name in self.attributes))

    def values(self, columns: dict[str, Any]) -> Iterator[list[Any]]:
        """Yield the columns of the key, for each choice of where an attribute is."""
        own = [columns[name] for name in ("agent_id", "name") if name in self.columns]
        for chosen in product(_MAPS, repeat=len(self.attributes)):
            pairs = zip(chosen, self.attributes, strict=True)
            yield own + [pc.map_lookup(columns[place], name, "first") for place, name in pairs]


class DeleteMatches:
    """Some deletes of one kind."""

    def __init__(self, records: Iterable[DeleteRecord]) -> None:
        shapes: dict[_Shape, dict[tuple[str, ...], list[DeleteRecord]]] = {}
        columns = set[str]()
        for one in records:
            shape = _Shape(
                agent=one.agent_id is not None,
                name=KINDS[one.kind].is_named and one.contains is not None,
                attributes=tuple(sorted(one.attributes)),
            )
            shapes.setdefault(shape, {}).setdefault(shape.key(one), []).append(one)
            columns |= shape.columns
            if not KINDS[one.kind].is_named and one.contains is not None:
                columns.add("body")
        self.columns = tuple(sorted(columns))
        self._shapes: list[tuple[_Shape, _Lookup, list[_Group]]] = []
        for shape, groups in shapes.items():
            lookup = _Lookup(list(groups))
            ordered = sorted(zip(lookup.numbers, groups.values(), strict=True), key=_number_of)
            self._shapes.append((shape, lookup, [_Group(found) for _, found in ordered]))

    def remove(self, accepted_ns: _Longs, at_ns: _Longs, columns: dict[str, Any]) -> _Flags:
        """Return which rows the deletes remove; `columns` has the arrays of `self.columns`."""
        removed = np.zeros(len(at_ns), dtype=np.bool_)
        for shape, lookup, groups in self._shapes:
            for values in shape.values(columns):
                found = lookup.find(values, len(at_ns))
                rows = np.flatnonzero((found >= 0) & ~removed)
                rows = rows[np.argsort(found[rows], kind="stable")]
                numbers, starts = np.unique(found[rows], return_index=True)
                for number, here in zip(numbers, np.split(rows, starts[1:]), strict=False):
                    body = columns["body"].take(pa.array(here)) if "body" in columns else None
                    removed[here] = groups[number].remove(at_ns[here], accepted_ns[here], body)
        return removed


def _number_of(pair: tuple[int, list[DeleteRecord]]) -> int:
    return pair[0]


def without_deleted(rows: Any, records: Iterable[DeleteRecord]) -> Any:  # noqa: ANN401 - DataFrames
    """Return the rows of a record table that no delete removes."""
    deletes = list(records)
    return rows.where(~is_deleted(deletes)) if deletes else rows


def only_deleted(rows: Any, records: Iterable[DeleteRecord]) -> Any:  # noqa: ANN401 - DataFrames
    """Return the rows of a record table that some delete removes."""
    return rows.where(is_deleted(records))


def is_deleted(records: Iterable[DeleteRecord]) -> Any:  # noqa: ANN401 - a column
    """Return the condition that some delete removes a row; each row needs its `accepted_at`."""
    from pyspark.sql.functions import arrow_udf, expr  # noqa: PLC0415

    matches = DeleteMatches(records)

    def match(accepted_ns: pa.Array, at_ns: pa.Array, *columns: pa.Array) -> pa.Array:
        found = dict(zip(matches.columns, columns, strict=True))
        removed = matches.remove(accepted_ns.to_numpy(), at_ns.to_numpy(), found)
        return pa.array(removed, pa.bool_())

    accepted_ns = "unix_micros(accepted_at) * 1000"
    sources = [accepted_ns, _AT_NS, *matches.columns]
    return arrow_udf(match, "boolean")(*(expr(source) for source in sources))


_WINDOW_START_NS: Final = "(unix_micros(window_start) * 1000)"
_WINDOW_SIZE_NS: Final = f"(CASE window WHEN '1m' THEN 60 ELSE 3600 END * {NS_PER_S}L)"


def sql_literal(text: str) -> str:
    """Return a text as a literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def any_of(conditions: Sequence[str]) -> str:
    """Return the condition that one of some conditions is true.

    It is a balanced tree. Spark descends into a condition by recursion, and its stack does not
    suffice for a thousand conditions in a row.
    """
    if not conditions:
        return "false"
    if len(conditions) == 1:
        return conditions[0]
    middle = len(conditions) // 2
    return f"({any_of(conditions[:middle])} OR {any_of(conditions[middle:])})"


def touched_condition(record: DeleteRecord) -> str:
    """Return the Spark SQL condition that a row of `rollups` may contain a deleted point."""
    parts = _series_conditions(record)
    if record.from_unix_ns is not None:
        parts.append(f"{_WINDOW_START_NS} + {_WINDOW_SIZE_NS} > {record.from_unix_ns}")
    if record.to_unix_ns is not None:
        parts.append(f"{_WINDOW_START_NS} < {record.to_unix_ns}")
    return f"coalesce({' AND '.join(parts) or 'true'}, false)"


def certain_condition(record: DeleteRecord) -> str:
    """Return the Spark SQL condition that every point of a row of `rollups` is deleted."""
    parts = _series_conditions(record)
    if record.from_unix_ns is not None:
        parts.append(f"{_WINDOW_START_NS} >= {record.from_unix_ns}")
    if record.to_unix_ns is not None:
        parts.append(f"{_WINDOW_START_NS} + {_WINDOW_SIZE_NS} <= {record.to_unix_ns}")
    parts += [
        f"attributes[{sql_literal(key)}] = {sql_literal(value)}"
        for key, value in record.attributes.items()
    ]
    return f"coalesce({' AND '.join(parts) or 'true'}, false)"


def _series_conditions(record: DeleteRecord) -> list[str]:
    parts = []
    if record.agent_id is not None:
        parts.append(f"agent_id = {sql_literal(record.agent_id)}")
    if record.contains is not None:
        parts.append(f"name = {sql_literal(record.contains)}")
    return parts
