"""Readiness: whether an upload that is sent now can be accepted.

`/readyz` makes no store call: background checks keep its facts current. A gateway starts only on a
store that the doctor has examined with a good result.
"""

import asyncio
from typing import Final

import structlog

from sluice_gateway.admission import ModeWatch, RunningUploads
from sluice_gateway.metrics import ObservedStore
from sluice_gateway.settings import GatewaySettings
from sluice_protocol.clock import Clock
from sluice_protocol.errors import ErrorCode, InvalidRecord, StoreError, StoreMisconfigured
from sluice_protocol.keys import AUTHORITY_SETTINGS
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_store.doctor import examine
from sluice_store.doctor_result import read_doctor, require_doctor, seal_result, write_result
from sluice_store.port import ObjectStore
from sluice_web.problems import Problem, problem_of

SILENT_S_MAX: Final = 5.0
"""A store without a response for this long is checked with one cheap request."""
CHECK_TIMEOUT_S: Final = 5.0

log = structlog.get_logger()


class Readiness:
    """What is known about the conditions of acceptance."""

    def __init__(
        self,
        *,
        store: ObservedStore,
        running: RunningUploads,
        mode: ModeWatch,
        clock: Clock,
        skip_probe: bool,
    ) -> None:
        self._store = store
        self._running = running
        self._mode = mode
        self._clock = clock
        self._skip_probe = skip_probe
        self._doctor_problem = ""

    def problem(self) -> Problem | None:
        """Return why this worker should receive no uploads, or None."""
        if self._running.draining:
            return problem_of(ErrorCode.DRAINING, "this gateway is stopping")
        if not self._store.healthy:
            return problem_of(ErrorCode.STORE_UNAVAILABLE, "the last store call failed")
        if self._doctor_problem:
            return problem_of(ErrorCode.STORE_UNAVAILABLE, self._doctor_problem)
        if not self._mode.known:
            reason = "the acceptance mode of the authority could not be read for too long"
            return problem_of(ErrorCode.STORE_UNAVAILABLE, reason)
        return None

    async def check_doctor(self) -> None:
        """Read the newest result of the doctor, which may be newer than this worker."""
        if self._skip_probe:
            return
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await require_doctor(self._store)
        except (StoreMisconfigured, InvalidRecord) as error:
            self._doctor_problem = str(error)
            log.error("store_not_proved", reason=str(error))  # noqa: TRY400 - the reason is complete
        except (StoreError, TimeoutError) as error:
            log.warning("doctor_result_not_read", reason=str(error))
        else:
            self._doctor_problem = ""

    async def check_store(self) -> None:
        """Read the authority record where the store was silent for `SILENT_S_MAX`."""
        silent_ns = self._clock.monotonic_ns() - self._store.responded_at_ns
        if silent_ns < SILENT_S_MAX * NS_PER_S:
            return
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await self._store.head(AUTHORITY_SETTINGS)
        except TimeoutError:
            self._store.healthy = False
        except StoreError as error:  # the wrapper has recorded it
            log.warning("store_unreachable", reason=str(error))


async def require_proof(store: ObjectStore, url: str, settings: GatewaySettings) -> None:
    """Require a good result of the doctor, unless the settings skip it.

    A directory without a result is examined now: it is a local file system, and that takes a
    second. A bucket is examined by an operator, through every endpoint that it has.

    Raises:
        StoreMisconfigured: The store was never examined, or breaks a condition of acceptance.
        StoreError: The store is unreachable or refused the call.
    """
    if settings.skip_probe:
        log.warning("store_probe_skipped", url=url)
        return
    if url.startswith("file://") and await read_doctor(store) is None:
        result = await examine([store], [url], SystemIds())
        await write_result(store, result, seal_result(result), SystemClock())
    found = await require_doctor(store)
    log.info("store_proved", result_id=found.result_id, ended_at_unix_ns=found.ended_at_unix_ns)
