"""The files of a lake that is in a bucket, as a dataset that the engine can read.

DuckDB's own S3 client is an extension that it would fetch at run time; pyarrow has one inside.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow.dataset as ds

from sluice_store.lake import TableLocation, open_filesystem

_SCHEME = "s3://"


def open_dataset(location: TableLocation, paths: Sequence[str]) -> Any:  # noqa: ANN401 - untyped
    """Gives Parquet files of a bucket as one dataset.

    Args:
        location: The table in the bucket.
        paths: `s3://bucket/key` of each file.
    """
    filesystem, _ = open_filesystem(location)
    places = [path.removeprefix(_SCHEME) for path in paths]
    return ds.dataset(places, format="parquet", filesystem=filesystem)
