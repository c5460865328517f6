"""How data files are named, and how a local one is made durable."""

import os
from pathlib import Path
from urllib.parse import quote


def partition_folder(column: str, value: str) -> str:
    """Gives the folder of a partition, `column=value`, as Delta and Hive write it."""
    return f"{column}={quote(value, safe='-_.')}"


def sync_file(path: str) -> None:
    """Makes a local file and its folder durable, so that a committed file survives a crash."""
    for place in (path, str(Path(path).parent)):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
