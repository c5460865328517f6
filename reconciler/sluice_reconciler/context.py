"""What all routes of one process share: store, clock, lanes, held batches and discovery."""

from dataclasses import dataclass

from sluice_protocol.authority import Authority
from sluice_queue.register_client import Runtime
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.discovery import DiscoveryStore
from sluice_reconciler.journals.registry import GatewayRegistry
from sluice_reconciler.lanes.worker import LaneWorkers
from sluice_reconciler.live_window import LiveReader, LiveWindow
from sluice_reconciler.loop_health import ReconcilerHealth
from sluice_reconciler.metrics import CountedStore, PendingStages, ReconcilerMetrics, StoreClock
from sluice_reconciler.settings import CONCURRENCY, ReconcilerSettings
from sluice_reconciler.verify import HoldRecords
from sluice_store.port import ObjectStore
from sluice_store.retry import WRITE_RETRY, Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerContext:
    """The collaborators of every route; `clock` is the store's, and `requests` bounds all of them.

    Requests to `store` are counted.
    """

    store: ObjectStore
    authority: Authority
    settings: ReconcilerSettings
    runtime: Runtime
    metrics: ReconcilerMetrics
    health: ReconcilerHealth
    clock: StoreClock
    requests: RequestLimit
    workers: LaneWorkers
    holds: HoldRecords
    discovery: DiscoveryStore
    registry: GatewayRegistry
    live: LiveReader
    pending: PendingStages

    @classmethod
    def of(
        cls,
        store: ObjectStore,
        authority: Authority,
        settings: ReconcilerSettings,
        runtime: Runtime,
        metrics: ReconcilerMetrics,
    ) -> "ReconcilerContext":
        """Create the collaborators; nothing is read yet."""
        store = CountedStore(store, runtime.clock, metrics.store_requests)
        clock, lanes = StoreClock(runtime.clock), authority.lanes
        discovery = DiscoveryStore(store, lanes, runtime, authority.layout)
        window = LiveWindow(
            process=runtime.ids.ulid(),
            bytes_max=settings.live_bytes_max,
            agent_bytes_max=settings.live_agent_bytes_max,
        )
        return cls(
            store=store,
            authority=authority,
            settings=settings,
            runtime=runtime,
            metrics=metrics,
            health=ReconcilerHealth(now_ns=runtime.clock.monotonic_ns),
            clock=clock,
            requests=RequestLimit(settings.concurrency or CONCURRENCY),
            workers=LaneWorkers(store, authority, settings.queue_names, runtime, metrics),
            holds=HoldRecords(store),
            discovery=discovery,
            registry=GatewayRegistry(discovery, metrics),
            live=LiveReader(store, window, clock, settings.read_interval_s),
            pending=PendingStages(clock),
        )

    @property
    def backoff(self) -> Backoff:
        """The pauses and bounds of one write of a derived object."""
        return self.runtime.backoff(WRITE_RETRY)
