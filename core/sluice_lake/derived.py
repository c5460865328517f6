"""The derived fields of records, over whole columns (`sluice_protocol.meaning` has the rule).

A text is a code into a few distinct ones: those of a resource are never repeated for each record,
and only distinct levels and ids are visited in Python.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from string import ascii_lowercase, digits
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice_lake.schemas import coded, number_array, text_array
from sluice_protocol.column_slices import join_attributes
from sluice_protocol.columns import FEW, AttributeColumns, LogColumns, SignalColumns
from sluice_protocol.fields import Field, FieldType
from sluice_protocol.meaning import (
    BESIDE,
    DERIVED_KEYS,
    ID_BYTES_MAX,
    IMPLIED_SEVERITIES,
    LEVEL_CHARACTERS_MAX,
    LEVELS,
    NUMBERS_A_LEVEL,
    OBSERVED_KEY,
    SEVERITY_KEYS,
    level_of,
    plain_id,
    severity_of,
)

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Pairs = Sequence[tuple[str, str]]
_IDS: Final = ("trace_id", "span_id")
_DICTIONARY: Final = pa.dictionary(pa.int32(), pa.string())
_LOWER: Final = (digits + ascii_lowercase).encode()


class Stated(NamedTuple):
    """The texts that records have under one key: `texts[codes[i]]` is that of `records[i]`.

    Texts of a key whose values are usually distinct may be repeated.
    """

    records: Ints
    codes: Codes
    texts: pa.Array

    def only(self, wanted: npt.NDArray[np.bool_]) -> "Stated":
        """Return the wanted ones."""
        if wanted.all():
            return self
        return Stated(self.records[wanted], self.codes[wanted], self.texts)


class _Source:
    """Where the values of derived fields are: attributes of records, resources of their batches."""

    def __init__(
        self,
        attributes: AttributeColumns | None,
        resources: Sequence[Pairs],
        counts: Sequence[int],
    ) -> None:
        self.count = int(sum(counts))
        self._attributes = found = attributes
        self._places = {} if found is None else {name: at for at, name in enumerate(found.names)}
        distinct, codes = coded(list(map(tuple, resources)))
        self._resources: list[Mapping[str, str]] = [dict(pairs) for pairs in distinct]
        self._resource_codes = np.repeat(codes, counts)
        self.keys = self._places.keys() | set().union(*self._resources)
        self._records: Ints | None = None
        self._every: Ints | None = None
        self._values: Any = None

    def in_attributes(self, key: str, *, distinct: bool = True) -> Stated | None:
        """Return the texts of records under a key."""
        found, place = self._attributes, self._places.get(key)
        if found is None or place is None:
            return None
        if self._records is None:
            sizes = np.diff(found.offsets)
            self._records = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
            self._values = text_array(found.values, pa.string())
        edges = found.values.offsets
        pairs = np.flatnonzero((found.keys == place) & (edges[:-1] < edges[1:]))
        texts = self._values.take(number_array(pairs))
        if not distinct:
            return Stated(self._records[pairs], np.arange(len(pairs), dtype=np.int32), texts)
        coded = texts.dictionary_encode()
        codes = coded.indices.to_numpy(zero_copy_only=False)
        return Stated(self._records[pairs], codes, coded.dictionary)

    def in_resources(self, key: str) -> Stated | None:
        """Return the texts that the batches of records have under a key."""
        found = [pairs.get(key) or None for pairs in self._resources]
        if not any(found):
            return None
        texts, codes = coded([text for text in found if text is not None])
        if self._every is None:
            self._every = np.arange(self.count, dtype=np.int64)
        if len(codes) == len(found):
            return Stated(self._every, codes[self._resource_codes], pa.array(texts, pa.string()))
        is_present = np.array([text is not None for text in found])
        all_codes = np.zeros(len(found), np.int32)
        all_codes[is_present] = codes
        every = Stated(self._every, all_codes[self._resource_codes], pa.array(texts, pa.string()))
        return every.only(is_present[self._resource_codes])

    def stated(
        self, key: str, *, distinct: bool = True, beside: Sequence[str] = ()
    ) -> Iterator[Stated]:
        """Yield what the attributes state under a key, and then the resources.

        Only records with all the keys `beside` count.
        """
        if key not in self.keys or not self.keys.issuperset(beside):
            return
        for found in (self.in_attributes(key, distinct=distinct), self.in_resources(key)):
            if found is not None and len(found.records):
                yield found.only(self.having(beside)[found.records]) if beside else found

    def having(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return which records have a text under each of some keys."""
        found = np.ones(self.count, np.bool_)
        for key in keys:
            present = np.zeros(self.count, np.bool_)
            for stated in self.stated(key):
                present[stated.records] = True
            found &= present
        return found


def derived_arrays(
    parts: Sequence[SignalColumns], resources: Sequence[Pairs], counts: Sequence[int]
) -> dict[str, pa.Array]:
    """Return the derived fields of records by name, and of logs their severity.

    `parts` are the columns of the records, and `resources` and `counts` those of their batches, in
    the same order. Names are dictionaries.
    """
    attributes = join_attributes([(one.attributes, len(one)) for one in parts])
    source = _Source(attributes, resources, counts)
    found = {
        field.name: _field(source, field)
        for field in parts[0].kind.derived
        if field.name in DERIVED_KEYS
    }
    if logs := [one for one in parts if isinstance(one, LogColumns)]:
        sent = [
            np.zeros(len(one), np.uint8) if one.severity is None else one.severity for one in logs
        ]
        numbers = np.concatenate(sent).astype(np.int32)
        found["severity"], found["level"] = _severities(numbers, source)
        found["observed_ns"] = _observed(source)
    return found


class _First:
    """For each record the first of the texts that are added for it."""

    def __init__(self, count: int) -> None:
        self._codes = np.full(count, -1, np.int32)
        self._texts: list[pa.Array] = []
        self._size = 0
        self.left = count

    def add(self, found: Stated) -> None:
        if self.left < len(self._codes):
            found = found.only(self._codes[found.records] < 0)
        self._codes[found.records] = found.codes + self._size
        if len(found.records):
            self._texts.append(found.texts)
            self._size += len(found.texts)
            self.left -= len(found.records)

    def names(self) -> pa.DictionaryArray:
        """Return the text of each record as a dictionary."""
        if not self._size:
            return pa.nulls(len(self._codes), _DICTIONARY)
        codes, texts = self._places(), self._joined()
        # A writer of Parquet relies on distinct texts, and refuses a null among them.
        if self._size > FEW or len({None, *texts.to_pylist()}) <= self._size:
            unique = texts.dictionary_encode()
            codes, texts = unique.indices.take(codes), unique.dictionary
        return pa.DictionaryArray.from_arrays(codes, texts)

    def texts(self, change: Callable[[pa.Array], pa.Array]) -> pa.Array:
        """Return the text of each record after a change."""
        if not self._size:
            return pa.nulls(len(self._codes), pa.string())
        texts = change(self._joined())
        in_order = self._size == len(self._codes) and bool(
            (self._codes == np.arange(self._size)).all()
        )
        return texts if in_order else texts.take(self._places())

    def _places(self) -> pa.Array:
        return number_array(self._codes, self._codes >= 0 if self.left else None)

    def _joined(self) -> pa.Array:
        return self._texts[0] if len(self._texts) == 1 else pa.concat_arrays(self._texts)


def _first_of(source: _Source, keys: Sequence[str], *, distinct: bool) -> _First:
    """Return for each record its first text under some keys.

    Unless they are `distinct`, a text of a resource will be repeated for each record, so a long one
    does not count.
    """
    first = _First(source.count)
    for key in [key for key in keys if key in source.keys]:
        for found in source.stated(key, distinct=distinct, beside=BESIDE.get(key, ())):
            first.add(found if distinct else _short(found))
        if not first.left:
            break
    return first


def _short(found: Stated) -> Stated:
    sizes = pc.fill_null(pc.binary_length(found.texts), 0).to_numpy(zero_copy_only=False)
    return found.only((sizes <= ID_BYTES_MAX)[found.codes])


def _field(source: _Source, field: Field) -> pa.Array:
    is_name = field.type is FieldType.NAME
    first = _first_of(source, DERIVED_KEYS[field.name], distinct=is_name)
    if is_name:
        return first.names()
    if field.name in _IDS:
        return first.texts(lambda texts: _plain_ids(texts, field.name))
    return first.texts(lambda texts: texts)


def _plain_ids(texts: pa.Array, field: str) -> pa.Array:
    # No text is empty, so one check of all of them together shows what each is.
    _, offsets, data = texts.buffers()
    edges = np.frombuffer(offsets, np.int32)[texts.offset :]
    joined = data.to_pybytes()[edges[0] : edges[len(texts)]]
    if not joined.translate(None, _LOWER):
        return texts
    if joined.isalnum():  # only the case changes
        return pc.ascii_lower(texts)
    plain = [None if one is None else plain_id(field, one) or None for one in texts.to_pylist()]
    return pa.array(plain, pa.string())


def _severities(numbers: Codes, source: _Source) -> tuple[pa.Array, pa.Array]:
    """Return the severity of each record, null if it is not known, and its level.

    `numbers` are what the frames state, 0 for nothing.
    """
    unknown = _First(source.count)
    is_open = numbers == 0
    for key in [key for key in SEVERITY_KEYS if key.name in source.keys]:
        for stated in source.stated(key.name, beside=key.beside):
            found = stated.only(is_open[stated.records])
            texts = found.texts.to_pylist()
            known = np.array(  # a long text is no level, and must not be remembered
                [
                    severity_of(text, key.scale)
                    if text and len(text) <= LEVEL_CHARACTERS_MAX
                    else 0
                    for text in texts
                ],
                np.int32,
            )
            numbers[found.records] = known[found.codes]
            is_open[found.records] = False
            odd = found.only(known[found.codes] == 0)
            if len(odd.records):
                levels = [level_of(0, text or "") or None for text in texts]
                unknown.add(Stated(odd.records, odd.codes, pa.array(levels, pa.string())))
    for implied in IMPLIED_SEVERITIES:
        if source.keys.issuperset(implied.keys):
            found_open = is_open & source.having(implied.keys)
            numbers[found_open] = implied.severity
            is_open &= ~found_open
    return number_array(numbers, numbers > 0), _levels(numbers, unknown)


def _levels(numbers: Codes, unknown: _First) -> pa.Array:
    """Return the level of each number, and of records without one what was sent."""
    known = np.flatnonzero(numbers)
    codes = (numbers[known] - 1) // NUMBERS_A_LEVEL
    # Only levels in use: a Parquet writer takes twice the time for a dictionary with others.
    used = np.flatnonzero(np.bincount(codes, minlength=len(LEVELS)))
    rank = np.zeros(len(LEVELS), np.int32)
    rank[used] = np.arange(len(used), dtype=np.int32)
    levels = pa.array([LEVELS[place] for place in used.tolist()], pa.string())
    unknown.add(Stated(known, rank[codes], levels))
    return unknown.names()


def _observed(source: _Source) -> pa.Array:
    first = _first_of(source, (OBSERVED_KEY,), distinct=False)
    return first.texts(_only_numbers).cast(pa.int64())


def _only_numbers(texts: pa.Array) -> pa.Array:
    is_number = pc.match_substring_regex(texts, "^(?:[0-9]{1,18}|[1-8][0-9]{18})$")
    return pc.if_else(is_number, texts, pa.scalar(None, pa.string()))
