"""Location and connection settings of a lake table, for libraries with their own store client.

Delta tables are not read or written through the object-store port: delta-rs, Spark, DuckDB and
pyarrow each use their own client.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import LAKE
from sluice_store.mode import require_store
from sluice_store.s3.settings import parse_s3_url
from sluice_store.url import parse_local_path

_PREFIX: Final = re.compile(r"(?:[A-Za-z0-9!$&'()+,.:;=@_-]+/)*", re.ASCII)
"""Prefixes that all libraries read alike. delta-rs encodes other characters, such as a space or ~,
in the names of objects and not in listings, so it never finds what it has written.
"""


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


def require_lake_store(store_url: str) -> None:
    """Check that the directory of a store exists: a commit of the libraries would create it.

    Raises:
        NoStore: It does not, for example because it is moved away at this moment.
    """
    if store_url.startswith("file://"):
        root = parse_local_path(store_url)
        if not root.is_dir():
            require_store(root)


def lake_location(store_url: str, table: str) -> TableLocation:
    """Return the location of a lake table in a store: the place that the store's own client uses.

    Raises:
        BadUsage: The URL is neither `file://…` nor `s3://bucket/prefix?endpoint=…&region=…`, or the
            libraries would not find tables below its prefix.
    """
    if store_url.startswith("file://"):
        return TableLocation(uri=str(parse_local_path(store_url) / f"{LAKE}{table}"))
    try:
        store = parse_s3_url(store_url)
    except BadUsage as error:
        raise BadUsage(f"cannot locate the lake: {error}") from error
    if store.addressing or store.profile or store.ca_bundle:
        raise BadUsage(
            "cannot locate the lake: its libraries know no other options than endpoint and region;"
            f" remove the others, url=`{store_url}`"
        )
    if _PREFIX.fullmatch(store.prefix) is None:
        raise BadUsage(
            "cannot locate the lake: its libraries do not find tables below such a prefix; use a"
            f" store whose prefix has ASCII letters, digits, - and _ only, prefix=`{store.prefix}`"
        )
    return TableLocation(
        uri=f"s3://{store.bucket}/{store.prefix}{LAKE}{table}",
        endpoint=store.endpoint,
        region=store.region,
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
