"""Which data files of `metrics` may contain samples that no rollup contains yet.

Retention removes samples and keeps rollups, so it waits for these files. Otherwise samples that
arrive late, or that are older than a rollup job that was stopped, would be lost without a trace.
"""

import asyncio
from collections.abc import Sequence

from sluice_lake.data_files import DataFile
from sluice_lake.delta import find_table, list_paths_at
from sluice_lake.lane_versions import read_lane_versions
from sluice_lake.locations import lake_location
from sluice_lake.log_errors import read_transaction
from sluice_lake.source_ranges import ROLLUP_APP, SourceRange, read_source_range
from sluice_lake.tables import METRICS, ROLLUPS
from sluice_spark.rollup_files import select_point_files
from sluice_store import open_store, read_authority


def find_unrolled_files(store_url: str, files: Sequence[DataFile]) -> list[DataFile]:
    """Return the files that may contain samples after the last source range of `rollups`.

    Args:
        store_url: The store.
        files: Data files of `metrics`, listed before this call.

    Returns:
        Nothing if the deployment has no rollups, and every file if the source range is missing.

    Raises:
        TableRefused: A table has another schema or a refused feature.
        StoreError: The store is unreachable.
    """
    rollups, metrics = find_table(store_url, ROLLUPS), find_table(store_url, METRICS)
    done = (read_transaction(rollups, ROLLUP_APP) or 0) if rollups is not None else 0
    if not done or metrics is None:
        return []
    source, lanes = asyncio.run(_read(store_url, done))
    if source is None:
        return list(files)
    rolled = {lane: source.ends(lane)[1] for lane in range(lanes)}
    reached = read_lane_versions(lake_location(store_url, METRICS.name), metrics, range(lanes))
    known = None
    if source.metrics_version is not None:
        known = list_paths_at(store_url, METRICS, source.metrics_version, rolled)
    later = SourceRange(
        number=done + 1,
        after={str(lane): end for lane, end in rolled.items()},
        through={str(lane): end for lane, end in reached.items()},
    )
    return select_point_files(files, later, lanes=lanes, known=known)


async def _read(store_url: str, number: int) -> tuple[SourceRange | None, int]:
    async with open_store(store_url) as store:
        source = await read_source_range(store, number)
        return source, (await read_authority(store)).lanes
