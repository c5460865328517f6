"""The files of a lake that is in a bucket, as a dataset that the engine can read.

DuckDB's own S3 client is an extension that it would fetch at run time; pyarrow has one inside.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow.dataset as ds
import pyarrow.fs as pafs

from sluice_store.lake import TableLocation

_SCHEME = "s3://"


def open_dataset(location: TableLocation, paths: Sequence[str]) -> Any:  # noqa: ANN401 - untyped
    """Gives Parquet files of a bucket as one dataset.

    Args:
        location: The table in the bucket.
        paths: `s3://bucket/key` of each file.
    """
    options: dict[str, Any] = {"allow_bucket_creation": False}
    if location.endpoint is not None:
        scheme, _, host = location.endpoint.partition("://")
        options |= {"scheme": scheme, "endpoint_override": host}
    if location.region is not None:
        options["region"] = location.region
    filesystem = pafs.S3FileSystem(**options)
    places = [path.removeprefix(_SCHEME) for path in paths]
    return ds.dataset(places, format="parquet", filesystem=filesystem)
