"""The second net: rows that a client sent twice in other batches, found by their content.

A client that cuts its batches again after a lost response sends requests with other identities.
Their records are recognised by what they contain. A row is a repetition if all of this is true:

- it has the same key as a row that stays, its witness. For logs the key is the sender, the body,
  the severity and the configured attributes; for metrics sender, series, type, time and value;
- the witness was accepted earlier, at most `window_us` before;
- both came with different requests: a request that contains a record twice means it twice.

The witness is the first row of its key in the window, so a row never depends on a row that is
removed. Source: ADR 0166.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa

from sluice_protocol.manifests import Kind
from sluice_protocol.request_identity import DOOR_AGENT_PREFIX, is_single_request
from sluice_spark.delete_conditions import sql_literal

KEY: Final = "repetition_key"
"""The column with the digest of what two records must have in common; null: never compared."""
ROW_ID: Final = ("agent_id", "boot_id", "seq", KEY)
"""What names a row: overlapping batches may contain one sequence number twice."""
REMOVED_SCHEMA: Final = (
    "agent_id string, boot_id string, seq bigint, repetition_key string, file string,"
    " witness_agent_id string, witness_boot_id string, witness_seq bigint"
)
_WHOLE_BOOT: Final = -1
_CHUNK_ROWS: Final = 10_000
_DAY_US: Final = 86_400_000_000
_US_PER_S: Final = 1_000_000
_SENDER: Final = (
    f"CASE WHEN startswith(agent_id, '{DOOR_AGENT_PREFIX}')"
    " THEN regexp_replace(agent_id, ':[^:]*$', '') ELSE agent_id END"
)
"""The lanes and requests of a principal are one sender."""
_LABELS: Final = (
    "array_sort(concat(coalesce(map_entries(attributes), array()),"
    " transform(coalesce(map_entries(resource), array()), pair -> named_struct('key',"
    " CASE WHEN coalesce(map_contains_key(attributes, pair.key), false)"
    " THEN concat('resource.', pair.key) ELSE pair.key END, 'value', pair.value))))"
)
"""The pairs of a series; a combined batch has pairs in the attributes that others have in the
resource.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionRules:
    """Which records are compared.

    Attributes:
        kind: The kind of the records.
        attributes: For logs: the attributes that name a record. Records without one of them are not
            compared.
        window_s: Seconds of acceptance within which a record is recognised.
    """

    kind: Kind
    attributes: tuple[str, ...]
    window_s: int

    @property
    def window_us(self) -> int:
        """The window in microseconds, the unit of `accepted_at`."""
        return self.window_s * _US_PER_S

    @property
    def window_days(self) -> int:
        """The dates before that of a row that the window reaches."""
        return -(-self.window_us // _DAY_US)

    @property
    def digest(self) -> str:
        """The name of these rules: other rules examine all files again."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    @property
    def key(self) -> str:
        """The SQL expression of `KEY`: null for a row that is not compared."""
        return self._metric_key() if self.kind == "metrics" else self._log_key()

    def _log_key(self) -> str:
        values = [
            f"coalesce(attributes[{name}], resource[{name}])"
            for name in map(sql_literal, self.attributes)
        ]
        parts = [_SENDER, "body", "cast(coalesce(severity, 0) AS string)", *values]
        present = " AND ".join(f"{value} IS NOT NULL" for value in values)
        return f"CASE WHEN {present} THEN sha2(to_json(array({', '.join(parts)})), 256) END"

    def _metric_key(self) -> str:
        parts = (
            f"'sender', {_SENDER}, 'name', name, 'type', type, 'ts_ns', ts_ns,"
            f" 'value', cast(value AS string), 'labels', {_LABELS}"
        )
        # The text of a NaN does not show its bits, and so not whether it is a stale marker.
        return f"CASE WHEN NOT isnan(value) THEN sha2(to_json(named_struct({parts})), 256) END"

    def dates_before(self, partition: str) -> list[str]:
        """Return the dates before a date whose rows may be witnesses of its rows."""
        day = date.fromisoformat(partition)
        return [(day - timedelta(days=back)).isoformat() for back in range(self.window_days, 0, -1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRow:
    """One row of which another with the same key exists.

    Attributes:
        key: Digest of what repetitions have in common.
        accepted_us: When its batch was accepted, Unix microseconds.
        agent_id: Its agent.
        boot_id: Its boot.
        seq: Its number.
        file: The file that contains it.
        may_go: Whether it is in the date that is examined.
    """

    key: str
    accepted_us: int
    agent_id: str
    boot_id: str
    seq: int
    file: str
    may_go: bool

    @property
    def request(self) -> tuple[str, str, int]:
        """The request that contained it, as far as its identity shows it.

        A large request of a door is one boot. Other boots contain many requests, so each of their
        rows counts as a separate one.
        """
        is_request = is_single_request(self.agent_id, self.boot_id)
        return (self.agent_id, self.boot_id, _WHOLE_BOOT if is_request else self.seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """A row to remove, and the row that stays."""

    row: KeyedRow
    witness: KeyedRow


ORDER: Final = (KEY, "accepted_us", "agent_id", "boot_id", "seq")
"""The order in which `find_repetitions` reads rows; it is the same in each run."""


def find_repetitions(rows: Iterable[KeyedRow], window_us: int) -> Iterator[Repetition]:
    """Yield the repetitions among rows in the order of `ORDER`; pure, and in constant memory."""
    witness: KeyedRow | None = None
    for row in rows:
        if (
            witness is None
            or row.key != witness.key
            or row.accepted_us - witness.accepted_us > window_us
        ):
            witness = row
        elif row.request != witness.request and row.may_go:
            yield Repetition(row=row, witness=witness)


def keyed(rows: Any, rules: RepetitionRules) -> Any:  # noqa: ANN401 - DataFrames
    """Return the rows of a record table with the column `KEY`."""
    return rows.selectExpr("*", f"{rules.key} AS {KEY}")


def removed_rows(rows: Any, rules: RepetitionRules, partition: str) -> Any:  # noqa: ANN401
    """Return a DataFrame of `REMOVED_SCHEMA`: the repetitions in a date.

    Args:
        rows: The rows of the date and of those before it, as `keyed` returns them.
        rules: What is compared.
        partition: The date.
    """
    columns = (
        KEY,
        "unix_micros(accepted_at) AS accepted_us",
        *("agent_id", "boot_id", "seq", "file"),
        f"to_date(accepted_at) = date'{partition}' AS may_go",
    )
    narrow = rows.where(f"{KEY} IS NOT NULL").selectExpr(*columns)
    counted = narrow.selectExpr("*", f"count(*) OVER (PARTITION BY {KEY}) AS times")
    several = counted.where("times > 1").drop("times")
    # The partitioning of the window is kept: all rows of a key are in one partition.
    ordered = several.sortWithinPartitions(*ORDER)
    return ordered.mapInArrow(_search(rules.window_us), REMOVED_SCHEMA)


def _search(window_us: int) -> Any:  # noqa: ANN401 - the function for `mapInArrow`
    def search(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = find_repetitions(_rows(batches), window_us)
        while chunk := [one for _, one in zip(range(_CHUNK_ROWS), found, strict=False)]:
            yield _encode(chunk)

    return search


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[KeyedRow]:
    for batch in batches:
        for row in batch.to_pylist():
            key = row.pop(KEY)
            yield KeyedRow(key=key, **row)


def _encode(found: Sequence[Repetition]) -> pa.RecordBatch:
    texts: dict[str, list[str]] = {
        "agent_id": [one.row.agent_id for one in found],
        "boot_id": [one.row.boot_id for one in found],
        KEY: [one.row.key for one in found],
        "file": [one.row.file for one in found],
        "witness_agent_id": [one.witness.agent_id for one in found],
        "witness_boot_id": [one.witness.boot_id for one in found],
    }
    numbers = {
        "seq": [one.row.seq for one in found],
        "witness_seq": [one.witness.seq for one in found],
    }
    arrays = {name: pa.array(values, pa.string()) for name, values in texts.items()}
    arrays |= {name: pa.array(values, pa.int64()) for name, values in numbers.items()}
    names = [column.split()[0] for column in REMOVED_SCHEMA.split(", ")]
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], names=names)
