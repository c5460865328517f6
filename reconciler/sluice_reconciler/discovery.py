"""Storing how far discovery is complete, for queries to report what they may be missing."""

from typing import Final

from sluice_protocol.discovery import DISCOVERY, DiscoveryRecord
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.full_pass import PassReport
from sluice_store.port import ObjectStore

INTERVAL_S: Final = 3.0
"""Time by the store's clock between two writes of the record, at least."""


class DiscoveryWriter:
    """Writes the discovery record after passes that left no batch behind.

    Two reconcilers may replace each other's record by an older one. That only delays the reported
    instant until the next pass.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._written_ns = 0

    async def store(self, report: PassReport) -> None:
        """Store that discovery is complete up to the start of a pass, if the pass shows it.

        Raises:
            StoreError: The store is unreachable or refused the request.
        """
        through_ns = report.complete_through_ns
        if through_ns is None or through_ns - self._written_ns < INTERVAL_S * NS_PER_S:
            return
        record = DiscoveryRecord(complete_through_unix_ns=through_ns, listed=report.listed)
        await self._store.overwrite(DISCOVERY, encode_record(record))
        self._written_ns = through_ns
