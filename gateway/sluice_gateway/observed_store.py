"""The store of a worker, with its calls counted, and what they show: can it be read and written.

A read proves nothing about writes: a full disk and a deleted directory can be read. So both are
recorded separately, and only a successful write shows that uploads can be stored.
"""

from typing import Final

from sluice_gateway.metrics import GatewayMetrics
from sluice_protocol.clock import Clock
from sluice_protocol.errors import ChecksumRefused, StoreDenied, StoreError, StoreMisconfigured
from sluice_protocol.outcomes import Applied, Found, Unknown
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_store.port import ObjectStore
from sluice_store.wrapped import WrappedStore

PROBE_AFTER_S: Final = 30.0
"""A store without a successful write for this long is probed with one write."""
PROBE_AGAIN_S: Final = 5.0
"""Time between two probes while writes fail."""
WRITE_AGE_S_MAX: Final = 2 * PROBE_AFTER_S + PROBE_AGAIN_S
"""The last successful write of a ready worker is not older than this."""
PROBE_BYTES: Final = 64
_WRITES: Final = frozenset({"create", "replace", "overwrite"})
_READS: Final = frozenset({"get", "head", "versioning"})


class StoreHealth:
    """The newest results of reads and writes.

    Attributes:
        readable: Whether the last read succeeded.
        write_problem: Why writes fail; empty while they succeed.
        probe_bytes: The size of a write that shows that the store accepts uploads.
    """

    def __init__(self) -> None:
        self.readable = True
        self.write_problem = ""
        self.probe_bytes = PROBE_BYTES
        self._wrote_at_ns: int | None = None
        self._probed_at_ns: int | None = None

    def wrote(self, outcome: object, size_bytes: int, now_ns: int) -> None:
        """Record the outcome of a write that was sent.

        A store that has no space for a large body may have space for a small one, so a write that
        is smaller than a refused body proves nothing.
        """
        if isinstance(outcome, Unknown):
            self.write_problem = f"the outcome of a write is unknown, reason=`{outcome.reason}`"
        elif isinstance(outcome, Applied) and size_bytes >= self.probe_bytes:
            self._succeed(now_ns)

    def write_failed(self, error: StoreError, size_bytes: int, *, overwrites: bool) -> None:
        """Record a write that the store refused, or that was not sent."""
        if isinstance(error, ChecksumRefused) or (overwrites and isinstance(error, StoreDenied)):
            return  # the body is damaged; a policy may forbid to overwrite: uploads can succeed
        self.write_problem = str(error)
        if isinstance(error, StoreMisconfigured):
            self.probe_bytes = max(self.probe_bytes, size_bytes)

    def probe_began(self, now_ns: int) -> None:
        """Record the start of a probe."""
        self._probed_at_ns = now_ns

    def probe_inconclusive(self, now_ns: int) -> None:
        """Record a probe that could not write and found no fault; an earlier fault remains."""
        if not self.write_problem:
            self._wrote_at_ns = now_ns

    def probe_due(self, now_ns: int) -> bool:
        """Return True if a probe must show whether writes succeed."""
        if self._probed_at_ns is not None and _age_s(self._probed_at_ns, now_ns) < PROBE_AGAIN_S:
            return False
        if self.write_problem or self._wrote_at_ns is None:
            return True
        return _age_s(self._wrote_at_ns, now_ns) >= PROBE_AFTER_S

    def problem(self, now_ns: int) -> str:
        """Return why an upload cannot be stored now; empty if it can."""
        if not self.readable:
            return "the last read of the store failed"
        if self.write_problem:
            return f"the last write to the store failed: {self.write_problem}"
        if self._wrote_at_ns is None or _age_s(self._wrote_at_ns, now_ns) > WRITE_AGE_S_MAX:
            return "no recent write to the store has succeeded"
        return ""

    def _succeed(self, now_ns: int) -> None:
        self.write_problem, self.probe_bytes, self._wrote_at_ns = "", PROBE_BYTES, now_ns


def _age_s(at_ns: int, now_ns: int) -> float:
    return (now_ns - at_ns) / NS_PER_S


class ObservedStore(WrappedStore):
    """A store whose calls are counted and timed.

    Attributes:
        health: What the calls show about the store.
        answered_ns: The store's clock in the newest response; 0 before the first.
    """

    def __init__(self, inner: ObjectStore, metrics: GatewayMetrics, clock: Clock) -> None:
        super().__init__(inner, clock)
        self._metrics = metrics
        self.health = StoreHealth()
        self.answered_ns = UnixNs(0)

    def ended(self, op: str, outcome: object, size_bytes: int, started_ns: int) -> None:
        """Count and time the call, and record what it shows about the store."""
        failed = isinstance(outcome, BaseException)
        result = "error" if failed else type(outcome).__name__.lower()
        self._metrics.store_requests.labels(op, result).inc()
        if op == "list":
            return
        now_ns = self._clock.monotonic_ns()
        self._metrics.store_seconds.labels(op).observe((now_ns - started_ns) / 1e9)
        if not failed:
            answer = outcome.info if isinstance(outcome, Found) else outcome
            self.answered_ns = getattr(answer, "date_ns", self.answered_ns)
        if op in _WRITES:
            if isinstance(outcome, StoreError):
                self.health.write_failed(outcome, size_bytes, overwrites=op == "overwrite")
            elif not failed:
                self.health.wrote(outcome, size_bytes, now_ns)
        elif op in _READS and (isinstance(outcome, StoreError) or not failed):
            self.health.readable = not failed
