"""A spool and its authority: batches are accepted here and transferred there by the gateway."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.gateway import TestKey, write_principals
from support.spark_lake import Deployment, Sent

from sluice_gateway.process.app import build_gateway
from sluice_gateway.settings import GatewaySettings
from sluice_gateway.spool.claim import mirror_authority
from sluice_protocol.authority import Authority
from sluice_protocol.system_clock import SystemClock
from sluice_store import StoreMode, create_authority, open_store

WRITER = "spool-gw"
LANES = 2


@dataclass
class Site:
    """An authority, and the spool of its one gateway."""

    place: Deployment
    spool: Deployment

    def accept(self, batches: Sequence[Sent]) -> None:
        """Write to the spool what an upload writes."""
        self.spool.accept(batches)

    def transfer(self) -> None:
        """Transfer everything that is spooled."""
        asyncio.run(_transfer(self))

    def enqueue(self, batches: Sequence[Sent]) -> None:
        self.place.enqueue(batches)


def site(root: Path) -> Site:
    made = Site(
        place=Deployment(root=root / "store", lanes=LANES),
        spool=Deployment(root=root / "spool", lanes=LANES),
    )
    asyncio.run(_init(made))
    return made


async def _init(made: Site) -> None:
    agreed = Authority(
        authority_id="A" * 26, lanes=LANES, acceptance="local_spool", spool_writer=WRITER
    )
    async with (
        open_store(made.place.url, StoreMode.CREATE) as remote,
        open_store(made.spool.url, StoreMode.CREATE) as local,
    ):
        await create_authority(remote, agreed)
        await mirror_authority(local, remote, SystemClock())


async def _transfer(made: Site) -> None:
    principals = write_principals(made.spool.root / "p.toml", TestKey("host-1", ("host-1",)))
    settings = GatewaySettings(principals=principals, spool=made.spool.url)
    async with (
        open_store(made.spool.url, StoreMode.CREATE) as local,
        open_store(made.place.url, StoreMode.CREATE) as remote,
    ):
        agreed = (await mirror_authority(local, remote, SystemClock())).current
        gateway = build_gateway(local, agreed, settings, WRITER, transfers_to=remote)
        transfer = gateway.transfer
        assert transfer is not None
        await transfer.transfer_once()
        assert transfer.pending == 0
