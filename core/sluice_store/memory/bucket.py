"""The reference model of one S3 bucket: plain calls, each atomic, answers as S3 gives them.

Source: Amazon S3 API Reference (PutObject, CopyObject, DeleteObject, HeadObject), S3 User Guide
(conditional writes, versioning, Object Lock).
"""

import random  # noqa: TID251 - the type of the seeded source that comes in
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Final

from sluice_protocol.clock import Clock
from sluice_protocol.keys import digest_of
from sluice_protocol.units import NS_PER_S, NULL_VERSION, ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_store.memory.ranges import cut_range
from sluice_store.memory.versions import History, Version
from sluice_store.port import ListedIncarnation, ListedObject, Versioning
from sluice_store.s3.answers import encode_checksum, parse_checksum

PAGE_KEYS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the bucket answers, before anything happens to it on the way."""

    status: int
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a key, from which events and inventories are made."""

    at_ns: UnixNs
    key: str
    created: bool
    version: Version


class MemoryBucket:
    """One bucket. Its clock may be moved, its versioning may be switched, its versions locked."""

    def __init__(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        name: str = "memory",
        versioning: Versioning = Versioning.ENABLED,
        page_keys: int = PAGE_KEYS,
    ) -> None:
        """Starts empty; `rng` makes version ids, so that a seed replays."""
        self.name = name
        self.versioning = versioning
        self.page_keys = page_keys
        self.clock_offset_ns = 0
        self.retention_ns = 0
        self.changes: list[Change] = []
        self._clock = clock
        self._rng = rng
        self._keys: dict[str, History] = {}

    def now_ns(self) -> UnixNs:
        """Gives the bucket's clock, cut to seconds as `Date` and `Last-Modified` are."""
        return UnixNs((self._clock.now_ns() + self.clock_offset_ns) // NS_PER_S * NS_PER_S)

    def put(self, key: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """PutObject with its checksums and preconditions."""
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

    def copy(self, source: str, key: str, headers: Mapping[str, str]) -> Reply:
        """CopyObject within the bucket, under preconditions on the destination."""
        found = self._keys.get(source, History()).current
        if found is None or found.body is None:
            return self._reply(404, "NoSuchKey")
        refused = self._refused(key, headers)
        if refused is not None:
            return refused
        version = self._add(key, found.body, known=found.sha256 is not None)
        return self._reply(200, headers={"ETag": version.etag, **self._id_of(version)})

    def get(self, key: str, headers: Mapping[str, str], incarnation: str | None = None) -> Reply:
        """GetObject, whole or a range, of the current version or an exact one."""
        history = self._keys.get(key, History())
        version = history.newest if incarnation is None else history.find(incarnation)
        if version is None:
            return self._reply(404, "NoSuchKey" if incarnation is None else "NoSuchVersion")
        if version.body is None:
            marker = {"x-amz-delete-marker": "true", **self._id_of(version)}
            if incarnation is None:
                return self._reply(404, "NoSuchKey", marker)
            return self._reply(405, "MethodNotAllowed", marker)
        return self._read(version, version.body, headers)

    def delete(self, key: str, headers: Mapping[str, str], incarnation: str | None = None) -> Reply:
        """DeleteObject: a marker over the key, or exactly one version for good."""
        history = self._keys.setdefault(key, History())
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

    def refusal(self, status: int, code: str) -> Reply:
        """Gives an answer that the bucket had no part in, under its clock."""
        return self._reply(status, code)

    def objects(self, prefix: str, after: str) -> Iterator[ListedObject]:
        """Gives current objects in key order."""
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
        """Gives versions and markers in key order, newest first within a key."""
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

    def _sorted(self, prefix: str, after: str) -> list[tuple[ObjectKey, History]]:
        raw = after.encode()
        keys = (key for key in self._keys if key.startswith(prefix) and key.encode() > raw)
        return [(ObjectKey(key), self._keys[key]) for key in sorted(keys, key=str.encode)]

    def _refused(self, key: str, headers: Mapping[str, str]) -> Reply | None:
        """Checks the preconditions of a write against the current version."""
        current = self._keys.get(key, History()).current
        if headers.get("If-None-Match") == "*" and current is not None:
            return self._reply(412, "PreconditionFailed")
        wanted = headers.get("If-Match")
        if wanted is not None and current is None:
            return self._reply(404, "NoSuchKey")
        if wanted is not None and current is not None and wanted != current.etag:
            return self._reply(412, "PreconditionFailed")
        return None

    def _add(self, key: str, body: bytes, *, known: bool) -> Version:
        version = self._version(body, known=known)
        self._keys.setdefault(key, History()).add(version, self.versioning)
        self._note(key, version, created=True)
        return version

    def _version(self, body: bytes | None, *, known: bool) -> Version:
        enabled = self.versioning is Versioning.ENABLED
        now = self.now_ns()
        return Version(
            incarnation=ObjectVersion(f"{self._rng.getrandbits(128):032x}")
            if enabled
            else NULL_VERSION,
            body=body,
            sha256=digest_of(body or b"") if known else None,
            last_modified_ns=now,
            retained_until_ns=now + self.retention_ns if self.retention_ns else 0,
        )

    def _delete_version(self, key: str, history: History, incarnation: str) -> Reply:
        version = history.find(incarnation)
        if version is not None:
            if version.retained_until_ns > self.now_ns():
                return self._reply(403, "AccessDenied")
            history.remove(incarnation)
            self._note(key, version, created=False)
        return self._reply(204, headers={"x-amz-version-id": incarnation})

    def _read(self, version: Version, body: bytes, headers: Mapping[str, str]) -> Reply:
        told = {"ETag": version.etag, **self._id_of(version)}
        told["Last-Modified"] = http_date(version.last_modified_ns)
        asked = headers.get("Range")
        whole = asked is None and headers.get("x-amz-checksum-mode") == "ENABLED"
        if version.sha256 is not None and whole:  # a part has no checksum of the whole
            told["x-amz-checksum-sha256"] = encode_checksum(version.sha256)
        if asked is None:
            told["Content-Length"] = str(len(body))
            return self._reply(200, headers=told, body=body)
        part = cut_range(asked, len(body))
        if part is None:
            return self._reply(416, "InvalidRange")
        told["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{len(body)}"
        told["Content-Length"] = str(len(part))
        return self._reply(206, headers=told, body=body[part.start : part.stop])

    def _note(self, key: str, version: Version, *, created: bool) -> None:
        self.changes.append(Change(at_ns=self.now_ns(), key=key, created=created, version=version))

    def _id_of(self, version: Version) -> dict[str, str]:
        off = self.versioning is Versioning.OFF
        return {} if off else {"x-amz-version-id": version.incarnation}

    def _reply(
        self,
        status: int,
        code: str = "",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Reply:
        dated = {"Date": http_date(self.now_ns()), **(headers or {})}
        return Reply(status=status, code=code, headers=dated, body=body)


def http_date(at_ns: int) -> str:
    """Gives an instant as HTTP writes it."""
    return format_datetime(datetime.fromtimestamp(at_ns // NS_PER_S, UTC), usegmt=True)
