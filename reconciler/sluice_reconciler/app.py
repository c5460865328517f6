"""Composition root of the reconciler's process: store, service and operator API."""

import structlog

from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import INGEST_QUEUE
from sluice_protocol.units import ObjectKey
from sluice_queue.lane import list_lanes
from sluice_reconciler.api import make_operator_app
from sluice_reconciler.lanes.defects import has_ledger
from sluice_reconciler.passes.full_pass import PassReport
from sluice_reconciler.passes.scanners import InventoryScanResult
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerOptions, ReconcilerSettings
from sluice_store.port import ObjectStore
from sluice_store.url import StoreMode, open_store
from sluice_web.addresses import parse_listen
from sluice_web.connection_guard import listening
from sluice_web.listening import ServerOptions, stop_event
from sluice_web.tokens import check_token_or_loopback

log = structlog.get_logger()


async def refuse_lost_queue(store: ObjectStore, settings: ReconcilerOptions) -> None:
    """Refuse to start Spark's queue at sequence 1 if the lake was filled from it before.

    The ingest would treat the first entries as those that it has already persisted. Refuse if the
    queue has no lane and the lake has its ledger.
    """
    if INGEST_QUEUE not in settings.queue_names or await list_lanes(store, INGEST_QUEUE):
        return
    if await has_ledger(store):
        raise BadUsage(
            "queue is lost, but the lake was filled from it: run `sluice rebuild`, which"
            f" continues behind the last sequence in the lake, queue=`{INGEST_QUEUE}`"
        )


async def run_once(url: str, settings: ReconcilerOptions) -> PassReport:
    """Open a store, make one full pass, and close the store."""
    async with open_store(url) as store:
        await refuse_lost_queue(store, settings)
        reconciler = await Reconciler.of(store, settings=settings.on(url))
        return await reconciler.once()


async def run_inventory(url: str, settings: ReconcilerOptions, report: str) -> InventoryScanResult:
    """Process what an inventory report names, and store what the lanes were given.

    `report` is the store URL of the bucket, `#`, and the key of its `manifest.json`.
    """
    place, _, key = report.partition("#")
    if not place or not key:
        raise BadUsage(f"name a report as <store URL>#<key of manifest.json>, report=`{report}`")
    async with open_store(url) as store, open_store(place, StoreMode.READ) as reports:
        await refuse_lost_queue(store, settings)
        reconciler = await Reconciler.of(store, settings=settings.on(url))
        return await reconciler.scan_inventory(reports, ObjectKey(key))


async def serve_reconciler(url: str, settings: ReconcilerOptions) -> None:
    """Run service and operator API until SIGTERM or SIGINT."""
    async with open_store(url) as store:
        await _serve(store, settings.on(url))


async def _serve(store: ObjectStore, settings: ReconcilerSettings) -> None:
    host, _ = parse_listen(settings.listen)
    check_token_or_loopback(host, settings.api_token)
    await refuse_lost_queue(store, settings)
    reconciler = await Reconciler.of(store, settings=settings)
    stop = stop_event()
    async with listening(
        make_operator_app(reconciler), settings.listen, ServerOptions(decompress=True)
    ) as urls:
        reconciler.share.url = settings.advertise_url or urls[0]
        log.info("reconciler_listening", urls=urls)
        await stop.wait()
