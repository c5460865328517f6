"""New files without a final name: written, dated and synced in the hidden folder of a store."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from sluice_protocol.clock import IdSource
from sluice_protocol.errors import ChecksumRefused
from sluice_protocol.keys import digest_of
from sluice_protocol.units import Digest, ObjectKey, UnixNs
from sluice_store.local.durability import StoreTimes
from sluice_store.local.visibility import NEW_FILE, write_verified

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@dataclass(slots=True)
class HiddenFile:
    """A file without a final name, open until its timestamp is checked.

    Attributes:
        path: Its hidden name; empty after `remove`.
        fd: Its descriptor; -1 after `close`.
    """

    path: str
    fd: int

    def close(self) -> None:
        """Close the descriptor, which also ends a lock of the file."""
        fd, self.fd = self.fd, -1
        if fd != -1:
            os.close(fd)

    def remove(self) -> None:
        """Close the file and remove its hidden name; a final name remains."""
        self.close()
        path, self.path = self.path, ""
        if path:
            with suppress(FileNotFoundError):  # a rename has taken the name
                os.unlink(path)  # noqa: PTH108 - for each new object


class HiddenFiles:
    """Writes the files of new states. Every method may be called from any thread."""

    def __init__(self, folder: str, stamps: StoreTimes, ids: IdSource) -> None:
        """Use a folder in the file system of the store."""
        self._prefix = f"{folder}/{ids.ulid()}-"
        self._numbers = itertools.count()
        self._stamps = stamps

    @contextmanager
    def written(self, key: ObjectKey, body: bytes, sha256: Digest | None) -> Iterator[HiddenFile]:
        """Write and sync a hidden file, and remove its hidden name at the end.

        Raises:
            ChecksumRefused: As `prepare` raises it.
        """
        made = self.prepare(key, body, sha256)
        try:
            os.fsync(made.fd)
            yield made
        finally:
            made.remove()

    def prepare(
        self, key: ObjectKey, body: bytes, sha256: Digest | None, stamp: UnixNs | None = None
    ) -> HiddenFile:
        """Write and date a hidden file, which may not be durable; the caller removes it.

        Args:
            key: The key of the object, for errors.
            body: The object.
            sha256: Its digest, if the caller knows it.
            stamp: Its timestamp; the next one when None.

        Raises:
            ChecksumRefused: The body does not match the sha256, which is checked as a remote store
                would check it.
        """
        digest = digest_of(body)
        if sha256 is not None and digest != sha256:
            raise ChecksumRefused(
                "create", key, ("the body does not match its sha256: send it again")
            )
        path = f"{self._prefix}{next(self._numbers)}"
        made = HiddenFile(path, os.open(path, _NEW, NEW_FILE))
        try:
            _write_all(made.fd, body)
            dated = self._stamps.next_ns() if stamp is None else stamp
            write_verified(made.fd, dated, digest)
            os.utime(made.fd, ns=(dated, dated))
        except BaseException:
            made.remove()
            raise
        return made


def _write_all(fd: int, body: bytes) -> None:
    done = os.write(fd, body)
    while done < len(body):
        done += os.write(fd, memoryview(body)[done:])
