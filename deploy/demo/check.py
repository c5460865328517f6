"""Compare the shipped lines with the rows of the lake, byte for byte."""

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
class LakeRows:
    """Rows of the lake by source file, in the order of their sequence numbers."""

    lines: dict[str, list[bytes]]
    rows: int


def read_logs(table: Path, agent_id: str) -> LakeRows:
    """Read every log row of an agent, with the original bytes of the line."""
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
    return LakeRows(lines=lines, rows=len(own))


def compare(inputs: list[Input], lake: LakeRows) -> int:
    """Check that each line is in the lake once, unchanged and in order; return the number.

    Raises:
        DemoFailed: The message names the first line that is lost, duplicated, changed or out of
            order.
    """
    total = 0
    for one in inputs:
        expected, found = one.lines(), lake.lines.get(str(one.fed), [])
        for number, (want, got) in enumerate(zip(expected, found, strict=False), start=1):
            if want != got:
                raise DemoFailed(f"{one.source} line {number} changed: {want!r} became {got!r}")
        if len(expected) != len(found):
            raise DemoFailed(f"{one.source}: {len(expected)} lines sent, {len(found)} in the table")
        total += len(expected)
    return total


def count_rows(table: Path) -> int:
    """Return the number of rows of a table."""
    return int(DeltaTable(table).to_pyarrow_table(columns=["seq"]).num_rows)
