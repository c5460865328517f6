"""Columns of the usual lines of Loki in JSON: a time in ns and a text, without metadata."""

from collections.abc import Sequence

import numpy as np

from sluice_doors.otlp_attributes import RESOURCE, Pairs, merged
from sluice_doors.tally import Tally
from sluice_protocol.columns import LogColumns
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.records import logs_from_lines
from sluice_protocol.times import TS_END

_DIGITS_MAX = 19
"""Digits of 2^63."""
_FIELDS = 2


def columns_of_lines(lines: Sequence[object], labels: Pairs, tally: Tally) -> LogColumns | None:
    """Return the columns of lines with the same labels; None if one has another form.

    Args:
        lines: The lines as the body has them.
        labels: The labels of their stream that are not in the resource of the frame.
        tally: Counts the lines.

    Raises:
        BodyTooLarge: The records of the request expand to more than the limits.
    """
    times: list[str] = []
    texts: list[bytes] = []
    try:
        for line in lines:
            if not isinstance(line, list) or len(line) != _FIELDS:
                return None
            time, text = line
            times.append(time)
            texts.append(text.encode())
        if not all(one.isdecimal() and len(one) <= _DIGITS_MAX for one in times):
            return None
        if not "".join(times).isascii():
            return None
        ts = np.fromiter(map(int, times), np.uint64, len(times))
        if int(ts.max()) >= TS_END:
            return None
        attributes = merged([(RESOURCE, labels)])
        columns = logs_from_lines(texts, ts.astype(np.int64), attributes=attributes)
    except (AttributeError, TypeError, UnicodeEncodeError, InvalidFrame):
        return None  # a value of another type, or half of a surrogate pair
    tally.add(attributes, records=len(texts))
    tally.add_sizes(0, len(columns.body.data))
    return columns
