"""Where a lake table of a store lies, for libraries that open tables by themselves.

Delta tables are not read or written through the port: delta-rs, Spark, DuckDB and pyarrow have
their own object-store clients. This gives each of them the place and the connection settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from sluice_protocol.errors import BadUsage
from sluice_protocol.lake import table_prefix
from sluice_store.url import parse_local_path

_PARAMETERS: Final = {"endpoint", "region"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLocation:
    """Where one table lies.

    Attributes:
        uri: An absolute path, or `s3://bucket/prefix/lake/v1/<table>`.
        endpoint: The S3 endpoint when it is not AWS's own.
        region: The S3 region when the URL names one.
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
        """The settings that delta-rs takes; credentials come from the AWS environment."""
        options = {}
        if self.endpoint is not None:
            options["AWS_ENDPOINT_URL"] = self.endpoint
            options["AWS_ALLOW_HTTP"] = str(self.endpoint.startswith("http://")).lower()
        if self.region is not None:
            options["AWS_REGION"] = self.region
        return options


def lake_location(store_url: str, table: str) -> TableLocation:
    """Gives the place of a lake table in the store that a URL names.

    Raises:
        BadUsage: The URL is neither `file://…` nor `s3://bucket/prefix?endpoint=…&region=…`.
    """
    if store_url.startswith("file://"):
        return TableLocation(uri=str(parse_local_path(store_url) / table_prefix(table)))
    parts = urlsplit(store_url)
    query = parse_qs(parts.query)
    if parts.scheme != "s3" or not parts.netloc or set(query) - _PARAMETERS:
        raise BadUsage(
            "a lake is in file:///path or s3://bucket/prefix?endpoint=…&region=…,"
            f" url=`{store_url}`"
        )
    prefix = parts.path.strip("/")
    place = "/".join(part for part in (parts.netloc, prefix, table_prefix(table)) if part)
    return TableLocation(
        uri=f"s3://{place}",
        endpoint=query.get("endpoint", [None])[0],
        region=query.get("region", [None])[0],
    )


def open_filesystem(location: TableLocation) -> tuple[Any, str]:
    """Gives pyarrow's file system of a table's location, and the location's path in it."""
    from pyarrow import fs  # noqa: PLC0415 - only the lake's readers and writers install pyarrow

    if location.is_local:
        return fs.LocalFileSystem(), location.uri
    # Delayed open makes a small file one PUT instead of three requests of a multipart upload.
    options: dict[str, Any] = {"allow_bucket_creation": False, "allow_delayed_open": True}
    if location.endpoint is not None:
        scheme, _, host = location.endpoint.partition("://")
        options |= {"scheme": scheme, "endpoint_override": host}
    if location.region is not None:
        options["region"] = location.region
    return fs.S3FileSystem(**options), location.uri.removeprefix("s3://")
