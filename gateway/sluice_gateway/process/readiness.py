"""Readiness: whether an upload that is sent now can be accepted.

`/readyz` makes no store call: background checks keep its facts current. A worker is ready only if
the authority record exists and a write has succeeded recently: an upload, or else a write probe. A
gateway starts only on a store that the doctor has examined with a good result.
"""

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Final

import structlog

from sluice_gateway.journal import UploadJournal
from sluice_gateway.metrics import ObservedStore
from sluice_gateway.settings import GatewaySettings
from sluice_gateway.uploads.admission import ModeWatch, RunningUploads
from sluice_protocol.clock import Clock
from sluice_protocol.errors import (
    ErrorCode,
    InvalidRecord,
    StoreDenied,
    StoreError,
    StoreMisconfigured,
)
from sluice_protocol.keys import AUTHORITY_SETTINGS, DOCTOR, digest_of
from sluice_protocol.outcomes import Applied, Exists, NotFound, ObjectInfo
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S, ObjectKey, ObjectVersion
from sluice_store.doctor import examine, read_doctor, require_doctor, seal_result, write_result
from sluice_store.port import ObjectStore
from sluice_store.replication import refuse_replica
from sluice_store.url import is_local
from sluice_web.problems import Problem, problem_of

AUTHORITY_INTERVAL_S: Final = 5.0
"""Time between two checks that the authority record exists."""
CHECK_TIMEOUT_S: Final = 5.0
PROBES: Final = f"{DOCTOR}ready/"

log = structlog.get_logger()


class WriteProbe:
    """Writes under one key per gateway name, so that killed processes leave at most one object.

    The exact object version is deleted, so a bucket with versioning does not grow either. Workers
    and gateways of one name share the key: one may delete the object of another, which is harmless.
    """

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self.key = ObjectKey(f"{PROBES}{digest_of(name.encode())}")

    async def write(self, size_bytes: int) -> bool:
        """Write and delete an object; return False if that shows nothing."""
        # Not zeros: a file system may store those without space.
        body = hashlib.shake_256(self.key.encode()).digest(size_bytes)
        outcome = await self._store.create(self.key, body)
        if isinstance(outcome, Exists):  # a killed process left it, or another worker probes now
            if not await self._remove_left(body):
                return False
            outcome = await self._store.create(self.key, body)
        if isinstance(outcome, Applied) and outcome.incarnation is not None:
            await self._delete(outcome.incarnation)
        return not isinstance(outcome, Exists)

    async def _remove_left(self, body: bytes) -> bool:
        """Remove the object of an earlier probe; without versions, write over it instead."""
        info = await self._store.head(self.key)
        if not isinstance(info, ObjectInfo):
            return True
        if info.incarnation is None:
            await self._store.overwrite(self.key, body)
            return False
        return await self._delete(info.incarnation)

    async def _delete(self, incarnation: ObjectVersion) -> bool:
        try:
            await self._store.delete(self.key, incarnation)
        except StoreDenied as error:
            log.warning("write_probe_not_deleted", key=self.key, reason=str(error))
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConditions:
    """What decides, in addition to the store, whether a worker can accept an upload."""

    running: RunningUploads
    mode: ModeWatch
    journal: UploadJournal


class Readiness:
    """What is known about the conditions of acceptance."""

    def __init__(
        self,
        *,
        store: ObservedStore,
        conditions: WorkerConditions,
        clock: Clock,
        skip_probe: bool,
        name: str,
    ) -> None:
        self._store = store
        self._probe = WriteProbe(store, name)
        self._conditions = conditions
        self._clock = clock
        self._skip_probe = skip_probe
        self._doctor_problem = ""
        self._authority_missing = False
        self._authority_checked_ns: int | None = None

    def problem(self) -> Problem | None:
        """Return why this worker should receive no uploads, or None."""
        if self._conditions.running.draining:
            return problem_of(ErrorCode.DRAINING, "this gateway is stopping")
        reason = self._reason()
        return problem_of(ErrorCode.STORE_UNAVAILABLE, reason) if reason else None

    def _reason(self) -> str:
        if self._authority_missing:
            return f"the authority record is missing: restore it, key=`{AUTHORITY_SETTINGS}`"
        return (
            self._store.health.problem(self._clock.monotonic_ns())
            or self._doctor_problem
            or self._conditions.mode.problem()
            or self._conditions.journal.problem()
        )

    @property
    def is_proved(self) -> bool:
        """Whether the newest result of the doctor was good when it was last read."""
        return not self._doctor_problem

    async def check_doctor(self) -> None:
        """Read the newest result of the doctor, which may be newer than this worker."""
        if self._skip_probe or self._authority_missing:
            return  # without the authority record the result is missing too, which shows nothing
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await require_doctor(self._store)
        except (StoreMisconfigured, InvalidRecord) as error:
            if self.is_proved:
                log.error("store_not_proved", reason=str(error))  # noqa: TRY400 - it is complete
            self._doctor_problem = str(error)
        except (StoreError, TimeoutError) as error:
            log.warning("doctor_result_not_read", reason=str(error))
        else:
            self._doctor_problem = ""

    async def check_store(self) -> None:
        """Check that the authority record exists, and probe a store without a recent write."""
        health = self._store.health
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await self._check_authority()
        except TimeoutError:
            health.readable = False
            log.warning("store_unreachable", reason="no response to a read")
        except StoreError as error:  # the wrapper has recorded it
            log.warning("store_unreachable", reason=str(error))
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await self._check_writes()
        except TimeoutError:
            health.write_problem = f"no response to a write within {CHECK_TIMEOUT_S:.0f} s"
            log.warning("store_not_writable", reason=health.write_problem)
        except StoreError as error:
            log.warning("store_not_writable", reason=str(error))

    async def _check_authority(self) -> None:
        now_ns, checked_ns = self._clock.monotonic_ns(), self._authority_checked_ns
        if checked_ns is not None and now_ns - checked_ns < AUTHORITY_INTERVAL_S * NS_PER_S:
            return
        self._authority_checked_ns = now_ns
        found = await self._store.head(AUTHORITY_SETTINGS)
        missing = isinstance(found, NotFound)
        if missing and not self._authority_missing:
            log.error("authority_missing", key=AUTHORITY_SETTINGS)
        self._authority_missing = missing

    async def _check_writes(self) -> None:
        health = self._store.health
        now_ns = self._clock.monotonic_ns()
        # In a store without its authority record a probe would create folders and objects.
        if self._authority_missing or not health.probe_due(now_ns):
            return
        health.probe_began(now_ns)
        if not await self._probe.write(health.probe_bytes):
            health.probe_inconclusive(self._clock.monotonic_ns())


async def require_proof(store: ObjectStore, url: str, settings: GatewaySettings) -> None:
    """Require a good result of the doctor, unless the settings skip it.

    A directory without a result is examined now: it is a local file system, and that takes a
    second. A bucket is examined by an operator, through every endpoint that it has.
    """
    await refuse_replica(store)  # its copied doctor results prove nothing
    if settings.skip_probe:
        log.warning("store_probe_skipped", url=url)
        return
    if is_local(url) and await read_doctor(store) is None:
        result = await examine([store], [url], SystemIds())
        await write_result(store, result, seal_result(result), SystemClock())
    found = await require_doctor(store)
    log.info("store_proved", result_id=found.result_id, ended_at_unix_ns=found.ended_at_unix_ns)
