"""The result of every decoder, and the two errors that a decoder raises."""

from collections.abc import Sized
from dataclasses import dataclass
from typing import Final

from sluice_protocol.columns import LogColumns, MetricColumns
from sluice_protocol.envelope import Resource
from sluice_protocol.errors import ErrorCode, SluiceError

ERROR_ATTRIBUTE: Final = "sluice.error"
"""The attribute of a record that was kept raw; its value is the reason."""
REASON_CHARACTERS_MAX: Final = 200
"""Limit of the reason, which may quote what was sent."""
EXPANDED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Limit of the text of one decoded request. Shared attributes and histogram buckets are repeated
for each record, so a small request can describe a large one.
"""
PAIRS_MAX: Final = 4 * 1024 * 1024
"""Limit of the attributes of one decoded request, over all records: a million takes a quarter of a
second of processor time where they are repeated for each record or bucket.
"""

RECORDS_MAX: Final = 1024 * 1024
"""Limit of the records of one request, where a record may be as short as a byte."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedRecords:
    """The records of one kind of one request.

    Attributes:
        columns: The records, at least one.
        resource: The pairs that all records have in common, sorted by key.
        timed: True if every record contains its own time. Otherwise some have the time of receipt,
            so a repetition of the request has other columns.
        unreadable: The number of records that were kept raw, with the attribute `sluice.error`.
        is_canonical: True if the decoder has built the canonical form, so that it need not be
            searched for what to sort.
    """

    columns: LogColumns | MetricColumns
    resource: Resource
    timed: bool
    unreadable: int
    is_canonical: bool = False


class BodyUnreadable(SluiceError):
    """No record of the body can be read; the same bytes can never be accepted."""

    code = ErrorCode.BAD_REQUEST

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BodyTooLarge(SluiceError):
    """The body, or what it expands to, exceeds a limit."""

    code = ErrorCode.TOO_LARGE

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def check_count(records: Sized) -> None:
    """Check the number of records while they are collected.

    Raises:
        BodyTooLarge: There are more than `RECORDS_MAX`.
    """
    if len(records) > RECORDS_MAX:
        raise BodyTooLarge(
            f"body is too large: it has more than {RECORDS_MAX} records; send smaller requests"
        )


def check_lines(body: bytes, *, per_record: int = 1) -> None:
    """Check the number of lines, before an object is made for each of them.

    Args:
        body: The body after decompression.
        per_record: The lines of a record.

    Raises:
        BodyTooLarge: There are more lines than `RECORDS_MAX` records have.
    """
    if body.count(b"\n") > RECORDS_MAX * per_record:
        raise BodyTooLarge(
            f"body is too large: it has more than {RECORDS_MAX * per_record} lines; send smaller"
            " requests"
        )
