"""The columns of a frame's payload, as frozen values over numpy arrays and bytes.

Arrays are read-only by convention and little-endian. Building one of these checks nothing:
`check_columns` does, once, where bytes come in and where bytes go out.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice_protocol.manifests import Kind

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]
U8 = npt.NDArray[np.uint8]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextColumn:
    """Strings laid end to end: string `i` is `data[offsets[i]:offsets[i + 1]]`.

    Attributes:
        offsets: i32[n + 1]; starts 0, never falls, ends at `len(data)`.
        data: The bytes; UTF-8 or opaque, as the column says.
    """

    offsets: I32
    data: bytes

    def __len__(self) -> int:
        """Gives the number of strings."""
        return len(self.offsets) - 1

    def slices(self) -> list[bytes]:
        """Gives every string by itself; a copy of each, for people and tests."""
        edges = self.offsets.tolist()
        return [self.data[a:b] for a, b in itertools.pairwise(edges)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttributeColumns:
    """Attributes of all records: record `i` has the pairs `offsets[i]:offsets[i + 1]`.

    Attributes:
        names: The distinct attribute names, each used.
        offsets: i32[n + 1] into `keys` and `values`.
        keys: u32[m], an index into `names`.
        values: m UTF-8 strings.
    """

    names: tuple[str, ...]
    offsets: I32
    keys: U32
    values: TextColumn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogColumns:
    """n log records.

    Attributes:
        ts: i64[n], Unix ns.
        body: n UTF-8 strings.
        severity: u8[n], OpenTelemetry severity number 0 to 24, or None.
        attributes: Attributes, or None when no record has any.
    """

    ts: I64
    body: TextColumn
    severity: U8 | None = None
    attributes: AttributeColumns | None = None

    def __len__(self) -> int:
        """Gives the number of records."""
        return len(self.ts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetricColumns:
    """n metric points.

    Attributes:
        ts: i64[n], Unix ns.
        names: The distinct metric names, each used.
        name: u32[n], an index into `names`.
        value: f64[n], any bits, NaN kept.
        type: u8[n]: 0 gauge, 1 delta, 2 cumulative.
        attributes: Attributes, or None when no point has any.
    """

    ts: I64
    names: tuple[str, ...]
    name: U32
    value: F64
    type: U8
    attributes: AttributeColumns | None = None

    def __len__(self) -> int:
        """Gives the number of points."""
        return len(self.ts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EntryColumns:
    """n opaque entries.

    Attributes:
        key: n byte strings.
        value: n byte strings.
        ts: i64[n], Unix ns, or None.
    """

    key: TextColumn
    value: TextColumn
    ts: I64 | None = None

    def __len__(self) -> int:
        """Gives the number of entries."""
        return len(self.key)


Columns = LogColumns | MetricColumns | EntryColumns


def kind_of(columns: Columns) -> Kind:
    """Gives the kind that an envelope names for these columns."""
    match columns:
        case LogColumns():
            return "logs"
        case MetricColumns():
            return "metrics"
        case EntryColumns():
            return "entries"
