"""The derived fields of records, over whole columns (`sluice_protocol.meaning` has the rule).

Arrow searches the pairs of the records: per record nothing is done in Python, per distinct level
one call.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice_lake.schemas import number_array, text_array
from sluice_protocol.columns import LogColumns, SignalColumns
from sluice_protocol.meaning import (
    DERIVED_KEYS,
    LEVEL_CHARACTERS_MAX,
    LEVELS,
    NUMBERS_A_LEVEL,
    OBSERVED_KEY,
    SEVERITY_KEYS,
    Scale,
    level_of,
    plain_id,
    severity_of,
)

Ints = npt.NDArray[np.int64]
Pairs = Sequence[tuple[str, str]]
_IDS: Final = ("trace_id", "span_id")
_DICTIONARY: Final = pa.dictionary(pa.int32(), pa.string())


def _where(texts: pa.Array, wanted: npt.NDArray[np.bool_]) -> pa.Array:
    return texts.take(number_array(np.flatnonzero(wanted)))


class RecordSource:
    """Where the values of derived fields are: attributes of records, resources of their batches."""

    def __init__(
        self, columns: SignalColumns, resources: Sequence[Pairs], counts: Sequence[int]
    ) -> None:
        """`resources` and `counts` are those of the batches whose records follow each other."""
        self.count = int(sum(counts))
        found = columns.attributes
        self._attributes = found
        self._places = {} if found is None else {name: at for at, name in enumerate(found.names)}
        self._resources: list[tuple[Mapping[str, str], int, int]] = []
        end = 0
        for pairs, count in zip(resources, counts, strict=True):
            self._resources.append((dict(pairs), end, end + count))
            end += count
        self.keys = self._places.keys() | {key for pairs, _, _ in self._resources for key in pairs}
        self._records: Ints | None = None
        self._values: Any = None

    def in_attributes(self, key: str) -> tuple[Ints, pa.Array] | None:
        """Return the records with a text under a key, and the texts."""
        found, place = self._attributes, self._places.get(key)
        if found is None or place is None:
            return None
        pairs = np.flatnonzero(found.keys == place)
        sizes = np.diff(found.offsets)
        if self._records is None:
            self._records = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
            self._values = text_array(found.values, pa.string())
        texts = found.values.offsets
        pairs = pairs[texts[pairs] < texts[pairs + 1]]
        return self._records[pairs], self._values.take(number_array(pairs))

    def in_resources(self, key: str) -> tuple[Ints, pa.Array] | None:
        """Return the records whose batch has a text under a key, and the texts."""
        found = [
            (pairs[key], start, end) for pairs, start, end in self._resources if pairs.get(key)
        ]
        if not found:
            return None
        records = np.concatenate([np.arange(start, end) for _, start, end in found])
        sizes = np.array([end - start for _, start, end in found])
        codes = np.repeat(np.arange(len(found), dtype=np.int64), sizes)
        # Only the codes are repeated: a text may be long, and the records of a batch many.
        texts = pa.array([text for text, _, _ in found], pa.string()).dictionary_encode()
        return records, texts.take(number_array(codes))


def derived_arrays(columns: SignalColumns, source: RecordSource) -> dict[str, pa.Array]:
    """Return the derived fields of records by name, and of logs their severity.

    Texts are dictionaries.
    """
    found = {
        field.name: _first_text(source, field.name)
        for field in columns.kind.derived
        if field.name in DERIVED_KEYS
    }
    if isinstance(columns, LogColumns):
        found["severity"], found["level"] = _severities(columns, source)
        found["observed_ns"] = _observed(source)
    return found


class _First:
    """For each record the first of the texts that are added for it."""

    def __init__(self, count: int) -> None:
        self._place = np.full(count, -1, np.int64)
        self._parts: list[pa.Array] = []
        self._size = 0

    def add(self, records: Ints, texts: pa.Array) -> None:
        free = self._place[records] < 0
        if not free.all():
            records, texts = records[free], _where(texts, free)
        self._place[records] = np.arange(self._size, self._size + len(records))
        self._parts.append(texts.dictionary_encode())
        self._size += len(records)

    def array(self) -> Any:  # noqa: ANN401 - pyarrow is untyped
        """Return the text of each record as a dictionary; None if none has one."""
        if not self._size:
            return None
        places = number_array(self._place, self._place >= 0)
        return pa.concat_arrays(self._parts).take(places)


def _first_of(source: RecordSource, keys: Sequence[str]) -> Any:  # noqa: ANN401 - as above
    """Return for each record its first text under some keys; None if no record has one."""
    first = _First(source.count)
    for key in keys:
        if key in source.keys:
            for found in (source.in_attributes(key), source.in_resources(key)):
                if found is not None:
                    first.add(*found)
    return first.array()


def _first_text(source: RecordSource, field: str) -> pa.Array:
    coded = _first_of(source, DERIVED_KEYS[field])
    if coded is None:
        return pa.nulls(source.count, _DICTIONARY)
    return _changed(coded, lambda text: plain_id(field, text)) if field in _IDS else coded


def _changed(coded: pa.DictionaryArray, change: Callable[[str], str]) -> pa.Array:
    """Return the texts after a change of each distinct one."""
    texts = coded.dictionary
    changed = pa.array([change(text) or None for text in texts.to_pylist()], pa.string())
    if changed.equals(texts):
        return coded
    return changed.take(coded.indices).dictionary_encode()


def _severities(columns: LogColumns, source: RecordSource) -> tuple[pa.Array, pa.Array]:
    """Return the severity number of each record, null if it is not known, and its level."""
    numbers = np.zeros(source.count, np.int32)
    if columns.severity is not None:
        numbers += columns.severity
    unknown: list[tuple[Ints, pa.Array]] = []
    open_records = numbers == 0
    for scale, stated, texts in _stated_severities(source):
        free = open_records[stated]
        records, coded = stated[free], _where(texts, free).dictionary_encode()
        distinct = coded.dictionary.to_pylist()
        known = np.array([_severity_of(text, scale) for text in distinct], np.int32)
        codes = coded.indices.to_numpy(zero_copy_only=False)
        numbers[records] = known[codes]
        open_records[records] = False
        others = known[codes] == 0
        if others.any():
            levels = pa.array([level_of(0, text) or None for text in distinct], pa.string())
            unknown.append((records[others], levels.take(number_array(codes[others]))))
    return number_array(numbers, numbers > 0), _levels(numbers, unknown)


def _severity_of(text: str, scale: Scale) -> int:
    """Return the severity of a text; a long one is no level, and is not remembered."""
    return severity_of(text, scale) if len(text) <= LEVEL_CHARACTERS_MAX else 0


def _stated_severities(source: RecordSource) -> Iterator[tuple[Scale, Ints, pa.Array]]:
    """Yield where severities are stated, key by key.

    Whether a pair is in the attributes or in the resource depends on the other records of a batch,
    so it decides only between two pairs of one key.
    """
    present = [one for one in SEVERITY_KEYS if one.name in source.keys]
    for key in present:
        for find in (source.in_attributes, source.in_resources):
            found = find(key.name)
            if found is not None and len(found[0]):
                yield (key.scale, *found)


def _levels(numbers: npt.NDArray[np.int32], unknown: list[tuple[Ints, pa.Array]]) -> pa.Array:
    codes = (numbers - 1) // NUMBERS_A_LEVEL
    plain = pa.DictionaryArray.from_arrays(
        number_array(codes, numbers > 0), pa.array(LEVELS, pa.string())
    )
    if not unknown:
        return plain
    first = _First(len(numbers))
    known = np.flatnonzero(numbers)
    if len(known):
        first.add(known, plain.take(number_array(known)))
    for found in unknown:
        first.add(*found)
    return first.array()


def _observed(source: RecordSource) -> pa.Array:
    texts = _first_of(source, (OBSERVED_KEY,))
    if texts is None:
        return pa.nulls(source.count, pa.int64())
    texts = texts.cast(pa.string())
    is_number = pc.match_substring_regex(texts, "^(?:[0-9]{1,18}|[1-8][0-9]{18})$")
    return pc.if_else(is_number, texts, pa.scalar(None, pa.string())).cast(pa.int64())
