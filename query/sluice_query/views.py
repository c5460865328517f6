"""What can be computed from the records of a query, instead of returning them."""

from dataclasses import dataclass

from sluice_query.fields import RecordField


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """The number of records in each bucket of time.

    Attributes:
        step_ns: Width of a bucket, ns. Buckets start at its multiples since 1970.
        by: The field by whose values each bucket is divided, or None.
        top: How many values have a separate count.
    """

    step_ns: int
    by: RecordField | None = None
    top: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldList:
    """The fields that the records have.

    Attributes:
        keys_max: Most keys of attributes and resources to list.
    """

    keys_max: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TopValues:
    """The most frequent values of one field.

    Attributes:
        field: The field.
        limit: Most values.
    """

    field: RecordField
    limit: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """The records before and after one record of one boot of an agent.

    Attributes:
        boot_id: The boot. The agent is that of the query.
        seq: Sequence number of the record.
        before: Most records before it.
        after: Most records after it.
    """

    boot_id: str
    seq: int
    before: int = 10
    after: int = 10


View = Histogram | FieldList | TopValues | Neighbourhood
