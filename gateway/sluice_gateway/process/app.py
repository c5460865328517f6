"""The composition root of a gateway: the parts of one worker."""

import math
import random  # noqa: TID251 - the seeded source is created here
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from sluice_gateway.journal import (
    AcceptanceJournal,
    JournalOwner,
    JournalRules,
    StoreRules,
    UploadJournal,
)
from sluice_gateway.metrics import GatewayMetrics, ObservedStore
from sluice_gateway.process.readiness import Readiness, WorkerConditions
from sluice_gateway.settings import GatewaySettings
from sluice_gateway.spool.acceptor import SpoolAcceptor
from sluice_gateway.spool.capacity import SpoolCapacity
from sluice_gateway.spool.claim import claim_authority
from sluice_gateway.spool.journal import SpoolJournal, SpoolRules
from sluice_gateway.spool.records import SpoolStores
from sluice_gateway.spool.transfer import SpoolTransfer
from sluice_gateway.uploads.acceptor import Acceptor
from sluice_gateway.uploads.admission import BodyBudget, ModeWatch, RunningUploads
from sluice_gateway.uploads.api import GatewayApi
from sluice_gateway.uploads.frame_reader import FrameReader
from sluice_gateway.uploads.lists import ListedUploads
from sluice_gateway.uploads.principals import PrincipalsFile
from sluice_gateway.uploads.service import AcceptedCache, HighWaterMarks, UploadService
from sluice_protocol.authority import Authority
from sluice_protocol.clock import Clock, IdSource, MachineInstant, SuspendAwareClock
from sluice_protocol.errors import BadUsage
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import UnixNs
from sluice_store.conflicts import DecisionsReader
from sluice_store.port import ObjectStore
from sluice_store.url import parse_local_path
from sluice_web.addresses import parse_allowed_hosts
from sluice_web.connection_guard import BodyPace
from sluice_web.endpoints import Endpoint
from sluice_web.refused_clients import RefusedClients

if TYPE_CHECKING:
    from sluice_gateway.doors.service import DoorService


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The parts of one worker.

    In `local_spool`, `transfer` moves accepted records to the authority. `doors` is None where no
    door is open.
    """

    settings: GatewaySettings
    clock: Clock
    metrics: GatewayMetrics
    store: ObservedStore
    mode: ModeWatch
    readiness: Readiness
    uploads: UploadService
    transfer: SpoolTransfer | None
    doors: "DoorService | None"
    api: GatewayApi


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    """The shared arguments of the parts of one worker, and the parts that exist more than once."""

    authority: Authority
    settings: GatewaySettings
    collector_id: str
    clock: SuspendAwareClock = field(default_factory=SystemClock)
    ids: IdSource = field(default_factory=SystemIds)
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    rng: random.Random = field(default_factory=random.Random)  # jitter, not a secret

    def acceptor(self, store: ObjectStore) -> Acceptor:
        return Acceptor(
            store=store,
            authority=self.authority,
            collector_id=self.collector_id,
            clock=self.clock,
            rng=self.rng,
            time_s_max=self.settings.upload_time_s_max,
        )

    def journal(
        self, store: ObservedStore, rules: JournalRules, *, fence_s: float
    ) -> AcceptanceJournal:
        owner = JournalOwner(
            collector_id=self.collector_id,
            acceptance=self.authority.acceptance,
            fence_s=fence_s,
            interval_s=self.settings.journal_interval_s,
        )
        return AcceptanceJournal(store, owner, rules=rules, clock=self.clock, metrics=self.metrics)


def check_authority_fits(
    authority: Authority, settings: GatewaySettings, collector_id: str
) -> None:
    """Check that acceptance mode and spool writer agree with the authority."""
    if authority.acceptance != settings.acceptance:
        raise BadUsage(
            "the acceptance mode differs from that of the authority: change the setting,"
            f" authority=`{authority.acceptance}`, settings=`{settings.acceptance}`"
        )
    if authority.acceptance == "local_spool" and authority.spool_writer != collector_id:
        raise BadUsage(
            "the authority has another spool writer: stop this gateway,"
            f" spool_writer=`{authority.spool_writer}`, collector_id=`{collector_id}`"
        )


def build_gateway(
    store: ObjectStore,
    authority: Authority,
    settings: GatewaySettings,
    collector_id: str,
    *,
    transfers_to: ObjectStore | None = None,
    mode_checked_at: MachineInstant | None = None,
) -> Gateway:
    """Create the parts of one worker over an open store.

    `store` accepts: the authority, or a spool, whose authority is `transfers_to`. `mode_checked_at`
    is as in `ModeWatch`.
    """
    worker = _Worker(authority=authority, settings=settings, collector_id=collector_id)
    clock, metrics = worker.clock, worker.metrics
    observed = ObservedStore(store, metrics, clock)
    here = worker.acceptor(observed)
    acceptor: Acceptor | SpoolAcceptor = here
    transfer: SpoolTransfer | None = None
    journal: UploadJournal
    if transfers_to is None:
        rules = StoreRules(worker.ids)
        journal = worker.journal(observed, rules, fence_s=settings.journal_fence_s)
    else:
        journal, acceptor, transfer = _spooling(worker, here, store, transfers_to)
    uploads = UploadService(
        frame_bytes_max=settings.frame_bytes_max,
        collector_id=collector_id,
        clock=clock,
        ids=worker.ids,
        metrics=metrics,
        principals=PrincipalsFile(settings.principals),
        refused=RefusedClients(clock),
        running=RunningUploads(metrics),
        budget=BodyBudget(settings.inflight_bytes_max, metrics, worker.rng),
        frames=_frame_reader(settings),
        cache=AcceptedCache(settings.cache_entries_max, clock),
        mode=ModeWatch(clock, mode_checked_at),
        acceptor=acceptor,
        decisions=DecisionsReader(observed),
        high_water=HighWaterMarks(transfers_to or observed),
        journal=journal,
    )
    return _gateway(settings, observed, uploads, transfer)


def _gateway(
    settings: GatewaySettings,
    store: ObservedStore,
    uploads: UploadService,
    transfer: SpoolTransfer | None,
) -> Gateway:
    readiness = Readiness(
        store=store,
        conditions=WorkerConditions(
            running=uploads.running, mode=uploads.mode, journal=uploads.journal
        ),
        clock=uploads.clock,
        skip_probe=settings.skip_probe,
        name=uploads.collector_id,
    )
    doors, endpoints = _open_doors(settings, store, uploads)
    return Gateway(
        settings=settings,
        clock=uploads.clock,
        metrics=uploads.metrics,
        store=store,
        mode=uploads.mode,
        readiness=readiness,
        uploads=uploads,
        transfer=transfer,
        doors=doors,
        api=GatewayApi(
            uploads,
            ListedUploads(uploads=uploads, time_s_max=settings.upload_time_s_max),
            readiness,
            store,
            allowed_hosts=parse_allowed_hosts(settings.allowed_hosts),
            doors=endpoints,
        ),
    )


def _open_doors(
    settings: GatewaySettings, store: ObservedStore, uploads: UploadService
) -> "tuple[DoorService | None, tuple[Endpoint, ...]]":
    """Create the doors that are open; without one their decoders are not imported."""
    if not settings.doors:
        from sluice_doors.api import closed_endpoints  # noqa: PLC0415 - as below

        return None, tuple(closed_endpoints((), uploads.clock.now_ns, open_host=True))
    from sluice_doors.api import DoorsApi  # noqa: PLC0415 - imports the decoders
    from sluice_gateway.doors.service import DoorService  # noqa: PLC0415 - imports the decoders

    doors = DoorService(
        uploads,
        store,
        body_bytes_max=settings.door_body_bytes_max,
        own_frame_bytes=settings.door_own_frame_bytes,
        flush_s=settings.door_flush_ms / 1000,
        flush_bytes=settings.door_flush_bytes,
    )
    # Each request has a token, a signature or a client certificate.
    api = DoorsApi(doors, settings.doors, open_host=True)
    return doors, tuple(api.endpoints())


def _spooling(
    worker: _Worker, here: Acceptor, local: ObjectStore, remote: ObjectStore
) -> tuple[SpoolJournal, SpoolAcceptor, SpoolTransfer]:
    """Create what a spool adds: a journal that its next process continues, and the transfer."""
    clock, ids, authority = worker.clock, worker.ids, worker.authority
    created_ns = UnixNs(authority.created_at_unix_ns)
    rules = SpoolRules(local, ids=ids, clock=clock, created_ns=created_ns)
    observed = ObservedStore(remote, worker.metrics, clock)
    journal = SpoolJournal(
        worker.journal(observed, rules, fence_s=math.inf),
        rules,
        clock=clock,
        claim=partial(claim_authority, local, remote, ids, worker.collector_id),
    )
    stores = SpoolStores(
        local=local,
        remote=remote,
        acceptor=worker.acceptor(remote),
        clock=clock,
        ids=ids,
        journal=journal,
        capacity=_spool_capacity(worker.settings, clock, worker.metrics),
        authority=authority,
    )
    interval_s = worker.settings.object_landing_interval_ms / 1000
    accepts = SpoolAcceptor(stores, here, worker.metrics)
    return journal, accepts, SpoolTransfer(stores, accepts, worker.metrics, interval_s)


def _spool_capacity(
    settings: GatewaySettings, clock: Clock, metrics: GatewayMetrics
) -> SpoolCapacity:
    return SpoolCapacity(
        parse_local_path(settings.spool),
        bytes_max=settings.spool_bytes_max,
        free_bytes_min=settings.spool_free_bytes_min,
        clock=clock,
        metrics=metrics,
    )


def _frame_reader(settings: GatewaySettings) -> FrameReader:
    return FrameReader(frame_bytes_max=settings.frame_bytes_max, pace=body_pace(settings))


def body_pace(settings: GatewaySettings) -> BodyPace:
    """Return how slowly a body, or a message of a door, may arrive."""
    return BodyPace(grace_s=settings.body_grace_s, rate_min=settings.body_rate_min_bytes_per_s)
