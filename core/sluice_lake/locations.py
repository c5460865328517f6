"""Location and connection settings of a lake table, for libraries with their own store client.

Delta tables are not read or written through the object-store port: delta-rs, Spark, DuckDB and
pyarrow each use their own client. What they use to connect is what the store's own client uses:
endpoint, region, addressing, certificate authorities, and credentials from the same source.
"""

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import LAKE
from sluice_store.url import local_folder, require_store

if TYPE_CHECKING:
    from sluice_store.s3.settings import S3Settings

_CERTIFICATES: Final = "SSL_CERT_FILE"
_PREFIX: Final = re.compile(r"(?:[A-Za-z0-9!$&'()+,.:;=@_-]+/)*", re.ASCII)
"""Prefixes that all libraries read alike. delta-rs encodes other characters, such as a space or ~,
in the names of objects and not in listings, so it never finds what it has written.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLocation:
    """The location of one table.

    `uri` is an absolute path, or `s3://bucket/prefix/lake/v1/<table>`. `bucket` is None for a
    directory.
    """

    uri: str
    bucket: "S3Settings | None" = None

    @property
    def is_local(self) -> bool:
        """Whether it is a directory of this machine."""
        return self.bucket is None

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The settings for delta-rs with valid credentials; `trusting` sets the certificates."""
        bucket = self.bucket
        if bucket is None:
            return {}
        from sluice_store.s3.credentials import lake_credentials  # noqa: PLC0415 - for a bucket

        options = {**lake_credentials(bucket.profile), "AWS_REGION": _region(bucket)}
        virtual = _is_virtual(bucket)
        endpoint = _endpoint(bucket)
        if virtual and bucket.endpoint is not None:
            scheme, _, host = endpoint.partition("://")
            endpoint = f"{scheme}://{bucket.bucket}.{host}"
            options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "true"
        options["AWS_ENDPOINT_URL"] = endpoint
        options["AWS_ALLOW_HTTP"] = str(endpoint.startswith("http://")).lower()
        return options

    def uri_of(self, path: str) -> str:
        """Return the path or URL of a data file that the table's log names `path`."""
        return path if "://" in path or path.startswith("/") else f"{self.uri}/{path}"


def require_lake_store(store_url: str) -> None:
    """Check that the directory of a store exists: a commit of the libraries would create it."""
    root = local_folder(store_url)
    if root is not None and not root.is_dir():
        require_store(root)


def lake_location(store_url: str, table: str) -> TableLocation:
    """Return the location of a lake table in a store: the place that the store's own client uses.

    Raises:
        BadUsage: The URL is neither `file://…` nor `s3://bucket/prefix?endpoint=…&region=…`, or the
            libraries would not find tables below its prefix.
    """
    root = local_folder(store_url)
    if root is not None:
        return TableLocation(uri=str(root / f"{LAKE}{table}"))
    from sluice_store.s3.credentials import resolve_settings  # noqa: PLC0415 - for a bucket
    from sluice_store.s3.settings import parse_s3_url  # noqa: PLC0415 - for a bucket

    try:
        store = parse_s3_url(store_url)
    except BadUsage as error:
        raise BadUsage(f"cannot locate the lake: {error}") from error
    if _PREFIX.fullmatch(store.prefix) is None:
        raise BadUsage(
            "cannot locate the lake: its libraries do not find tables below such a prefix; use a"
            f" store whose prefix has ASCII letters, digits, - and _ only, prefix=`{store.prefix}`"
        )
    return TableLocation(
        uri=f"s3://{store.bucket}/{store.prefix}{LAKE}{table}", bucket=resolve_settings(store)
    )


def _is_virtual(bucket: "S3Settings") -> bool:
    from sluice_store.s3.settings import Addressing, choose_addressing  # noqa: PLC0415 - as above

    return choose_addressing(bucket) is Addressing.VIRTUAL


def _region(bucket: "S3Settings") -> str:
    from sluice_store.s3.credentials import REGION_DEFAULT  # noqa: PLC0415 - for a bucket

    return bucket.region or REGION_DEFAULT


def _endpoint(bucket: "S3Settings") -> str:
    """Return the URL of the server: each library has another rule for AWS, and none for China."""
    suffix = ".cn" if _region(bucket).startswith("cn-") else ""
    return bucket.endpoint or f"https://s3.{_region(bucket)}.amazonaws.com{suffix}"


_TRUST: Final = threading.Lock()


@contextmanager
def trusting(location: TableLocation) -> Iterator[None]:
    """Let delta-rs trust the store's certificate authorities while it opens a table.

    It reads them from the file that SSL_CERT_FILE names, each time it opens one.
    """
    bucket = location.bucket
    if bucket is None or bucket.ca_bundle is None or _endpoint(bucket).startswith("http://"):
        yield
        return
    with _TRUST:
        before = os.environ.get(_CERTIFICATES)
        os.environ[_CERTIFICATES] = bucket.ca_bundle
        try:
            yield
        finally:
            if before is None:
                del os.environ[_CERTIFICATES]
            else:
                os.environ[_CERTIFICATES] = before


def open_filesystem(location: TableLocation) -> tuple[Any, str]:
    """Return pyarrow's file system for a table, and the table's path in it."""
    from pyarrow import fs  # noqa: PLC0415 - most commands need none

    if location.is_local:
        return fs.LocalFileSystem(), location.uri
    bucket = location.bucket
    assert bucket is not None  # noqa: S101 - a table that is not local is in a bucket
    from sluice_store.s3.credentials import credential_source  # noqa: PLC0415 - for a bucket

    keys = credential_source(bucket.profile).read_current()
    scheme, _, host = _endpoint(bucket).partition("://")
    # With delayed open a small file is one PUT instead of the three requests of an upload in parts.
    filesystem = fs.S3FileSystem(
        access_key=keys.access_key,
        secret_key=keys.secret_key,
        session_token=keys.token,
        region=_region(bucket),
        scheme=scheme,
        endpoint_override=host,
        force_virtual_addressing=_is_virtual(bucket),
        tls_ca_file_path=bucket.ca_bundle,
        allow_bucket_creation=False,
        allow_delayed_open=True,
    )
    return filesystem, location.uri.removeprefix("s3://")
