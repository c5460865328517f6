"""A spooling gateway without HTTP, over any two stores; each is one life of its process."""

from dataclasses import dataclass
from pathlib import Path

from support.constants import settings_with
from support.gateway import TestKey, frame_of, write_principals

from sluice_gateway.process.app import build_gateway
from sluice_gateway.settings import GatewaySettings
from sluice_gateway.spool.acceptor import SpoolAcceptor
from sluice_gateway.spool.claim import mirror_authority
from sluice_gateway.spool.journal import SpoolJournal
from sluice_gateway.spool.transfer import SpoolTransfer
from sluice_gateway.uploads.acceptor import Upload
from sluice_protocol.acceptance import Verdict
from sluice_protocol.authority import Authority
from sluice_protocol.frame import decode_head
from sluice_protocol.identity import Identity
from sluice_protocol.keys import digest_of
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store.port import ObjectStore

HOST = TestKey("host-1", ("host-1",))
WRITER = "spool-gw"
AGREED = Authority(
    authority_id="01J00000000000000000000000", acceptance="local_spool", spool_writer=WRITER
)


@dataclass(frozen=True)
class SpoolProcess:
    """The parts of a started gateway that accept into a spool and transfer from it."""

    transfer: SpoolTransfer
    acceptor: SpoolAcceptor
    journal: SpoolJournal

    @classmethod
    async def start(cls, folder: Path, local: ObjectStore, remote: ObjectStore) -> "SpoolProcess":
        """Start as a worker does."""
        history = await mirror_authority(local, remote, SystemClock())
        principals = write_principals(folder / "principals.toml", HOST)
        settings = settings_with(
            GatewaySettings,
            principals=principals,
            spool="file:///unused",
            object_landing_interval_ms=1,
            upload_time_s_max=5.0,
        )
        gateway = build_gateway(local, history.current, settings, WRITER, transfers_to=remote)
        await gateway.uploads.journal.open()
        transfer = gateway.transfer
        assert transfer is not None
        journal = gateway.uploads.journal
        assert isinstance(journal, SpoolJournal)
        acceptor = gateway.uploads.acceptor
        assert isinstance(acceptor, SpoolAcceptor)
        return cls(transfer, acceptor, journal)

    async def sweep(self) -> int:
        """Check every blob of the spool."""
        dropped = await self.acceptor.blobs.sweep_page()
        while not self.acceptor.blobs.swept:
            dropped += await self.acceptor.blobs.sweep_page()
        return dropped

    async def upload(self, who: Identity, text: str = "hello") -> Verdict:
        """Upload a frame as the HTTP service does."""
        self.journal.require_room()
        frame = frame_of(who, text)
        upload = Upload(
            frame=frame,
            digest=digest_of(frame),
            identity=who,
            envelope=decode_head(frame).envelope,
            principal="host-1",
            attempt_id=SystemIds().ulid(),
        )
        return (await self.acceptor.accept(upload)).verdict
