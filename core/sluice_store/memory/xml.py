"""The XML of the S3 answers that the fake gives over HTTP."""

from collections.abc import Sequence
from datetime import UTC, datetime
from xml.sax.saxutils import escape

from sluice_protocol.units import NS_PER_S
from sluice_store.port import ListedIncarnation, ListedObject, Versioning

_HEAD = '<?xml version="1.0" encoding="UTF-8"?>'
_SPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


def error_xml(code: str) -> str:
    """Gives an error document."""
    return f"{_HEAD}<Error><Code>{escape(code)}</Code><Message>{escape(code)}</Message></Error>"


def versioning_xml(state: Versioning) -> str:
    """Gives a bucket's versioning; off is an empty document."""
    status = "" if state is Versioning.OFF else f"<Status>{state}</Status>"
    return f"{_HEAD}<VersioningConfiguration {_SPACE}>{status}</VersioningConfiguration>"


def objects_xml(objects: Sequence[ListedObject], token: str | None) -> str:
    """Gives one page of ListObjectsV2; `token` continues it."""
    rows = "".join(
        f"<Contents><Key>{escape(one.key)}</Key><Size>{one.size_bytes}</Size>"
        f"<ETag>{escape(one.etag)}</ETag>"
        f"<LastModified>{_moment(one.last_modified_ns)}</LastModified></Contents>"
        for one in objects
    )
    more = _truncated(token)
    if token is not None:
        more += f"<NextContinuationToken>{escape(token)}</NextContinuationToken>"
    return f"{_HEAD}<ListBucketResult {_SPACE}>{more}{rows}</ListBucketResult>"


def versions_xml(rows: Sequence[ListedIncarnation], next_key: str | None) -> str:
    """Gives one page of ListObjectVersions; a page ends between two keys."""
    more = _truncated(next_key)
    if next_key is not None:
        more += f"<NextKeyMarker>{escape(next_key)}</NextKeyMarker>"
    body = "".join(_version_xml(row) for row in rows)
    return f"{_HEAD}<ListVersionsResult {_SPACE}>{more}{body}</ListVersionsResult>"


def _version_xml(row: ListedIncarnation) -> str:
    name = "DeleteMarker" if row.marker else "Version"
    size = "" if row.marker else f"<Size>{row.size_bytes}</Size><ETag>{escape(row.etag)}</ETag>"
    return (
        f"<{name}><Key>{escape(row.key)}</Key><VersionId>{row.incarnation}</VersionId>"
        f"<IsLatest>{'true' if row.current else 'false'}</IsLatest>{size}"
        f"<LastModified>{_moment(row.last_modified_ns)}</LastModified></{name}>"
    )


def _truncated(token: str | None) -> str:
    return f"<IsTruncated>{'false' if token is None else 'true'}</IsTruncated>"


def _moment(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // NS_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
