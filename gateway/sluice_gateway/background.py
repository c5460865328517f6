"""The background tasks of one worker: what it reads and writes besides uploads."""

import asyncio
from typing import Final

import structlog

from sluice_gateway.app import Gateway
from sluice_gateway.high_water import FLUSH_INTERVAL_S, flush_guarded
from sluice_protocol.authority import mode_switch_key
from sluice_protocol.errors import InvalidRecord, StoreError
from sluice_protocol.outcomes import ObjectInfo

DECISIONS_INTERVAL_S: Final = 5.0
DOCTOR_INTERVAL_S: Final = 60.0
DOCTOR_AGAIN_S: Final = 2.0
"""Time between two reads of the doctor's result while it is no good one: an outage may hide it."""
MODE_INTERVAL_S: Final = 5.0
PRINCIPALS_INTERVAL_S: Final = 1.0
"""Time between two checks of the principals file, and whether a check of the store is due."""

log = structlog.get_logger()


def start_background_tasks(
    group: asyncio.TaskGroup, gateway: Gateway, next_number: int, stop: asyncio.Event
) -> list[asyncio.Task[None]]:
    """Start every background task; each runs until it is cancelled.

    Args:
        group: The group that owns the tasks.
        gateway: The worker.
        next_number: The number of the next mode switch.
        stop: Set when a mode switch is found.
    """
    tasks = [
        follow_principals(gateway),
        follow_decisions(gateway),
        follow_doctor(gateway),
        write_high_water(gateway),
        gateway.uploads.journal.run(),
    ]
    if gateway.uploads.transfer is not None:
        tasks.append(gateway.uploads.transfer.run())
    else:  # a spool is locked while it runs: no command can switch away from it
        tasks.append(follow_mode(gateway, next_number, stop))
    return [group.create_task(task) for task in tasks]


async def follow_principals(gateway: Gateway) -> None:
    """Reload the principals file, and check the store where that is due."""
    principals = gateway.uploads.principals
    while True:
        await gateway.clock.sleep(PRINCIPALS_INTERVAL_S)
        principals.reload()
        gateway.metrics.principals_stale.set(principals.failed)
        await gateway.readiness.check_store()


async def follow_doctor(gateway: Gateway) -> None:
    """Read the newest result of the doctor for `/readyz`."""
    readiness = gateway.readiness
    while True:
        await gateway.clock.sleep(DOCTOR_INTERVAL_S if readiness.is_proved else DOCTOR_AGAIN_S)
        await readiness.check_doctor()


async def follow_decisions(gateway: Gateway) -> None:
    """Read the decisions of operators, so that a quarantine is in effect everywhere within 30 s."""
    while True:
        await gateway.clock.sleep(DECISIONS_INTERVAL_S)
        try:
            async with asyncio.timeout(DECISIONS_INTERVAL_S):
                await gateway.uploads.decisions.refresh()
        except (StoreError, InvalidRecord, TimeoutError) as error:
            log.warning("decisions_not_read", reason=str(error))


async def follow_mode(gateway: Gateway, next_number: int, stop: asyncio.Event) -> None:
    """Check for a switch of the acceptance mode; set `stop` when one is found."""
    while True:
        await gateway.clock.sleep(MODE_INTERVAL_S)
        asked_at = gateway.mode.now()
        try:
            async with asyncio.timeout(MODE_INTERVAL_S):
                found = await gateway.store.head(mode_switch_key(next_number))
        except (StoreError, TimeoutError) as error:
            log.warning("authority_not_read", reason=str(error))
            continue
        if isinstance(found, ObjectInfo):
            log.error("authority_switched", key=found.key)
            gateway.mode.switched = True
            stop.set()
            return
        gateway.mode.checked_at = asked_at


async def write_high_water(gateway: Gateway) -> None:
    """Write the high-water marks that agents report."""
    while True:
        await gateway.clock.sleep(FLUSH_INTERVAL_S)
        await flush_guarded(gateway.uploads.high_water)
