"""What is counted while records are decoded, and the limit of what they expand to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice_doors.decoded import (
    EXPANDED_BYTES_MAX,
    PAIRS_MAX,
    BodyTooLarge,
    BodyUnreadable,
    DecodedRecords,
)
from sluice_protocol.columns import LogColumns, MetricColumns
from sluice_protocol.envelope import Resource


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
