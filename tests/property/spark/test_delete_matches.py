"""Lookups of many deletes remove the rows that a test of each delete removes."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_protocol.fields import Kind
from sluice_protocol.record_deletes import DeleteRecord
from sluice_spark.compaction.delete_matches import DeleteMatches

TEXT_MAP = pa.map_(pa.string(), pa.string())
WORDS = ("", "a", "b", "ab", "a.b", "(a", "ä\\", "a'b")
EXTREMES = (-(2**63), 2**63 - 1)
times = st.one_of(st.integers(0, 6), st.sampled_from(EXTREMES))
accepted = st.integers(0, 6) | st.just(EXTREMES[1])
words = st.sampled_from(WORDS)
maps = st.dictionaries(st.sampled_from("kl"), words, max_size=2)


def is_removed(record: DeleteRecord, row: dict[str, Any]) -> bool:
    """Return whether a delete removes a row, as `DeleteRecord` states."""
    searched = row["body"] if record.kind == "logs" else row["name"]
    if record.contains is not None:
        if searched is None:
            return False
        is_name = record.kind != "logs"
        if searched != record.contains if is_name else record.contains not in searched:
            return False
    return (
        row["accepted_ns"] <= record.accepted_until_unix_ns
        and (record.from_unix_ns is None or row["at_ns"] >= record.from_unix_ns)
        and (record.to_unix_ns is None or row["at_ns"] < record.to_unix_ns)
        and record.agent_id in (None, row["agent_id"])
        and all(
            any((row[place] or {}).get(name) == text for place in ("attributes", "resource"))
            for name, text in record.attributes.items()
        )
    )


@st.composite
def deletes(draw: st.DrawFn, kind: Kind) -> DeleteRecord:
    start = draw(st.none() | times)
    end = draw(st.none() | times)
    if start is not None and end is not None and end <= start:
        end = None
    record = {
        "from_unix_ns": start,
        "to_unix_ns": end,
        "agent_id": draw(st.none() | st.sampled_from(("h-1", "h-2"))),
        "contains": draw(st.none() | words),
        "attributes": draw(maps),
    }
    if start is None and end is None and not (record["contains"] or record["attributes"]):
        record["agent_id"] = record["agent_id"] or "h-1"
    until = draw(accepted)
    return DeleteRecord(delete_id="0" * 26, kind=kind, accepted_until_unix_ns=until, **record)


rows = st.fixed_dictionaries(
    {
        "accepted_ns": accepted,
        "at_ns": times,
        "agent_id": st.sampled_from(("h-1", "h-2", "h-3")),
        "name": words,
        "body": st.none() | st.lists(words, max_size=3).map("".join),
        "attributes": st.none() | maps,
        "resource": st.none() | maps,
    }
)


def removed(records: list[DeleteRecord], found: list[dict[str, Any]]) -> list[bool]:
    columns = {
        name: pa.array(
            [row[name] for row in found],
            TEXT_MAP if name in ("attributes", "resource") else pa.string(),
        )
        for name in ("agent_id", "name", "body", "attributes", "resource")
    }
    matches = DeleteMatches(records)
    numbers = [
        np.array([row[name] for row in found], dtype=np.int64) for name in ("accepted_ns", "at_ns")
    ]
    flags: list[bool] = matches.remove(
        *numbers, {name: columns[name] for name in matches.columns}
    ).tolist()
    return flags


@pytest.mark.parametrize("kind", ["logs", "metrics", "spans"])
@given(data=st.data())
def test_a_row_is_removed_if_one_delete_removes_it(kind: Kind, data: st.DataObject) -> None:
    records = data.draw(st.lists(deletes(kind), min_size=1, max_size=12))
    found = data.draw(st.lists(rows, max_size=12))
    expected = [any(is_removed(record, row) for record in records) for row in found]
    assert removed(records, found) == expected


@pytest.mark.parametrize("kind", ["logs", "metrics", "spans"])
def test_many_deletes_remove_what_each_of_them_removes(kind: Kind) -> None:
    """More texts than one expression has, more keys than one column, and gaps between spans."""
    rng = random.Random(7)
    records = [
        DeleteRecord(
            delete_id="0" * 26,
            kind=kind,
            accepted_until_unix_ns=rng.randrange(1000),
            from_unix_ns=(start := rng.randrange(1000)),
            to_unix_ns=start + rng.randrange(1, 60),
            agent_id=rng.choice([None, "h-1", "h-2"]),
            contains=rng.choice([None, f"w{rng.randrange(400)}!"]),
            attributes=rng.choice([{}, {"k": f"v{rng.randrange(40)}"}]),
        )
        for _ in range(1500)
    ]
    found = [
        {
            "accepted_ns": rng.randrange(1000),
            "at_ns": rng.randrange(1100),
            "agent_id": rng.choice(["h-1", "h-2", "h-3"]),
            "name": f"w{rng.randrange(400)}!",
            "body": " ".join(f"w{rng.randrange(400)}!" for _ in range(3)),
            "attributes": rng.choice([None, {"k": f"v{rng.randrange(40)}"}]),
            "resource": {"k": f"v{rng.randrange(40)}"},
        }
        for _ in range(300)
    ]
    expected = [any(is_removed(record, row) for record in records) for row in found]
    assert 20 < sum(expected) < 280
    assert removed(records, found) == expected
