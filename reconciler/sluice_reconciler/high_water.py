"""Reads the high-water marks that gateways keep. Source: ADR 0046."""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import HIGH_WATER, high_water_key, high_water_prefix
from sluice_protocol.manifests import HighWaterMark, decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ETag, ObjectKey, UnixNs
from sluice_store.port import ListedObject, ObjectStore

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an agent said of one life.

    Attributes:
        seq_end: The highest number made.
        told_at_ns: When a gateway wrote it, by the store's clock.
    """

    seq_end: int
    told_at_ns: UnixNs


Marks = Mapping[tuple[str, str], Told]
"""By (agent, boot)."""


class HighWaterReader:
    """Lists the marks and reads those that changed since it last did."""

    def __init__(self, store: ObjectStore) -> None:
        """Binds the reader; it holds one small entry per mark."""
        self._store = store
        self._known: dict[ObjectKey, tuple[ETag, HighWaterMark | None]] = {}

    async def read(self, agent_id: str | None = None) -> Marks:
        """Gives the marks of one agent or of all; one that is unreadable is logged and left out.

        Raises:
            StoreError: The store did not answer.
        """
        prefix = HIGH_WATER if agent_id is None else high_water_prefix(agent_id)
        found: dict[tuple[str, str], Told] = {}
        kept: dict[ObjectKey, tuple[ETag, HighWaterMark | None]] = {}
        async for page in self._store.list(prefix):
            for one in page.objects:
                mark = await self._mark(one)
                kept[one.key] = one.etag, mark
                if mark is not None:
                    told = Told(seq_end=mark.seq_end, told_at_ns=one.last_modified_ns)
                    found[mark.agent_id, mark.boot_id] = told
        self._known = kept
        return found

    async def _mark(self, listed: ListedObject) -> HighWaterMark | None:
        etag, mark = self._known.get(listed.key, (None, None))
        return mark if etag == listed.etag else await self._read(listed.key)

    async def _read(self, key: ObjectKey) -> HighWaterMark | None:
        read = await self._store.get(key)
        if not isinstance(read, Found):
            return None
        try:
            mark = decode_record(key, read.body, HighWaterMark)
        except InvalidRecord as error:
            log.warning("high-water mark unreadable", key=key, reason=error.reason)
            return None
        if high_water_key(mark.agent_id, mark.boot_id) != key:
            log.warning("high-water mark names another life than its key", key=key)
            return None
        return mark
