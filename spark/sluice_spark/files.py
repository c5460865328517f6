"""Where data files go: pyarrow file systems over a table's location, and names never used twice."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.fs as pafs

from sluice_store.lake import TableLocation


def open_filesystem(location: TableLocation) -> tuple[Any, str]:
    """Gives the file system of a table's location, and the location's path in it."""
    if location.is_local:
        return pafs.LocalFileSystem(), location.uri
    options: dict[str, Any] = {"allow_bucket_creation": False}
    if location.endpoint is not None:
        scheme, _, host = location.endpoint.partition("://")
        options |= {"scheme": scheme, "endpoint_override": host}
    if location.region is not None:
        options["region"] = location.region
    return pafs.S3FileSystem(**options), location.uri.removeprefix("s3://")


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
