"""Journals of gateway processes, and the record of a reconciler, written into a deployment."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from support.spark_lake import Deployment, Sent

from sluice_protocol.journals import (
    DISCOVERY,
    DiscoveryRecord,
    GatewayProcess,
    JournalHeader,
    encode_journal,
    journal_key,
    process_name,
    registration_key,
)
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_store import open_store


@dataclass
class JournalWriter:
    """One gateway process of a deployment."""

    place: Deployment
    collector_id: str = "gw-1"
    process: str = ""
    number: int = 0

    def now_ns(self) -> UnixNs:
        """Return the store's clock."""

        async def read() -> UnixNs:
            async with open_store(self.place.url) as store:
                return (await store.get(ObjectKey("doctor/v1/none"))).date_ns  # type: ignore[union-attr]

        return asyncio.run(read())

    def put(self, key: ObjectKey, body: bytes) -> None:
        async def write() -> None:
            async with open_store(self.place.url) as store:
                await store.overwrite(key, body)

        asyncio.run(write())

    def register(self) -> "JournalWriter":
        self.process = process_name(self.now_ns(), "0" * 26)
        body = GatewayProcess(
            collector_id=self.collector_id,
            process=self.process,
            acceptance="s3_manifest",
            started_at_unix_ns=self.now_ns(),
        )
        self.put(registration_key(self.process), encode_record(body))
        return self

    def journal(self, batches: Sequence[Sent]) -> UnixNs:
        """Write the next object; return the time through which it is complete."""
        through_ns = self.now_ns()
        self.number += 1
        header = JournalHeader(
            process=self.process,
            number=self.number,
            complete_through_unix_ns=through_ns,
            batches=len(batches),
        )
        body = encode_journal(header, [encode_record(one.manifest) for one in batches])
        self.put(journal_key(self.process, self.number), body)
        return through_ns

    def publish(self, *, age_s: float = 30.0) -> UnixNs:
        """Write the record of a reconciler that processed the journals and then stopped."""
        through_ns = UnixNs(self.now_ns() - int(age_s * NS_PER_S))
        record = DiscoveryRecord(
            complete_through_unix_ns=through_ns,
            listed=0,
            journals={self.process: self.number} if self.number else {},
            pass_began_unix_ns=through_ns,
            journaled_since_unix_ns=0,
        )
        self.put(DISCOVERY, encode_record(record))
        return through_ns
