"""Location and connection settings of a lake table, for libraries with their own store client.

Delta tables are not read or written through the object-store port: delta-rs, Spark, DuckDB and
pyarrow each use their own client.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import LAKE
from sluice_store.url import parse_local_path

_PARAMETERS: Final = {"endpoint", "region"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLocation:
    """The location of one table.

    Attributes:
        uri: An absolute path, or `s3://bucket/prefix/lake/v1/<table>`.
        endpoint: The S3 endpoint, or None for AWS.
        region: The S3 region, or None when the store URL contains none.
    """

    uri: str
    endpoint: str | None = None
    region: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether it is a directory of this machine."""
        return not self.uri.startswith("s3://")

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The settings for delta-rs, which reads credentials from the AWS environment."""
        options = {}
        if self.endpoint is not None:
            options["AWS_ENDPOINT_URL"] = self.endpoint
            options["AWS_ALLOW_HTTP"] = str(self.endpoint.startswith("http://")).lower()
        elif self.region is not None and self.region.startswith("cn-"):
            # delta-rs has one form of endpoint for each region: https://s3.REGION.amazonaws.com
            options["AWS_ENDPOINT_URL"] = f"https://s3.{self.region}.amazonaws.com.cn"
        if self.region is not None:
            options["AWS_REGION"] = self.region
        return options

    def uri_of(self, path: str) -> str:
        """Return the path or URL of a data file that the table's log names `path`."""
        return path if "://" in path or path.startswith("/") else f"{self.uri}/{path}"


def lake_location(store_url: str, table: str) -> TableLocation:
    """Return the location of a lake table in a store.

    Raises:
        BadUsage: The URL is neither `file://…` nor `s3://bucket/prefix?endpoint=…&region=…`.
    """
    if store_url.startswith("file://"):
        return TableLocation(uri=str(parse_local_path(store_url) / f"{LAKE}{table}"))
    parts = urlsplit(store_url)
    query = parse_qs(parts.query)
    if parts.scheme != "s3" or not parts.netloc or set(query) - _PARAMETERS:
        raise BadUsage(
            "cannot locate the lake: the store URL must be file:///path or"
            f" s3://bucket/prefix?endpoint=…&region=…, url=`{store_url}`"
        )
    prefix = parts.path.strip("/")
    place = "/".join(part for part in (parts.netloc, prefix, f"{LAKE}{table}") if part)
    return TableLocation(
        uri=f"s3://{place}",
        endpoint=query.get("endpoint", [None])[0],
        region=query.get("region", [None])[0],
    )


def open_filesystem(location: TableLocation) -> tuple[Any, str]:
    """Return pyarrow's file system for a table, and the table's path in it."""
    from pyarrow import fs  # noqa: PLC0415 - takes 0.3 s to import; a local query needs none

    if location.is_local:
        return fs.LocalFileSystem(), location.uri
    # With delayed open a small file is one PUT instead of the three requests of an upload in parts.
    options: dict[str, Any] = {"allow_bucket_creation": False, "allow_delayed_open": True}
    if location.endpoint is not None:
        scheme, _, host = location.endpoint.partition("://")
        options |= {"scheme": scheme, "endpoint_override": host}
    if location.region is not None:
        options["region"] = location.region
    return fs.S3FileSystem(**options), location.uri.removeprefix("s3://")
