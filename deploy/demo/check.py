"""Compares what was shipped with what stands in the lake, byte for byte."""

import base64
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

from deploy.demo.inputs import Input
from deploy.demo.processes import DemoFailed

PATH_ATTRIBUTE = "log.file.path"
RAW_ATTRIBUTE = "sluice.raw"


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """Rows of the lake, by the file that they came from, in the order of their sequence."""

    lines: dict[str, list[bytes]]
    rows: int


def read_logs(table: Path, agent_id: str) -> Landed:
    """Reads every log row of an agent, with the bytes that the file held."""
    columns = ["agent_id", "boot_id", "seq", "body", "attributes"]
    rows = DeltaTable(table).to_pyarrow_table(columns=columns).to_pylist()
    own = [row for row in rows if row["agent_id"] == agent_id]
    repeated = [
        key for key, count in Counter((r["boot_id"], r["seq"]) for r in own).items() if count > 1
    ]
    if repeated:
        raise DemoFailed(f"{len(repeated)} records are in the table twice, first: {repeated[0]}")
    lines: dict[str, list[bytes]] = {}
    for row in sorted(own, key=lambda row: (row["boot_id"], row["seq"])):
        attributes = dict(row["attributes"] or ())
        raw = attributes.get(RAW_ATTRIBUTE)
        body = base64.b64decode(raw) if raw is not None else row["body"].encode()
        lines.setdefault(attributes[PATH_ATTRIBUTE], []).append(body)
    return Landed(lines=lines, rows=len(own))


def compare(inputs: list[Input], landed: Landed) -> int:
    """Checks that every file's lines are there, in order, unchanged, once; gives their number.

    Raises:
        DemoFailed: A line is lost, doubled, changed or out of order; the message names the first.
    """
    total = 0
    for one in inputs:
        expected, found = one.lines(), landed.lines.get(str(one.fed), [])
        for number, (want, got) in enumerate(zip(expected, found, strict=False), start=1):
            if want != got:
                raise DemoFailed(f"{one.source} line {number} changed: {want!r} became {got!r}")
        if len(expected) != len(found):
            raise DemoFailed(f"{one.source}: {len(expected)} lines sent, {len(found)} in the table")
        total += len(expected)
    return total


def count_rows(table: Path) -> int:
    """Gives the number of rows of a table."""
    return int(DeltaTable(table).to_pyarrow_table(columns=["seq"]).num_rows)
