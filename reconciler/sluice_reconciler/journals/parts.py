"""What the journal route uses."""

from dataclasses import dataclass

from sluice_queue.lane import Runtime
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.discovery import DiscoveryStore
from sluice_reconciler.journals.registry import GatewayRegistry
from sluice_reconciler.lanes.worker import LaneWorkers
from sluice_reconciler.live_reader import LiveReader
from sluice_reconciler.metrics import ReconcilerMetrics, StageBacklog, StoreClock
from sluice_reconciler.pipeline import BatchPipeline
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.port import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalDependencies:
    """What the journal route uses.

    Attributes:
        store: The acceptance authority.
        lanes: Number of lanes of each queue.
        pipeline: Verifies, indexes and enqueues.
        workers: The lanes.
        discovery: The published record.
        registry: Which gateways write no journal.
        backlog: Batches pending at each stage.
        live: Is informed of batches that another reconciler enqueued.
        requests: The bound on requests in flight.
        clock: The store's time.
        runtime: Time and ids.
        metrics: Where the route counts.
        settings: The settings of the reconciler.
    """

    store: ObjectStore
    lanes: int
    pipeline: BatchPipeline
    workers: LaneWorkers
    discovery: DiscoveryStore
    registry: GatewayRegistry
    backlog: StageBacklog
    live: LiveReader
    requests: RequestLimit
    clock: StoreClock
    runtime: Runtime
    metrics: ReconcilerMetrics
    settings: ReconcilerSettings
