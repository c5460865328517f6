"""The columns that all records of a batch have in common, for many small batches together.

The work per batch is a few appends to lists; everything else is one numpy operation for all
batches. Source: ADR 36.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from sluice_lake.records import Ints, number_array
from sluice_protocol.frame import Envelope

_NS_PER_US: Final = 1000
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class BatchHead:
    """What every record of a batch has in common."""

    envelope: Envelope
    accepted_at_ns: int
    sequence: int


def head_arrays(batches: Sequence[BatchHead], counts: Ints, ts: Ints | None) -> list[pa.Array]:
    """Return the first columns of a record table: agent, boot, sequence numbers and times.

    Args:
        batches: The batches in the order of the rows.
        counts: The number of records of each.
        ts: The times of all records, or None.
    """
    envelopes = [batch.envelope for batch in batches]
    total = int(counts.sum())
    starts = np.array([one.seq_start for one in envelopes], dtype=np.int64)
    accepted = np.array([one.accepted_at_ns // _NS_PER_US for one in batches], dtype=np.int64)
    sequences = np.array([one.sequence for one in batches], dtype=np.int64)
    exact = pa.nulls(total, pa.int64()) if ts is None else number_array(ts)
    cut = (
        pa.nulls(total, pa.int64()) if ts is None else number_array(np.floor_divide(ts, _NS_PER_US))
    )
    return [
        _named([one.agent_id for one in envelopes], counts),
        _named([one.boot_id for one in envelopes], counts),
        number_array(np.repeat(starts, counts) + _places(counts)),
        exact,
        cut.view(_TIMESTAMP),
        number_array(np.repeat(accepted, counts)).view(_TIMESTAMP),
        number_array(np.repeat(sequences, counts)),
    ]


def resource_array(envelopes: Sequence[Envelope], counts: Ints) -> pa.Array:
    """Return each batch's resource for each of its records."""
    shown = [one.shown_resource for one in envelopes]
    distinct = list(dict.fromkeys(shown))
    place_of = {resource: place for place, resource in enumerate(distinct)}
    of_record = np.repeat([place_of[resource] for resource in shown], counts)
    sizes = np.array([len(resource) for resource in distinct], dtype=np.int64)
    firsts = np.cumsum(sizes) - sizes
    per_record = sizes[of_record]
    pairs = [pair for resource in distinct for pair in resource]
    codes = number_array(np.repeat(firsts[of_record], per_record) + _places(per_record))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(per_record)]).astype(np.int32)
    return pa.MapArray.from_arrays(
        number_array(offsets),
        pa.array([key for key, _ in pairs], pa.string()).take(codes),
        pa.array([value for _, value in pairs], pa.string()).take(codes),
    )


def _named(texts: Sequence[str], counts: Ints) -> pa.Array:
    """Return one text per batch for each of its records."""
    distinct = list(dict.fromkeys(texts))
    place_of = {text: place for place, text in enumerate(distinct)}
    places = np.fromiter((place_of[text] for text in texts), np.int64, len(texts))
    return pa.array(distinct, pa.string()).take(number_array(np.repeat(places, counts)))


def _places(counts: Ints) -> Ints:
    """Return 0 … n - 1 for each count n."""
    return np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(
        np.cumsum(counts) - counts, counts
    )
