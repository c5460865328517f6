"""What decoders return, count and raise."""

from collections.abc import Iterable, Mapping, Sequence, Sized
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


@dataclass(slots=True)
class Tally:
    """The counts of one request.

    Attributes:
        timed: True while every record contains its own time.
        unreadable: The records with an error.
        foreign: The records that are messages of protobuf of another kind.
        pairs: The attributes of all records so far.
        text_bytes: The approximate text of all records so far.
    """

    timed: bool = True
    unreadable: int = 0
    foreign: int = 0
    pairs: int = 0
    text_bytes: int = 0

    def add(self, attributes: Mapping[str, str], text: str = "", *, records: int = 1) -> None:
        """Count records with these attributes.

        Raises:
            BodyTooLarge: Together they exceed a limit.
        """
        size = len(text) + sum(map(len, attributes.values()))
        self.add_sizes(len(attributes) * records, size * records)

    def add_sizes(self, pairs: int, text_bytes: int) -> None:
        """Count attributes and text.

        Raises:
            BodyTooLarge: Together they exceed a limit.
        """
        self.pairs += pairs
        self.text_bytes += text_bytes
        self._check(self.pairs, self.text_bytes)

    def check_repeated(self, counted: Iterable[tuple[int, Sequence[tuple[str, str]]]]) -> None:
        """Check attributes that many records will have, before any of the records is made.

        The records are counted when they are made. Until then a small body could take seconds.

        Args:
            counted: Numbers of records, and the pairs that each of them will have among others.

        Raises:
            BodyTooLarge: Together they exceed a limit.
        """
        pairs, text_bytes = self.pairs, self.text_bytes
        for records, repeated in counted:
            pairs += records * len(repeated)
            text_bytes += records * sum(len(value) for _, value in repeated)
        self._check(pairs, text_bytes)

    @staticmethod
    def _check(pairs: int, text_bytes: int) -> None:
        if pairs > PAIRS_MAX or text_bytes > EXPANDED_BYTES_MAX:
            raise BodyTooLarge(
                "body is too large: its records expand to more than"
                f" {PAIRS_MAX} attributes or {EXPANDED_BYTES_MAX} bytes; send smaller requests"
            )

    def decoded(
        self, columns: LogColumns | MetricColumns, resource: Resource = ()
    ) -> DecodedRecords:
        """Return the records that were counted.

        Raises:
            BodyUnreadable: All of them are messages of another kind.
        """
        if self.foreign and self.foreign == len(columns):
            raise BodyUnreadable(
                "cannot read body: it is a message of protobuf of another kind than this path"
                " expects; check the path, and the version in Content-Type"
            )
        return DecodedRecords(
            columns=columns, resource=resource, timed=self.timed, unreadable=self.unreadable
        )
