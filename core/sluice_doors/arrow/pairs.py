"""Attributes of many records from several sources, joined over whole arrays.

The result equals `attributes.merged` for each record, with the pairs of each record sorted by key.
Only records with a key twice are visited one by one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice_doors.arrow.texts import (
    ArrowArray,
    NotPlain,
    check_text,
    decimal_texts,
    integers,
    lengths,
    text_of,
)
from sluice_doors.attributes import EMPTY_KEY, FIELD, free_name
from sluice_doors.decoded import Tally
from sluice_protocol.columns import I64, U8, U32, AttributeColumns
from sluice_protocol.values import joined_types, some_types, value_types

ConvertTexts = Callable[[ArrowArray], ArrowArray]


@dataclass(slots=True)
class Names:
    """The distinct attribute names, numbered in the order of their first use."""

    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """Return the number of a name."""
        return self.numbers.setdefault(name or EMPTY_KEY, len(self.numbers))

    def numbers_of(self, keys: ArrowArray) -> U32:
        """Return the number of each key."""
        coded = keys.dictionary_encode()
        try:
            distinct = [self.number(key.decode()) for key in coded.dictionary.to_pylist()]
        except UnicodeDecodeError as error:
            raise NotPlain from error
        places = coded.indices.to_numpy(zero_copy_only=False)
        return np.array(distinct, np.uint32)[places] if distinct else np.zeros(0, np.uint32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairSource:
    """One source of attributes.

    Renamed attributes start with `prefix`. Owner `i` has the pairs `offsets[i]:offsets[i + 1]`.
    `types` is what the values are; None if all are text.
    `owner` is the owner of each record's pairs; None if record `i` has those of owner `i`.
    """

    prefix: str
    offsets: I64
    keys: U32
    values: ArrowArray
    types: U8 | None = None
    owner: I64 | None = None

    def starts(self) -> I64:
        """Return the first pair of each record."""
        starts = self.offsets[:-1]
        return starts if self.owner is None else starts[self.owner]

    def counts(self) -> I64:
        """Return the number of pairs of each record."""
        counts = np.diff(self.offsets)
        return counts if self.owner is None else counts[self.owner]


def field_source(number: int, stated: npt.NDArray[np.bool_], values: ArrowArray) -> PairSource:
    """Return a source with one pair for each `stated` record; `values` has only their texts."""
    offsets = np.zeros(len(stated) + 1, np.int64)
    np.cumsum(stated, out=offsets[1:])
    keys = np.full(len(values), number, np.uint32)
    return PairSource(prefix=FIELD, offsets=offsets, keys=keys, values=values)


def optional_sources(
    records: ArrowArray, fields: Sequence[tuple[str, str, ConvertTexts | None]], names: Names
) -> list[PairSource]:
    """Return a source for each of some optional fields of records, if a record states it.

    A field has a name, the key of its attribute, and how its values become text, if they are none.
    """
    found = []
    for name, key, convert in fields:
        values = records.field(name)
        stated = integers(values) != 0 if convert is decimal_texts else lengths(values) != 0
        if stated.any():
            kept = values_where(values, stated)
            texts = kept if convert is None else convert(kept)
            found.append(field_source(names.number(key), stated, texts))
    return found


def numbers_within(
    values: ArrowArray, largest: int, key: str, names: Names
) -> tuple[U8, list[PairSource]]:
    """Return numbers from 0 to `largest`, with 0 for others, and the source of these others."""
    found = integers(values)
    outside = (found < 0) | (found > largest)
    sources = []
    if outside.any():
        texts = decimal_texts(values_where(values, outside))
        sources.append(field_source(names.number(key), outside, texts))
    return np.where(outside, 0, found).astype(np.uint8), sources


def values_where(values: ArrowArray, stated: npt.NDArray[np.bool_]) -> ArrowArray:
    """Return the values for which `stated` is True."""
    return values if stated.all() else values.filter(pa.array(stated))


def shared_source(
    prefix: str, rows: Sequence[dict[str, str]], owner: I64, names: Names
) -> PairSource:
    """Return a source whose rows are shared by many records."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    try:
        texts = [value for row in rows for value in row.values()]
        values = pa.array([text.encode() for text in texts], pa.binary())
        for row in rows:
            "".join(row).encode()
    except UnicodeEncodeError as error:
        raise NotPlain from error
    keys = np.array([names.number(key) for row in rows for key in row], np.uint32)
    return PairSource(
        prefix=prefix,
        offsets=offsets,
        keys=keys,
        values=values,
        types=value_types(texts),
        owner=owner,
    )


def joined_attributes(
    sources: Sequence[PairSource], names: Names, tally: Tally
) -> AttributeColumns | None:
    """Return the attributes of all records; None if they have none."""
    filled = [source for source in sources if len(source.keys)]
    counts = [source.counts() for source in filled]
    offsets = np.zeros(len(counts[0]) + 1 if counts else 1, np.int64)
    np.cumsum(sum(counts), out=offsets[1:])
    total = int(offsets[-1])
    if not total:
        return None
    tally.add_sizes(total, 0)
    chosen = _chosen(filled, counts, offsets)
    numbers = np.concatenate([source.keys for source in filled])[chosen]
    values = pa.concat_arrays([source.values for source in filled])
    sorted_names, keys = _sorted_numbers(numbers, names)
    order, twice = _pair_order(offsets, keys, len(sorted_names))
    if twice is not None:
        prefixes = _prefixes(filled, chosen)
        numbers = _renamed(numbers, prefixes, offsets, twice, names)
        sorted_names, keys = _sorted_numbers(numbers, names)
        order, _ = _pair_order(offsets, keys, len(sorted_names))
    if order is not None:
        keys, chosen = keys[order], chosen[order]
    tally.add_sizes(0, int(lengths(values)[chosen].sum()))
    texts = text_of(values.take(pa.array(chosen)))
    check_text(texts)
    types = joined_types((source.types, len(source.keys)) for source in filled)
    return AttributeColumns(
        names=sorted_names,
        offsets=offsets.astype(np.int32),
        keys=keys,
        values=texts,
        types=None if types is None else some_types(types[chosen]),
    )


def _chosen(sources: Sequence[PairSource], counts: Sequence[I64], offsets: I64) -> I64:
    """Return the pairs of all records in the order of the sources, as places in their values."""
    bases = np.cumsum([0, *(len(source.keys) for source in sources)]).tolist()
    widths = [width for count in counts if (width := _width(count)) is not None]
    if len(widths) == len(counts):
        columns = [
            (source.starts() + base)[:, np.newaxis] + np.arange(width)
            for source, base, width in zip(sources, bases, widths, strict=False)
        ]
        return np.concatenate(columns, axis=1).reshape(-1)
    chosen = np.empty(int(offsets[-1]), np.int64)
    target = offsets[:-1].copy()
    for source, base, count in zip(sources, bases, counts, strict=False):
        within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        chosen[np.repeat(target, count) + within] = (
            np.repeat(source.starts() + base, count) + within
        )
        target += count
    return chosen


def _width(counts: I64) -> int | None:
    """Return the number of pairs that each record has; None if it differs."""
    first = int(counts[0])
    return first if bool((counts == first).all()) else None


def _sorted_numbers(numbers: U32, names: Names) -> tuple[tuple[str, ...], U32]:
    """Return the names in use, sorted, and each pair's place in them."""
    listed = list(names.numbers)
    used = np.flatnonzero(np.bincount(numbers, minlength=len(listed)))
    order = sorted(used.tolist(), key=listed.__getitem__)
    rank = np.zeros(len(listed), np.uint32)
    rank[order] = np.arange(len(order), dtype=np.uint32)
    return tuple(listed[place] for place in order), rank[numbers]


def _pair_order(offsets: I64, keys: U32, names_count: int) -> tuple[I64 | None, I64 | None]:
    """Return two arrays: the order of each record's pairs, and the records with a key twice."""
    records = len(offsets) - 1
    width = len(keys) // records
    if width * records == len(keys) and bool((np.diff(offsets) == width).all()):
        table = keys.reshape(records, width)
        if bool((table == table[0]).all()):
            return _same_order(table)
    record = np.repeat(np.arange(records, dtype=np.int64), np.diff(offsets))
    place = record * names_count + keys
    order = np.argsort(place, kind="stable")
    ordered = place[order]
    twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]] // names_count)
    return order, twice if len(twice) else None


def _same_order(table: npt.NDArray[np.uint32]) -> tuple[I64 | None, I64 | None]:
    """Do the same for records that all have the same keys in the same order."""
    records, width = table.shape
    order = np.argsort(table[0], kind="stable")
    ordered = table[0][order]
    twice = bool((ordered[1:] == ordered[:-1]).any())
    everywhere = np.arange(records)
    if bool((np.diff(order) > 0).all()):
        return None, everywhere if twice else None
    places = (everywhere[:, np.newaxis] * width + order).reshape(-1)
    return places, everywhere if twice else None


def _prefixes(sources: Sequence[PairSource], chosen: I64) -> list[str]:
    ends = np.cumsum([len(source.keys) for source in sources])
    listed = [source.prefix for source in sources]
    return [listed[place] for place in np.searchsorted(ends, chosen, side="right").tolist()]


def _renamed(numbers: U32, prefixes: list[str], offsets: I64, records: I64, names: Names) -> U32:
    """Return the numbers, with new names for duplicate keys of these records."""
    listed = list(names.numbers)
    changed = numbers.copy()
    for record in records.tolist():
        found: dict[str, str] = {}
        after: dict[str, int] = {}
        for pair in range(int(offsets[record]), int(offsets[record + 1])):
            name = listed[numbers[pair]]
            if name in found:
                name = free_name(prefixes[pair] + name, found, after)
                changed[pair] = names.number(name)
            found[name] = ""
    return changed
