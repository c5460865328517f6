"""Whether an upload sent now has a chance: from the last store answer and the doctor's result.

Nobody asks the store when `/readyz` is asked; what is known was learned beside it.
"""

import asyncio
from typing import Final

import structlog

from sluice_gateway.gateway import Gateway
from sluice_protocol.errors import ErrorCode, InvalidRecord, StoreError, StoreMisconfigured
from sluice_protocol.keys import AUTHORITY_SETTINGS
from sluice_protocol.units import NS_PER_S
from sluice_store.doctor_records import require_doctor
from sluice_web.problems import Problem, problem_of

ASK_AFTER_S: Final = 5.0
"""A worker that heard nothing from its store for this long asks it one cheap thing."""
ASK_TIMEOUT_S: Final = 5.0

log = structlog.get_logger()


def why_not_ready(gateway: Gateway) -> Problem | None:
    """Gives the reason why this worker should get no uploads, or None."""
    if gateway.lifecycle.draining:
        return problem_of(ErrorCode.DRAINING, "this gateway is stopping")
    if not gateway.store.healthy:
        return problem_of(ErrorCode.STORE_UNAVAILABLE, "the store's last answer was a failure")
    if gateway.unproved:
        return problem_of(ErrorCode.STORE_UNAVAILABLE, gateway.unproved)
    if not gateway.mode_known:
        return problem_of(ErrorCode.STORE_UNAVAILABLE, "the authority was not read for too long")
    return None


async def ask_doctor(gateway: Gateway) -> None:
    """Learns the newest result of a probe, which may have been made since this worker started."""
    if gateway.settings.skip_probe:
        return
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            await require_doctor(gateway.store)
    except (StoreMisconfigured, InvalidRecord) as error:
        gateway.unproved = str(error)
        log.error("store not proved any more", reason=str(error))  # noqa: TRY400 - it says all
    except (StoreError, TimeoutError) as error:
        log.warning("doctor's result not read", reason=str(error))
    else:
        gateway.unproved = ""


async def ask_store(gateway: Gateway) -> None:
    """Asks the store for its authority record when it was silent for `ASK_AFTER_S`."""
    silent_ns = gateway.clock.monotonic_ns() - gateway.store.answered_at_ns
    if silent_ns < ASK_AFTER_S * NS_PER_S:
        return
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            await gateway.store.head(AUTHORITY_SETTINGS)
    except TimeoutError:
        gateway.store.healthy = False
    except StoreError as error:  # the wrapper has noted it
        log.warning("store does not answer", reason=str(error))
