"""Composition root of the reconciler's process: store, service and operator API."""

import structlog

from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import INGEST_QUEUE, LAKE
from sluice_protocol.units import ObjectKey
from sluice_queue.inspection import list_lanes
from sluice_reconciler.api import make_app
from sluice_reconciler.full_pass import PassReport
from sluice_reconciler.inventory import InventoryScanResult, scan_inventory
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.port import ObjectStore
from sluice_store.url import open_store
from sluice_web.listening import ServerOptions, listening, parse_listen, stop_event
from sluice_web.tokens import check_token_or_loopback

log = structlog.get_logger()

LEDGER_LOG = f"{LAKE}batches/_delta_log/"
"""Where something stands once the lake has a ledger."""


async def refuse_lost_queue(store: ObjectStore, settings: ReconcilerSettings) -> None:
    """Refuses to begin Spark's queue at 1 where the lake was already fed from it.

    The ingest would take the first entries for those that it has.

    Raises:
        BadUsage: No lane of the queue is left, and the lake has its ledger.
        StoreError: The store did not answer.
    """
    if INGEST_QUEUE not in settings.queue_names or await list_lanes(store, INGEST_QUEUE):
        return
    async for page in store.list(LEDGER_LOG):
        if page.objects:
            raise BadUsage(
                f"the queue `{INGEST_QUEUE}` is gone, but the lake was fed from it: run"
                " `sluice rebuild`, which goes on where the lake stands"
            )
        return


async def run_once(url: str, settings: ReconcilerSettings) -> PassReport:
    """Opens the store, makes one full pass, and closes it.

    Raises:
        SluiceError: As `Reconciler.once`.
    """
    async with open_store(url) as store:
        await refuse_lost_queue(store, settings)
        reconciler = await Reconciler.of(store, settings=settings.on(url))
        return await reconciler.once()


async def run_inventory(url: str, settings: ReconcilerSettings, report: str) -> InventoryScanResult:
    """Takes what an inventory report names, and stores what the lanes were given.

    Args:
        url: The store.
        settings: How the reconciler works.
        report: The store URL of the bucket that holds the report, `#`, and its `manifest.json`.

    Raises:
        BadUsage: The report is not named so, is not there, or does not match its checksum.
        SluiceError: As `Reconciler.once`.
    """
    place, _, key = report.partition("#")
    if not place or not key:
        raise BadUsage(f"name a report as <store URL>#<key of manifest.json>, report=`{report}`")
    async with open_store(url) as store, open_store(place) as reports:
        await refuse_lost_queue(store, settings)
        reconciler = await Reconciler.of(store, settings=settings.on(url))
        for desk in reconciler.intake.desks.values():
            await desk.refresh()
        found = await scan_inventory(reconciler.intake, reports, ObjectKey(key))
        await reconciler.intake.close()
        return found


async def serve(url: str, settings: ReconcilerSettings) -> None:
    """Runs service and operator API until SIGTERM or SIGINT.

    Raises:
        SluiceError: The store cannot be opened, or the address cannot be used.
    """
    async with open_store(url) as store:
        await _serve(store, settings.on(url))


async def _serve(store: ObjectStore, settings: ReconcilerSettings) -> None:
    host, _ = parse_listen(settings.listen)
    check_token_or_loopback(host, settings.api_token)
    await refuse_lost_queue(store, settings)
    reconciler = await Reconciler.of(store, settings=settings)
    stop = stop_event()
    async with listening(
        make_app(reconciler), settings.listen, ServerOptions(decompress=True)
    ) as urls:
        log.info("reconciler_listening", urls=urls)
        await stop.wait()
