"""Spark removes the same rows by lookups as by one condition for each delete."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import RECORD_TABLES
from sluice_protocol.fields import Kind
from sluice_protocol.record_deletes import DeleteRecord
from sluice_spark.compaction.delete_matches import (
    any_of,
    only_deleted,
    sql_literal,
    without_deleted,
)

pytestmark = pytest.mark.spark

AT = "coalesce(ts_ns, unix_micros(accepted_at) * 1000)"
WORDS = ("", "it's", "back\\slash", "a.b", "ä€", "line")
START = datetime(2026, 9, 1, tzinfo=UTC)
START_NS = int(START.timestamp()) * 10**9


def condition(record: DeleteRecord) -> str:
    """Return the condition of one delete, as earlier versions had it."""
    parts = [f"unix_micros(accepted_at) * 1000 <= {record.accepted_until_unix_ns}"]
    if record.from_unix_ns is not None:
        parts.append(f"{AT} >= {record.from_unix_ns}")
    if record.to_unix_ns is not None:
        parts.append(f"{AT} < {record.to_unix_ns}")
    if record.agent_id is not None:
        parts.append(f"agent_id = {sql_literal(record.agent_id)}")
    if record.contains is not None:
        text = sql_literal(record.contains)
        parts.append(f"contains(body, {text})" if record.kind == "logs" else f"name = {text}")
    for key, value in record.attributes.items():
        name, text = sql_literal(key), sql_literal(value)
        parts.append(f"(attributes[{name}] = {text} OR resource[{name}] = {text})")
    return f"coalesce({' AND '.join(parts)}, false)"


def random_row(rng: random.Random, number: int) -> dict[str, Any]:
    words = [rng.choice(WORDS) for _ in range(2)]
    return {
        "agent_id": f"h-{rng.randrange(3)}",
        "boot_id": "b",
        "seq": number,
        "ts_ns": rng.choice([None, START_NS + rng.randrange(100) * 10**9 + rng.randrange(9)]),
        "accepted_at": START + timedelta(seconds=rng.randrange(100)),
        "body": rng.choice([None, " ".join(words)]),
        "name": words[0],
        "attributes": rng.choice([None, {}, {"k": words[0]}, {"k": words[1], "l": "x"}]),
        "resource": rng.choice([None, {"l": words[0]}]),
    }


def random_delete(rng: random.Random, kind: Kind) -> DeleteRecord:
    start = START_NS + rng.randrange(100) * 10**9
    entries = kind == "entries"
    return DeleteRecord(
        delete_id="0" * 26,
        kind=kind,
        accepted_until_unix_ns=START_NS + rng.randrange(100) * 10**9,
        from_unix_ns=start,
        to_unix_ns=rng.choice([None, start + rng.randrange(1, 10) * 10**9]),
        agent_id=rng.choice([None, f"h-{rng.randrange(3)}"]),
        contains=None if entries else rng.choice([None, rng.choice(WORDS)]),
        attributes={} if entries else rng.choice([{}, {"k": "it's"}, {"k": "a.b", "l": "x"}]),
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", list(RECORD_TABLES))
def test_lookups_remove_what_the_conditions_remove(spark: Any, kind: Kind) -> None:
    table = RECORD_TABLES[kind]
    names = {column.name for column in table.columns}
    schema = arrow_schema(table, partition=False)
    schema = pa.schema([field.with_nullable(True) for field in schema])
    for seed in range(3):
        rng = random.Random(seed)
        rows = [random_row(rng, number) for number in range(200)]
        known = [{key: row[key] for key in row.keys() & names} for row in rows]
        frame = spark.createDataFrame(pa.Table.from_pylist(known, schema)).cache()
        deletes = [random_delete(rng, kind) for _ in range(30)]
        gone = frame.where(any_of([condition(one) for one in deletes])).select("seq").collect()
        expected = {row.seq for row in gone}
        assert 0 < len(expected) < len(rows)
        assert {row.seq for row in only_deleted(frame, deletes).collect()} == expected
        kept = {row.seq for row in without_deleted(frame, deletes).select("seq").collect()}
        assert kept == {row["seq"] for row in rows} - expected
        frame.unpersist()
