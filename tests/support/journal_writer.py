"""A gateway process that journals what it accepted, without a gateway."""

from collections.abc import Sequence

from msgspec.structs import replace
from support.builders import manifest

from sluice_protocol.authority import AcceptanceMode
from sluice_protocol.journals import (
    GatewayProcess,
    JournalHeader,
    encode_journal,
    journal_key,
    process_name,
    registration_key,
)
from sluice_protocol.keys import accepted_key, blob_key, digest_of
from sluice_protocol.manifests import AcceptedManifest, encode_record
from sluice_protocol.units import UnixNs
from sluice_store.port import ObjectStore


class JournalWriter:
    """One process: it registers, accepts batches and appends journal objects."""

    def __init__(
        self,
        store: ObjectStore,
        started_ns: int,
        *,
        collector_id: str = "gw-1",
        ulid: str = "01J00000000000000000000000",
        acceptance: AcceptanceMode = "s3_manifest",
    ) -> None:
        self.store = store
        self.collector_id = collector_id
        self.started_ns = started_ns
        self.process = process_name(UnixNs(started_ns), ulid)
        self.acceptance = acceptance
        self.number = 0

    async def register(self) -> None:
        """Create the registration."""
        record = GatewayProcess(
            collector_id=self.collector_id,
            process=self.process,
            acceptance=self.acceptance,
            started_at_unix_ns=self.started_ns,
        )
        await self.store.create(registration_key(self.process), encode_record(record))

    async def accept(self, seq: int, *, at_ns: int, agent: str = "host-1") -> AcceptedManifest:
        """Write the blob and the manifest of one batch, as this gateway."""
        frame = f"{self.collector_id}/{agent}/{seq}".encode()
        made = replace(
            manifest(seq, agent=agent, frame=frame),
            collector_id=self.collector_id,
            accepted_at_unix_ns=at_ns,
        )
        await self.store.create(blob_key(digest_of(frame)), frame)
        await self.store.create(accepted_key(made.identity), encode_record(made))
        return made

    async def append(
        self,
        batches: Sequence[AcceptedManifest],
        *,
        through_ns: int,
        closed: bool = False,
        number: int | None = None,
    ) -> int:
        """Create the next journal object, or the one with this number; return its number."""
        self.number = self.number + 1 if number is None else number
        header = JournalHeader(
            process=self.process,
            number=self.number,
            complete_through_unix_ns=through_ns,
            closed=closed,
            batches=len(batches),
        )
        body = encode_journal(header, [encode_record(one) for one in batches])
        await self.store.create(journal_key(self.process, self.number), body)
        return self.number
