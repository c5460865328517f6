"""The reference model of one S3 bucket: plain atomic calls with the responses of S3.

Source: Amazon S3 API Reference (PutObject, CopyObject, DeleteObject, HeadObject), S3 User Guide
(conditional writes, versioning, Object Lock).
"""

import hashlib
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Final

from sluice_protocol.clock import Clock
from sluice_protocol.keys import digest_of
from sluice_protocol.units import (
    NS_PER_S,
    NULL_VERSION,
    Digest,
    ETag,
    ObjectKey,
    ObjectVersion,
    UnixNs,
)
from sluice_store.port import ListedIncarnation, ListedObject, Versioning
from sluice_store.replication import ReplicationRules
from sluice_store.s3.exchange import encode_checksum, parse_checksum


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketVersion:
    """One stored version.

    Attributes:
        incarnation: Its id, `null` when it was written without versioning.
        body: The bytes; None for a delete marker.
        sha256: The verified checksum of the upload, or None.
        last_modified_ns: When it was written, whole seconds.
        retained_until_ns: Object Lock: no permanent delete before.
        replica: Whether replication wrote it.
    """

    incarnation: ObjectVersion
    body: bytes | None
    sha256: Digest | None
    last_modified_ns: UnixNs
    retained_until_ns: int = 0
    replica: bool = False

    @property
    def etag(self) -> ETag:
        """The tag: MD5 of the body, so equal bytes have equal tags, as on S3."""
        digest = hashlib.md5(self.body or b"", usedforsecurity=False).hexdigest()
        return ETag(f'"{digest}"')


@dataclass(slots=True)
class VersionHistory:
    """All versions of one key."""

    versions: list[BucketVersion] = field(default_factory=list)

    @property
    def current(self) -> BucketVersion | None:
        """What a read returns: the newest version, unless that is a delete marker."""
        newest = self.newest
        return None if newest is None or newest.body is None else newest

    @property
    def newest(self) -> BucketVersion | None:
        """The newest version or marker."""
        return self.versions[-1] if self.versions else None

    def find(self, incarnation: str) -> BucketVersion | None:
        """Return the version with this id, or None."""
        return next((one for one in self.versions if one.incarnation == incarnation), None)

    def add(self, version: BucketVersion, versioning: Versioning) -> None:
        """Add a version; without versioning it replaces the `null` version."""
        if versioning is not Versioning.ENABLED:
            self.versions = [one for one in self.versions if one.incarnation != NULL_VERSION]
        self.versions.append(version)

    def remove(self, incarnation: str) -> None:
        """Remove exactly one version; the one before becomes current."""
        self.versions = [one for one in self.versions if one.incarnation != incarnation]


PAGE_KEYS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Reply:
    """The response of the bucket, before a fault is applied to it."""

    status: int
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketChange:
    """One change of a key."""

    at_ns: UnixNs
    key: str
    created: bool
    version: BucketVersion


class MemoryBucket:
    """One bucket, whose clock, versioning and retention a test can change."""

    def __init__(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        name: str = "memory",
        versioning: Versioning = Versioning.ENABLED,
        page_keys: int = PAGE_KEYS,
    ) -> None:
        """Start empty; `rng` generates version ids, so that a seed replays."""
        self.name = name
        self.versioning = versioning
        self.page_keys = page_keys
        self.clock_offset_ns = 0
        self.retention_ns = 0
        self.ignores_locks = False
        self.changes: list[BucketChange] = []
        self.replication: dict[str, ReplicationRules | None] = {}
        self._clock = clock
        self._rng = rng
        self._keys: dict[str, VersionHistory] = {}

    def now_ns(self) -> UnixNs:
        """Return the bucket's clock, truncated to seconds as `Date` and `Last-Modified` are."""
        return UnixNs((self._clock.now_ns() + self.clock_offset_ns) // NS_PER_S * NS_PER_S)

    def put(self, key: str, body: bytes, headers: Mapping[str, str]) -> S3Reply:
        """Perform PutObject with its checksums and preconditions."""
        if headers.get("x-amz-content-sha256", digest_of(body)) != digest_of(body):
            return self._reply(400, "XAmzContentSHA256Mismatch")
        checksum = parse_checksum(headers.get("x-amz-checksum-sha256"))
        if checksum is not None and checksum != digest_of(body):
            return self._reply(400, "BadDigest")
        refused = self._refused(key, headers)
        if refused is not None:
            return refused
        version = self._add(key, body, known=checksum is not None)
        extra = {"x-amz-checksum-sha256": encode_checksum(checksum)} if checksum else {}
        return self._reply(200, headers={"ETag": version.etag, **self._id_of(version), **extra})

    def replicate(self, key: str, body: bytes) -> None:
        """Write an object as S3 Replication does: later, and without a condition."""
        version = replace(self._version(body, known=True), replica=True)
        self._keys.setdefault(key, VersionHistory()).add(version, self.versioning)
        self._note(key, version, created=True)

    def copy(self, source: str, key: str, headers: Mapping[str, str]) -> S3Reply:
        """Perform CopyObject within the bucket, with preconditions on the destination."""
        found = self._keys.get(source, VersionHistory()).current
        if found is None or found.body is None:
            return self._reply(404, "NoSuchKey")
        refused = self._refused(key, headers)
        if refused is not None:
            return refused
        version = self._add(key, found.body, known=found.sha256 is not None)
        return self._reply(200, headers={"ETag": version.etag, **self._id_of(version)})

    def get(self, key: str, headers: Mapping[str, str], incarnation: str | None = None) -> S3Reply:
        """Perform GetObject, whole or a range, of the current version or an exact one."""
        history = self._keys.get(key, VersionHistory())
        version = history.newest if incarnation is None else history.find(incarnation)
        if version is None:
            return self._reply(404, "NoSuchKey" if incarnation is None else "NoSuchVersion")
        if version.body is None:
            marker = {"x-amz-delete-marker": "true", **self._id_of(version)}
            if incarnation is None:
                return self._reply(404, "NoSuchKey", marker)
            return self._reply(405, "MethodNotAllowed", marker)
        return self._read(version, version.body, headers)

    def delete(
        self, key: str, headers: Mapping[str, str], incarnation: str | None = None
    ) -> S3Reply:
        """Perform DeleteObject: add a delete marker, or remove exactly one version permanently."""
        history = self._keys.setdefault(key, VersionHistory())
        if incarnation is not None:
            return self._delete_version(key, history, incarnation)
        wanted = headers.get("If-Match")
        if wanted is not None:
            if history.newest is None:
                return self._reply(404, "NoSuchKey")
            if history.current is None or wanted not in {"*", history.current.etag}:
                return self._reply(412, "PreconditionFailed")
        if self.versioning is Versioning.OFF:
            history.remove(NULL_VERSION)
            return self._reply(204)
        marker = self._version(None, known=False)
        history.add(marker, self.versioning)
        self._note(key, marker, created=False)
        return self._reply(204, headers={"x-amz-delete-marker": "true", **self._id_of(marker)})

    def refusal(self, status: int, code: str) -> S3Reply:
        """Return a response without an effect on the bucket, dated by its clock."""
        return self._reply(status, code)

    def objects(self, prefix: str, after: str) -> Iterator[ListedObject]:
        """Yield current objects in key order."""
        for key, history in self._sorted(prefix, after):
            version = history.current
            if version is not None:
                yield ListedObject(
                    key=key,
                    size_bytes=len(version.body or b""),
                    etag=version.etag,
                    last_modified_ns=version.last_modified_ns,
                )

    def incarnations(self, prefix: str, after: str) -> Iterator[ListedIncarnation]:
        """Yield versions and markers in key order, newest first within a key."""
        for key, history in self._sorted(prefix, after):
            for version in reversed(history.versions):
                yield ListedIncarnation(
                    key=key,
                    incarnation=version.incarnation,
                    current=version is history.newest,
                    marker=version.body is None,
                    size_bytes=len(version.body or b""),
                    etag=version.etag if version.body is not None else ETag(""),
                    last_modified_ns=version.last_modified_ns,
                )

    def _sorted(self, prefix: str, after: str) -> list[tuple[ObjectKey, VersionHistory]]:
        raw = after.encode()
        keys = (key for key in self._keys if key.startswith(prefix) and key.encode() > raw)
        return [(ObjectKey(key), self._keys[key]) for key in sorted(keys, key=str.encode)]

    def _refused(self, key: str, headers: Mapping[str, str]) -> S3Reply | None:
        """Return the refusal of a write whose preconditions the current version does not meet."""
        current = self._keys.get(key, VersionHistory()).current
        if headers.get("If-None-Match") == "*" and current is not None:
            return self._reply(412, "PreconditionFailed")
        wanted = headers.get("If-Match")
        if wanted is not None and current is None:
            return self._reply(404, "NoSuchKey")
        if wanted is not None and current is not None and wanted != current.etag:
            return self._reply(412, "PreconditionFailed")
        return None

    def _add(self, key: str, body: bytes, *, known: bool) -> BucketVersion:
        version = self._version(body, known=known)
        self._keys.setdefault(key, VersionHistory()).add(version, self.versioning)
        self._note(key, version, created=True)
        return version

    def _version(self, body: bytes | None, *, known: bool) -> BucketVersion:
        enabled = self.versioning is Versioning.ENABLED
        now = self.now_ns()
        return BucketVersion(
            incarnation=ObjectVersion(f"{self._rng.getrandbits(128):032x}")
            if enabled
            else NULL_VERSION,
            body=body,
            sha256=digest_of(body or b"") if known else None,
            last_modified_ns=now,
            retained_until_ns=now + self.retention_ns if self.retention_ns else 0,
        )

    def _delete_version(self, key: str, history: VersionHistory, incarnation: str) -> S3Reply:
        version = history.find(incarnation)
        if version is not None:
            if version.retained_until_ns > self.now_ns() and not self.ignores_locks:
                return self._reply(403, "AccessDenied")
            history.remove(incarnation)
            self._note(key, version, created=False)
        return self._reply(204, headers={"x-amz-version-id": incarnation})

    def _read(self, version: BucketVersion, body: bytes, headers: Mapping[str, str]) -> S3Reply:
        fields = {"ETag": version.etag, **self._id_of(version)}
        fields["Last-Modified"] = http_date(version.last_modified_ns)
        if version.replica:
            fields["x-amz-replication-status"] = "REPLICA"
        asked = headers.get("Range")
        whole = asked is None and headers.get("x-amz-checksum-mode") == "ENABLED"
        if version.sha256 is not None and whole:  # a range has no checksum of the whole object
            fields["x-amz-checksum-sha256"] = encode_checksum(version.sha256)
        if asked is None:
            fields["Content-Length"] = str(len(body))
            return self._reply(200, headers=fields, body=body)
        part = cut_range(asked, len(body))
        if part is None:
            return self._reply(416, "InvalidRange")
        fields["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{len(body)}"
        fields["Content-Length"] = str(len(part))
        return self._reply(206, headers=fields, body=body[part.start : part.stop])

    def _note(self, key: str, version: BucketVersion, *, created: bool) -> None:
        self.changes.append(
            BucketChange(at_ns=self.now_ns(), key=key, created=created, version=version)
        )

    def _id_of(self, version: BucketVersion) -> dict[str, str]:
        off = self.versioning is Versioning.OFF
        return {} if off else {"x-amz-version-id": version.incarnation}

    def _reply(
        self,
        status: int,
        code: str = "",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> S3Reply:
        dated = {"Date": http_date(self.now_ns()), **(headers or {})}
        return S3Reply(status=status, code=code, headers=dated, body=body)


def http_date(at_ns: int) -> str:
    """Return a time in the format of HTTP."""
    return format_datetime(datetime.fromtimestamp(at_ns // NS_PER_S, UTC), usegmt=True)


_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")


def cut_range(text: str, size_bytes: int) -> range | None:
    """Return the positions of a `Range` header (RFC 9110 section 14), or None past the end."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return range(size_bytes)
    first = int(found[1])
    end = min(int(found[2]) + 1, size_bytes) if found[2] else size_bytes
    return range(first, end) if first < end else None
