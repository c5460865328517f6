"""The files of a lake table in a directory, and how to make them older for vacuum."""

import json
import os
from pathlib import Path

from support.spark_lake import Deployment

from sluice_lake.tables import Table


def folder(place: Deployment, table: Table) -> Path:
    return place.root / "lake" / "v1" / table.name


def files(place: Deployment, table: Table) -> set[Path]:
    return {Path(uri) for uri in place.table(table.name).file_uris()}


def age(place: Deployment, table: Table, paths: set[Path], hours: float) -> None:
    """Make files older, and the removals of them in the log."""
    for path in paths:
        older_s = path.stat().st_mtime - hours * 3600
        os.utime(path, (older_s, older_s))
    names = {path.name for path in paths}
    for commit in (folder(place, table) / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if "remove" in action and Path(action["remove"]["path"]).name in names:
                action["remove"]["deletionTimestamp"] -= int(hours * 3_600_000)
        commit.write_text("\n".join(json.dumps(action) for action in actions))
