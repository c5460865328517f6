"""Payloads of many small frames, decoded together: one numpy operation serves all of them.

`join_payloads` checks every rule of a payload. If one of the payloads may break a rule, it returns
None, and the caller decodes each frame with `frame.decode_frame`, which names the field.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar, cast

import numpy as np
import numpy.typing as npt

from sluice_protocol.columns import (
    AttributeColumns,
    Columns,
    EntryColumns,
    LogColumns,
    MetricColumns,
    TextColumn,
    check_columns,
)
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.manifests import Kind
from sluice_protocol.payload_layout import PayloadLayout
from sluice_protocol.short_cbor import ShortValue

_OFFSET_BYTES: Final = 4

_Ints = npt.NDArray[np.int64]
_Scalar = TypeVar("_Scalar", bound=np.generic)


class _NotJoined(Exception):
    """Some payload may break a rule."""


def join_payloads(
    kind: Kind,
    payloads: Sequence[Mapping[str, ShortValue]],
    counts: Sequence[int],
    layout: PayloadLayout,
) -> Columns | None:
    """Return the columns of several payloads as one; None if one of them may break a rule.

    Args:
        kind: The kind of every payload.
        payloads: Their values by name, as `payload.read_short_payload` returns them; all have the
            same names, and together at most 2 GiB.
        counts: The number of records of each.
        layout: The layout of their frames' version.
    """
    joiner = _Joiner(payloads, np.array(counts, dtype=np.int64), layout)
    try:
        columns = joiner.columns(kind)
        check_columns(columns, int(joiner.counts.sum()))
    except (_NotJoined, InvalidFrame, KeyError):
        return None
    return columns


@dataclass(frozen=True, slots=True)
class _Joiner:
    payloads: Sequence[Mapping[str, ShortValue]]
    counts: _Ints
    layout: PayloadLayout

    def columns(self, kind: Kind) -> Columns:
        match kind:
            case "logs":
                return LogColumns(
                    ts=self.times(),
                    body=self.text("body", self.counts),
                    severity=self.optional("severity", np.uint8),
                    attributes=self.attributes(),
                )
            case "metrics":
                names, codes = self.names("names", "name", self.counts)
                return MetricColumns(
                    ts=self.times(),
                    names=names,
                    name=codes,
                    value=self.array("value", np.float64, self.counts),
                    type=self.array("type", np.uint8, self.counts),
                    attributes=self.attributes(),
                )
            case "entries":
                return EntryColumns(
                    key=self.text("key", self.counts),
                    value=self.text("val", self.counts),
                    ts=self.times() if "ts" in self.payloads[0] else None,
                )

    def views(self, name: str) -> list[memoryview]:
        return [cast("memoryview", one[name]) for one in self.payloads]

    def optional(self, name: str, dtype: type[_Scalar]) -> npt.NDArray[_Scalar] | None:
        return self.array(name, dtype, self.counts) if name in self.payloads[0] else None

    def array(self, name: str, dtype: type[_Scalar], counts: _Ints) -> npt.NDArray[_Scalar]:
        views = self.views(name)
        sizes = np.array([len(one) for one in views], dtype=np.int64)
        if (sizes != counts * np.dtype(dtype).itemsize).any():
            raise _NotJoined
        little = np.frombuffer(b"".join(views), np.dtype(dtype).newbyteorder("<"))
        return little.astype(dtype, copy=False)

    def times(self) -> _Ints:
        found = self.array("ts", np.int64, self.counts)
        if not self.layout.has_differences:
            return found
        sums = np.cumsum(found, dtype=np.int64)
        firsts = np.cumsum(self.counts) - self.counts
        before: _Ints = np.repeat(sums[firsts] - found[firsts], self.counts)
        return sums - before

    def offsets(self, name: str, counts: _Ints, ends: _Ints) -> npt.NDArray[np.int32]:
        """Return the offsets of all payloads into their joined data."""
        if self.layout.has_differences:
            return self.sums_of_lengths(name, counts, ends)
        found = self.array(self.layout.ends_name(name), np.int32, counts + 1).astype(np.int64)
        firsts = np.cumsum(counts + 1) - (counts + 1)
        if found[firsts].any() or (found[firsts + counts] != ends).any():
            raise _NotJoined
        kept = np.ones(len(found), np.bool_)
        kept[firsts[1:]] = False  # each begins where the one before it ends
        shifted = found + np.repeat(np.cumsum(ends) - ends, counts + 1)
        return shifted[kept].astype(np.int32)

    def sums_of_lengths(self, name: str, counts: _Ints, ends: _Ints) -> npt.NDArray[np.int32]:
        lengths = self.array(self.layout.ends_name(name), np.uint32, counts)
        sums = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, dtype=np.int64, out=sums[1:])
        last = np.cumsum(counts)
        if (sums[last] - sums[last - counts] != ends).any():
            raise _NotJoined
        return sums.astype(np.int32)

    def text(self, name: str, counts: _Ints) -> TextColumn:
        views = self.views(name)
        ends = np.array([len(one) for one in views], dtype=np.int64)
        return TextColumn(offsets=self.offsets(name, counts, ends), data=b"".join(views))

    def names(
        self, name: str, index: str, counts: _Ints
    ) -> tuple[tuple[str, ...], npt.NDArray[np.uint32]]:
        """Return the distinct names of all payloads, and the index into them."""
        lists = [cast("tuple[str, ...]", one[name]) for one in self.payloads]
        if any(len(set(one)) != len(one) for one in lists):
            raise _NotJoined
        sizes = np.array([len(one) for one in lists], dtype=np.int64)
        codes = self.array(index, np.uint32, counts).astype(np.int64)
        if (codes >= np.repeat(sizes, counts)).any():
            raise _NotJoined
        flat = codes + np.repeat(np.cumsum(sizes) - sizes, counts)
        if not np.bincount(flat, minlength=int(sizes.sum())).all():
            raise _NotJoined  # a name is unused
        distinct = tuple(dict.fromkeys(text for one in lists for text in one))
        place_of = {text: place for place, text in enumerate(distinct)}
        places = np.array([place_of[text] for one in lists for text in one], dtype=np.uint32)
        return distinct, places[flat]

    def attributes(self) -> AttributeColumns | None:
        if not any(name.startswith("attr_") for name in self.payloads[0]):
            return None
        pairs = np.array([len(one) for one in self.views("attr_key")], dtype=np.int64)
        pairs //= _OFFSET_BYTES
        names, keys = self.names("attr_names", "attr_key", pairs)
        return AttributeColumns(
            names=names,
            offsets=self.offsets("attr", self.counts, pairs),
            keys=keys,
            values=self.text("attr_val", pairs),
        )
