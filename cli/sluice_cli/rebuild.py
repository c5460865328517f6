"""`sluice rebuild`: everything derived again, or only compared."""

import asyncio
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from sluice_cli.common import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.lake_positions import read_persisted
from sluice_cli.output import emit
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import INGEST_QUEUE
from sluice_queue.lane import Runtime
from sluice_reconciler.differences import DerivedDifference
from sluice_reconciler.rebuild import Rebuild
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.url import open_store


def rebuild(
    *,
    verify: Annotated[bool, Parameter(negative="", help="Compare only; write nothing.")] = False,
    first_sequence: Annotated[
        int | None,
        Parameter(
            help="Where lost registers go on: one above what consumers persisted. Spark's queue"
            " goes on where the lake stands when this is not given."
        ),
    ] = None,
    queues: Annotated[str, Parameter(help="Queues fed from accepted batches.")] = "spark",
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """Makes indexes, work lists and queues again from what was accepted and refused.

    Returns:
        0; with `--verify` 1 when something derived differs from its sources.
    """
    if first_sequence is not None and first_sequence < 1:
        raise BadUsage(f"--first-sequence must be at least 1, first_sequence=`{first_sequence}`")
    settings = ReconcilerSettings(queues=queues)
    found = asyncio.run(_run(store, settings, verify=verify, first_sequence=first_sequence))
    emit(found, as_json=json, human=lambda console: _draw(console, found, verify=verify))
    return 1 if verify and found else 0


async def _run(
    url: str, settings: ReconcilerSettings, *, verify: bool, first_sequence: int | None
) -> list[DerivedDifference]:
    async with open_store(url) as store:
        reconciler = await Reconciler.of(store, settings=settings.on(url))
        persisted = None
        if first_sequence is None and INGEST_QUEUE in settings.queue_names:
            persisted = await read_persisted(store, url, reconciler.intake.lanes)
        walk = Rebuild(reconciler.intake, Runtime(), persisted)
        if verify:
            return [one async for one in walk.differences()]
        mended = [one async for one in walk.repair(first_sequence=first_sequence)]
        await reconciler.once()
        return mended


def _draw(console: Console, found: list[DerivedDifference], *, verify: bool) -> None:
    for one in found:
        console.print(f"{one.wrong.value}  {one.key}  {one.detail}".rstrip())
    console.print(f"{len(found)} differences {'found' if verify else 'mended'}")
