"""The versions of one key, as S3 keeps them: newest last, delete markers among them."""

import hashlib
from dataclasses import dataclass, field

from sluice_protocol.units import NULL_VERSION, Digest, ETag, ObjectVersion, UnixNs
from sluice_store.port import Versioning


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One stored version.

    Attributes:
        incarnation: Its id, `null` when it was written without versioning.
        body: The bytes; None for a delete marker.
        sha256: The checksum that came with it and was verified, or None.
        last_modified_ns: When it was written, whole seconds.
        retained_until_ns: Object Lock: no permanent delete before.
    """

    incarnation: ObjectVersion
    body: bytes | None
    sha256: Digest | None
    last_modified_ns: UnixNs
    retained_until_ns: int = 0

    @property
    def etag(self) -> ETag:
        """The tag: MD5 of the body, so equal bytes have equal tags, as on S3."""
        digest = hashlib.md5(self.body or b"", usedforsecurity=False).hexdigest()
        return ETag(f'"{digest}"')


@dataclass(slots=True)
class History:
    """All versions of one key."""

    versions: list[Version] = field(default_factory=list)

    @property
    def current(self) -> Version | None:
        """What a read sees: the newest version, unless that is a delete marker."""
        newest = self.newest
        return None if newest is None or newest.body is None else newest

    @property
    def newest(self) -> Version | None:
        """The newest version or marker."""
        return self.versions[-1] if self.versions else None

    def find(self, incarnation: str) -> Version | None:
        """Gives the version with this id."""
        return next((one for one in self.versions if one.incarnation == incarnation), None)

    def add(self, version: Version, versioning: Versioning) -> None:
        """Adds a version; without versioning the `null` one gives way to it."""
        if versioning is not Versioning.ENABLED:
            self.versions = [one for one in self.versions if one.incarnation != NULL_VERSION]
        self.versions.append(version)

    def remove(self, incarnation: str) -> None:
        """Removes exactly one version; the one before becomes current."""
        self.versions = [one for one in self.versions if one.incarnation != incarnation]
