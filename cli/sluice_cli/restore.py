"""`sluice restore`: apply newer decisions to a restored copy of a store, and let it be served."""

import asyncio
from typing import TYPE_CHECKING

from sluice_cli.shell.operator import operator_name
from sluice_cli.shell.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit
from sluice_protocol.authority import Restore
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store import StoreMode, open_store
from sluice_store.restore import finish_restore

if TYPE_CHECKING:
    from rich.console import Console


def restore(
    *,
    store: StoreUrl = STORE_DEFAULT,
    newest: str = "",
    json: Json = False,
) -> int:
    """Apply what was decided after a copy of a store was made; until then, nothing serves it.

    It creates the deletes, holds, erasures, tombstones and other decisions that are missing in the
    copy, and records the restore. Erasures are open again until they are repeated. It may be killed
    and repeated at any time, and needs the rights of the copy.

    Args:
        store: The restored copy.
        newest: The URL of the lost store, or of the newest copy of `authority`, `retention`,
            `deletes`, `expired`, `decisions` and `promotions`; `none` if no newer copy exists.
        json: Print JSON for programs.
    """
    if not newest:
        raise BadUsage(
            "name the newest copy of the decisions with `--newest URL`; `--newest none` states that"
            " none is newer than this one"
        )
    record = asyncio.run(_restore(store, newest))
    emit(record, as_json=json, human=lambda console: _draw(console, store, record))
    return ExitCode.DONE.value


async def _restore(url: str, newest: str) -> Restore:
    clock, ids, by = SystemClock(), SystemIds(), operator_name()
    async with open_store(url) as store:
        if newest == "none":
            return await finish_restore(store, None, by=by, clock=clock, ids=ids)
        async with open_store(newest, StoreMode.READ) as other:
            return await finish_restore(store, other, by=by, clock=clock, ids=ids)


def _draw(console: "Console", url: str, record: Restore) -> None:
    for prefix, count in (record.applied or {}).items():
        console.print(f"  {prefix:<15} {count} objects applied")
    console.print(f"{url} may be served")
    console.print("next: sluice doctor, sluice rebuild, and sluice erase list for open erasures")
