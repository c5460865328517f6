"""Reading the high-water marks: the highest sequence numbers that agents reported (ADR 29)."""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import HIGH_WATER, high_water_key, high_water_prefix
from sluice_protocol.manifests import HighWaterMark, decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ETag, ObjectKey, UnixNs
from sluice_reconciler.concurrency import RequestLimit
from sluice_store.port import ListedObject, ObjectStore

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedHighWater:
    """What an agent reported about one boot.

    Attributes:
        seq_end: The highest sequence number that the agent assigned.
        reported_at_ns: When a gateway stored it, by the store's clock.
        etag: The ETag of the record.
    """

    seq_end: int
    reported_at_ns: UnixNs
    etag: ETag


HighWaterMarks = Mapping[tuple[str, str], ReportedHighWater]
"""By (agent, boot)."""


class HighWaterReader:
    """Reads high-water marks, and only those that changed since its last read."""

    def __init__(self, store: ObjectStore, requests: RequestLimit) -> None:
        self._store = store
        self._requests = requests
        self._known: dict[ObjectKey, tuple[ETag, HighWaterMark | None]] = {}

    async def read(self, agent_id: str | None = None) -> HighWaterMarks:
        """Return the marks of one agent or of all; an unreadable one is logged and omitted.

        Raises:
            StoreError: The store is unreachable or refused the request.
        """
        prefix = HIGH_WATER if agent_id is None else high_water_prefix(agent_id)
        found: dict[tuple[str, str], ReportedHighWater] = {}
        kept: dict[ObjectKey, tuple[ETag, HighWaterMark | None]] = {}
        async for page in self._store.list(prefix):
            changed = [one.key for one in page.objects if not self._is_known(one)]
            read = await self._requests.each(changed, self._read)
            marks = dict(zip(changed, read, strict=True))
            for one in page.objects:
                mark = marks[one.key] if one.key in marks else self._known[one.key][1]
                kept[one.key] = one.etag, mark
                if mark is not None:
                    found[mark.agent_id, mark.boot_id] = ReportedHighWater(
                        seq_end=mark.seq_end,
                        reported_at_ns=one.last_modified_ns,
                        etag=one.etag,
                    )
        self._known = kept
        return found

    def _is_known(self, listed: ListedObject) -> bool:
        return listed.key in self._known and self._known[listed.key][0] == listed.etag

    async def _read(self, key: ObjectKey) -> HighWaterMark | None:
        read = await self._store.get(key)
        if not isinstance(read, Found):
            return None
        try:
            mark = decode_record(key, read.body, HighWaterMark)
        except InvalidRecord as error:
            log.warning("high_water_unreadable", key=key, reason=error.reason)
            return None
        if high_water_key(mark.agent_id, mark.boot_id) != key:
            log.warning("high_water_unreadable", key=key, reason="names another boot than its key")
            return None
        return mark
