"""Rollups computed in plain Python, to compare with those of the table and of the chunks."""

import math
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from support.spark_lake import Deployment

Figures = dict[tuple[Any, ...], tuple[int, float]]


def expected(
    deployment: Deployment,
    size_s: int,
    keep: Callable[[tuple[Any, ...]], bool] = lambda _: True,
) -> Figures:
    """Return counts and maxima by (window start, name, agent, attributes)."""
    figures: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    rows = (row for one in deployment.sent if one.manifest.kind == "metrics" for row in one.rows)
    for row in rows:
        agent, _, _, ts_ns, name, packed, _, attributes = row
        (value,) = struct.unpack("<d", packed)
        start = ts_ns // 10**9 // size_s * size_s
        if not math.isnan(value) and keep(row):
            figures[start, name, agent, tuple(sorted(attributes.items()))].append(value)
    return {key: (len(found), max(found)) for key, found in figures.items()}


def merged(rows: Iterable[dict[str, Any]], window: str) -> Figures:
    """Return the same values from rows of `rollups`."""
    figures: Figures = {}
    for row in rows:
        if row["window"] == window:
            start = int(row["window_start"].timestamp())
            key = (start, row["name"], row["agent_id"], tuple(sorted(row["attributes"])))
            count, most = figures.get(key, (0, row["max"]))
            figures[key] = (count + row["count"], max(most, row["max"]))
    return figures
