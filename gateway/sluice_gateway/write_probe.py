"""The write probe: an object that is created and deleted, to show that the store accepts writes."""

import hashlib
from typing import Final

import structlog

from sluice_protocol.errors import StoreDenied
from sluice_protocol.keys import DOCTOR, digest_of
from sluice_protocol.outcomes import Applied, Exists, ObjectInfo
from sluice_protocol.units import ObjectKey, ObjectVersion
from sluice_store.port import ObjectStore

PROBES: Final = f"{DOCTOR}ready/"

log = structlog.get_logger()


class WriteProbe:
    """Writes under one key per gateway name, so that killed processes leave at most one object.

    The exact object version is deleted, so a bucket with versioning does not grow either. Workers
    and gateways of one name share the key: one may delete the object of another, which is harmless.
    """

    def __init__(self, store: ObjectStore, name: str) -> None:
        """Use the key of the gateway `name`."""
        self._store = store
        self.key = ObjectKey(f"{PROBES}{digest_of(name.encode())}")

    async def write(self, size_bytes: int) -> bool:
        """Write and delete an object; return False if that shows nothing.

        Raises:
            StoreError: The store refused the write, or is unreachable.
        """
        # Not zeros: a file system may store those without space.
        body = hashlib.shake_256(self.key.encode()).digest(size_bytes)
        outcome = await self._store.create(self.key, body)
        if isinstance(outcome, Exists):  # a killed process left it, or another worker probes now
            if not await self._remove_left(body):
                return False
            outcome = await self._store.create(self.key, body)
        if isinstance(outcome, Applied) and outcome.incarnation is not None:
            await self._delete(outcome.incarnation)
        return not isinstance(outcome, Exists)

    async def _remove_left(self, body: bytes) -> bool:
        """Remove the object of an earlier probe; without versions, write over it instead."""
        info = await self._store.head(self.key)
        if not isinstance(info, ObjectInfo):
            return True
        if info.incarnation is None:
            await self._store.overwrite(self.key, body)
            return False
        return await self._delete(info.incarnation)

    async def _delete(self, incarnation: ObjectVersion) -> bool:
        try:
            await self._store.delete(self.key, incarnation)
        except StoreDenied as error:
            log.warning("write_probe_not_deleted", key=self.key, reason=str(error))
            return False
        return True
