"""What tests of views and streams share: a lake with overlapping files, and its records."""

from pathlib import Path
from typing import Any

from support.query_lake import DAY0_NS, deployment, log_batch
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_protocol.units import NS_PER_S

FILES = 3
LINES = 40


def overlapping_ingestions(folder: Path) -> Deployment:
    """Return three ingestions, each with a file per agent, and a pending batch; times overlap."""
    made = deployment(folder)
    for part in range(FILES + 1):
        batches = [
            log_batch(
                [
                    f"line {part} {n} of {agent}{' error' if n % 7 == 0 else ''}"
                    for n in range(LINES)
                ],
                agent=agent,
                start=part * LINES,
                from_ns=DAY0_NS + part * 30 * NS_PER_S,
                attributes={"path": f"/var/log/{part % 2}", "a=b": "x"},
            )
            for agent in ("host-1", "host-2")
        ]
        made.deliver(batches)
        if part < FILES:
            ingest_locally(made.url)
    return made


def records(lines: list[Any]) -> list[Any]:
    """Return the lines of an answer that are records."""
    return [line for line in lines if "agent_id" in line]
