"""Selection of strings from a text column."""

import numpy as np

from sluice_protocol.columns import I64, TextColumn


def take_texts(column: TextColumn, places: I64) -> TextColumn:
    """Return the strings at these places, in this order."""
    starts = column.offsets[:-1][places]
    ends = column.offsets[1:][places]
    offsets = np.zeros(len(places) + 1, np.int32)
    np.cumsum(ends - starts, out=offsets[1:])
    view = memoryview(column.data)
    pieces = [view[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    return TextColumn(offsets=offsets, data=b"".join(pieces))
