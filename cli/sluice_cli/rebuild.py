"""`sluice rebuild`: rebuild derived objects, or compare them with their sources."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sluice_cli.shell.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit, fail
from sluice_protocol.errors import BadUsage, SluiceError
from sluice_protocol.keys import INGEST_QUEUE
from sluice_reconciler.indexes import DerivedDifference
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_spark.ingest.committed_positions import fence_ingestion, read_committed_positions
from sluice_store.url import StoreMode, open_store

if TYPE_CHECKING:
    from rich.console import Console


def rebuild(
    *,
    verify: Annotated[bool, Parameter(negative="", help="Compare only; write nothing.")] = False,
    first_sequence: Annotated[
        int | None,
        Parameter(
            help="First sequence of lost registers: one above what consumers persisted. "
            "Spark's queue resumes after the position of the lake, if there is one."
        ),
    ] = None,
    queues: Annotated[
        str,
        Parameter(
            help="Queues that every accepted batch is appended to, names separated by commas."
        ),
    ] = "spark",
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """Rebuild indexes, work lists and queues from accepted and quarantined batches.

    Returns:
        0; with `--verify` 1 if a derived object differs from its sources.
    """
    if first_sequence is not None and first_sequence < 1:
        raise BadUsage(f"--first-sequence must be at least 1, first_sequence=`{first_sequence}`")
    settings = ReconcilerSettings(queues=queues)
    found: list[DerivedDifference] = []
    try:
        asyncio.run(_run(store, settings, found, verify=verify, first_sequence=first_sequence))
    except SluiceError:
        if found:
            _report_incomplete(found, as_json=json, verify=verify)
        raise
    emit(found, as_json=json, human=lambda console: _draw(console, found, verify=verify))
    return 1 if verify and found else 0


async def _run(
    url: str,
    settings: ReconcilerSettings,
    found: list[DerivedDifference],
    *,
    verify: bool,
    first_sequence: int | None,
) -> None:
    mode = StoreMode.READ if verify else StoreMode.WRITE
    async with open_store(url, mode) as store:
        reconciler = await Reconciler.of(store, settings=settings.on(url))
        persisted = None
        if INGEST_QUEUE in settings.queue_names:
            persisted = await read_committed_positions(store, url, reconciler.authority.lanes)
        walk = reconciler.rebuild(persisted, partial(fence_ingestion, store, url))
        differences = walk.differences() if verify else walk.repair(first_sequence=first_sequence)
        async for one in differences:
            found.append(one)  # noqa: PERF401 - those before an error are reported too
        if not verify:
            await reconciler.once()


def _report_incomplete(found: list[DerivedDifference], *, as_json: bool, verify: bool) -> None:
    """Print the differences that were found before an error."""
    if not as_json:
        emit(found, as_json=False, human=lambda console: _draw_each(console, found))
    what = "comparison" if verify else "repair"
    fail(f"{what} is incomplete: repeat the command, differences_found=`{len(found)}`")


def _draw_each(console: "Console", found: list[DerivedDifference]) -> None:
    for one in found:
        console.print(f"{one.wrong.value}  {one.key}  {one.detail}".rstrip())


def _draw(console: "Console", found: list[DerivedDifference], *, verify: bool) -> None:
    _draw_each(console, found)
    console.print(f"{len(found)} differences {'found' if verify else 'repaired'}")
