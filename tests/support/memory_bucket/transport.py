"""The fake behind the port: the S3 adapter over a bucket in memory, with the faults of a plan."""

import dataclasses
import random
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar, assert_never

from support.memory_bucket.bucket import MemoryBucket, S3Reply
from support.memory_bucket.faults import Call, Crashed, Fault, FaultPlan, NoFaults

from sluice_protocol.clock import Clock
from sluice_protocol.errors import StoreDenied, StoreUnavailable
from sluice_protocol.exchange_verdicts import NoResponse, NotSent, Responded
from sluice_protocol.outcomes import UnknownReason
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_store.port import (
    IncarnationPage,
    ListedIncarnation,
    ListedObject,
    ListPage,
    Versioning,
)
from sluice_store.replication import ReplicationRules
from sluice_store.s3.exchange import S3Exchange, S3Request
from sluice_store.s3.store import S3Store

_T = TypeVar("_T", ListedObject, ListedIncarnation)

LATE_CALLS: Final = 3
"""A call that is applied late is applied this many calls after its own."""
CLOCK_STEP_NS: Final = -90 * NS_PER_S


@dataclass(slots=True)
class _LateCall:
    """A call that has timed out for the client and that the store applies later."""

    due: int
    apply: Callable[[], S3Reply]


class MemoryTransport:
    """Sends requests to a bucket in memory: one exchange per request, as on a real network."""

    def __init__(self, bucket: MemoryBucket, plan: FaultPlan, clock: Clock, prefix: str) -> None:
        """Use a bucket, a plan of faults, and a clock whose sleep lets other tasks run."""
        self.bucket = bucket
        self._plan = plan
        self._clock = clock
        self._prefix = prefix
        self._calls = 0
        self._late: list[_LateCall] = []

    @property
    def calls(self) -> int:
        """The number of calls made, including those in which the process died."""
        return self._calls

    async def send(self, request: S3Request, body: bytes = b"") -> S3Exchange:
        conditional = bool({"If-Match", "If-None-Match"} & set(request.headers))
        call = self._begin(request.method, request.key, conditional=conditional)
        await self._clock.sleep(0)
        exchange = self._happen(
            self._plan.fault_of(call), lambda: perform(self.bucket, request, body)
        )
        await self._clock.sleep(0)
        return exchange

    def settle(self) -> None:
        """Apply every late call now."""
        late, self._late = self._late, []
        for one in late:
            one.apply()

    def begin_listing(self, prefix: str) -> None:
        """Count a page of a listing as a call, and raise its fault if it has one."""
        fault = self._plan.fault_of(self._begin("LIST", self._prefix + prefix, conditional=False))
        if fault in {Fault.CRASH_BEFORE, Fault.CRASH_AFTER}:
            raise Crashed
        if fault is Fault.DENIED:
            raise StoreDenied("list", prefix, "access denied: check credentials and policy")
        if fault is Fault.CLOCK_JUMP:
            self.bucket.clock_offset_ns += CLOCK_STEP_NS
        elif fault is not None:
            raise StoreUnavailable("list", prefix, f"no response: try again ({fault})")

    def _begin(self, method: str, key: str, *, conditional: bool) -> Call:
        for one in [one for one in self._late if one.due <= self._calls]:
            self._late.remove(one)
            one.apply()
        call = Call(
            number=self._calls,
            method=method,
            key=key.removeprefix(self._prefix),
            conditional=conditional,
        )
        self._calls += 1
        return call

    def _happen(  # noqa: PLR0911 - a line per fault, mypy checks that all are there
        self, fault: Fault | None, apply: Callable[[], S3Reply]
    ) -> S3Exchange:
        match fault:
            case None:
                return _answered(apply())
            case Fault.NOT_SENT:
                return S3Exchange(seen=NotSent(detail=fault), detail=fault)
            case Fault.TIMEOUT_BEFORE:
                return _lost(UnknownReason.TIMEOUT)
            case Fault.RESET_BEFORE:
                return _lost(UnknownReason.RESET)
            case Fault.TIMEOUT_AFTER:
                apply()
                return _lost(UnknownReason.TIMEOUT)
            case Fault.RESET_AFTER | Fault.TRUNCATED:
                apply()
                return _lost(UnknownReason.RESET)
            case Fault.APPLIED_LATE:
                self._late.append(_LateCall(due=self._calls + LATE_CALLS, apply=apply))
                return _lost(UnknownReason.TIMEOUT)
            case Fault.CONFLICT:
                return self._refusal(409, "ConditionalRequestConflict")
            case Fault.PRECONDITION:
                return self._refusal(412, "PreconditionFailed")
            case Fault.SLOW_DOWN:
                return self._refusal(503, "SlowDown")
            case Fault.ERROR_AFTER:
                apply()
                return self._refusal(500, "InternalError")
            case Fault.DENIED:
                return self._refusal(403, "AccessDenied")
            case Fault.CLOCK_JUMP:
                self.bucket.clock_offset_ns += CLOCK_STEP_NS
                return _answered(apply())
            case Fault.CRASH_BEFORE:
                raise Crashed
            case Fault.CRASH_AFTER:
                apply()
                raise Crashed
            case _:
                assert_never(fault)

    def _refusal(self, status: int, code: str) -> S3Exchange:
        return _answered(self.bucket.refusal(status, code))


def perform(bucket: MemoryBucket, request: S3Request, body: bytes) -> S3Reply:
    incarnation = dict(request.query).get("versionId")
    if request.method == "PUT":
        headers = {**request.headers, "x-amz-content-sha256": request.sha256}
        return bucket.put(request.key, body, headers)
    if request.method == "DELETE":
        return bucket.delete(request.key, request.headers, incarnation)
    if not request.key:
        return bucket.refusal(200, "")
    reply = bucket.get(request.key, request.headers, incarnation)
    if request.method == "HEAD":
        return S3Reply(status=reply.status, code=reply.code, headers=reply.headers)
    return reply


def _answered(reply: S3Reply) -> S3Exchange:
    return S3Exchange(
        seen=Responded(status=reply.status, code=reply.code),
        headers=reply.headers,
        body=reply.body,
        detail=f"{reply.status} {reply.code}".strip(),
    )


def _lost(reason: UnknownReason) -> S3Exchange:
    return S3Exchange(seen=NoResponse(reason=reason, detail=reason), detail=reason)


class MemoryPages:
    """Listings and settings of a bucket in memory, with keys relative to the prefix."""

    def __init__(self, transport: MemoryTransport, prefix: str) -> None:
        """Use a transport, whose faults apply to listings too."""
        self._transport = transport
        self._prefix = prefix

    @property
    def name(self) -> str:
        """The bucket's name."""
        return self._transport.bucket.name

    async def read_versioning(self) -> Versioning:
        """Read the bucket's versioning."""
        self._transport.begin_listing("")
        return self._transport.bucket.versioning

    async def read_replication(self, bucket: str) -> ReplicationRules | None:
        """Return the rules that the test set for a bucket; None where it set none."""
        self._transport.begin_listing("")
        return self._transport.bucket.replication.get(bucket)

    async def locks_by_default(self) -> bool:
        """Return True if the bucket has a retention, whether or not it keeps it."""
        self._transport.begin_listing("")
        return self._transport.bucket.retention_ns > 0

    async def objects(
        self, prefix: str, start_after: str, end_at: str | None
    ) -> AsyncIterator[ListPage]:
        """Yield pages of current objects, each read when it is needed."""
        bucket, after = self._transport.bucket, start_after
        while True:
            self._transport.begin_listing(prefix)
            rows = bucket.objects(self._prefix + prefix, self._prefix + after if after else "")
            page, last = self._cut(rows, end_at)
            yield ListPage(objects=page, date_ns=bucket.now_ns(), last=last)
            if last:
                return
            after = page[-1].key

    async def incarnations(
        self, prefix: str, start_after: str, end_at: str | None
    ) -> AsyncIterator[IncarnationPage]:
        """Yield pages of versions and markers; all versions of a key are on one page here."""
        bucket, after = self._transport.bucket, start_after
        while True:
            self._transport.begin_listing(prefix)
            rows = bucket.incarnations(self._prefix + prefix, self._prefix + after if after else "")
            page, last = self._cut(rows, end_at)
            yield IncarnationPage(incarnations=page, date_ns=bucket.now_ns(), last=last)
            if last:
                return
            after = page[-1].key

    def _cut(self, rows: Iterable[_T], end_at: str | None) -> tuple[tuple[_T, ...], bool]:
        page: list[_T] = []
        for row in rows:
            key = row.key.removeprefix(self._prefix)
            if end_at is not None and key.encode() > end_at.encode():
                break
            full = len(page) >= self._transport.bucket.page_keys
            if full and key != page[-1].key:
                return tuple(page), False
            page.append(replace_key(row, key))
        return tuple(page), True


def replace_key(row: _T, key: str) -> _T:
    """Return a listed row with another key."""
    return dataclasses.replace(row, key=ObjectKey(key))


def open_memory_store(
    bucket: MemoryBucket | None = None,
    *,
    plan: FaultPlan | None = None,
    clock: Clock | None = None,
    prefix: str = "",
) -> tuple[S3Store, MemoryTransport]:
    """Return a store over a bucket in memory, and the transport that counts its calls.

    Several stores may share one bucket, each with a separate plan, as two gateways do.

    Args:
        bucket: The bucket; a new one when None.
        plan: The faults; none when None.
        clock: Time, and the sleep that lets other tasks run between a call and its response.
        prefix: The deployment's prefix, empty or ending in a slash.
    """
    clock = clock or SystemClock()
    bucket = bucket or MemoryBucket(clock=clock, rng=random.Random(0))
    transport = MemoryTransport(bucket, plan or NoFaults(), clock, prefix)
    return S3Store(transport, MemoryPages(transport, prefix), prefix), transport
