"""JSON requests that become columns later, many together: objects whose times can be read.

A small request costs less as text: its identity needs no columns, and the columns of a group cost
little more than those of one request. The text has the keys of each object sorted, so requests with
equal records have equal text, whatever the order of keys, white space and the content coding.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

import cbor2
import msgspec

from sluice_doors.decoded import RECORDS_MAX, Tally
from sluice_doors.json.records import RecordFields, columns_of
from sluice_doors.json.values import decode_objects, read_json_lines
from sluice_protocol.columns import LogColumns
from sluice_protocol.errors import UNREADABLE_JSON

LINES_FORM: Final = "l2"
EXPANSION: Final = 4
"""The size of columns is at most this multiple of the size of their lines: a pair takes at least
four bytes as JSON, and eight more than its value in columns; an object with a time takes eight
bytes, and 21 without its pairs.
"""
_SORTED: Final = msgspec.json.Encoder(order="sorted", decimal_format="number")
_HEADS_MAX: Final = 256


class TimedLines(msgspec.Struct, frozen=True, eq=False):
    """The records of a request.

    `lines` has an object on each line. Times are Unix ns. `time` and `message` are the keys with a
    meaning, as in `RecordFields`.
    """

    lines: bytes
    times: list[int]
    time: tuple[str, ...]
    message: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes that the columns take, at most; equal for equal records."""
        return EXPANSION * len(self.lines)


def timed_lines(body: bytes, time: tuple[str, ...], message: tuple[str, ...]) -> TimedLines | None:
    """Return the records of a body of JSON, decoded no further than necessary.

    The body has lines of objects, or one array of objects. Return None where a value is not an
    object, a time is missing or cannot be read, a key is empty, or objects are nested.
    """
    if set(time).intersection(message):
        return None
    fields = RecordFields(time=time, message=message, received_ns=0)
    try:
        objects = decode_objects(body)
        if not objects or len(objects) > RECORDS_MAX or set(map(type, objects)) != {dict}:
            return None
        times = [fields.time_of(one, None)[1] for one in objects]
        if None in times or dict in set(map(type, chain.from_iterable(map(dict.values, objects)))):
            return None
        lines = _SORTED.encode_lines(objects)
    except (*UNREADABLE_JSON, UnicodeError, OverflowError):
        return None
    if b'"":' in lines and any("" in one for one in objects):
        return None
    return TimedLines(lines, [at for at in times if at is not None], time, message)


def lines_digest(found: TimedLines) -> bytes:
    """Return the sha256 over the form's name, the names of the fields and the lines."""
    return hashlib.sha256(_form_head(found.time, found.message) + found.lines).digest()


@lru_cache(maxsize=_HEADS_MAX)
def _form_head(time: tuple[str, ...], message: tuple[str, ...]) -> bytes:
    return cbor2.dumps((LINES_FORM, time, message))


def columns_of_lines(requests: Sequence[TimedLines]) -> LogColumns:
    """Return the records of requests with the same fields, one after another."""
    first = requests[0]
    joined = b"".join(one.lines for one in requests)
    times = list(chain.from_iterable(one.times for one in requests))
    fields = RecordFields(time=first.time, message=first.message, received_ns=0)
    return columns_of(read_json_lines(joined), fields, Tally(), times)
