"""Goes on as a producer of an earlier life, and fences that life off.

A producer that keeps a durable note of what it is about to append (the reconciler) appends under
one id for ever. Its write counter has two halves: the life (which process, upper 32 bits) and how
many of its writes have landed in all lives (lower 32 bits). A new life first swaps in its own
number without any entry. From then on a write of an earlier life cannot land any more: the ETag
it was made on is gone, and a later try of it meets a higher life. What stood right before that
swap is the final answer to "did my last write land?".

Source: `docs/queue.md`, Producers with a durable note; ADR 0042.
"""

from dataclasses import dataclass, replace

from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.outcomes import Applied, Mismatch, Unknown
from sluice_queue.appender import Appender
from sluice_queue.decisions import (
    TERM_SHIFT,
    AppendAttempt,
    Committed,
    Evicted,
    InFlight,
    RegisterRead,
    decide_append,
    writes_of,
)
from sluice_queue.errors import ProducerSuperseded
from sluice_queue.lane import Lane, RegisterClient, Runtime
from sluice_queue.register import WRITERS_MAX, Register, Writer
from sluice_queue.settings import ProducerSettings
from sluice_store.port import ObjectStore
from sluice_store.retry import RetryBudget


def counter_of(term: int, writes: int) -> int:
    """Gives the write counter of the `writes`-th landed write, made in life `term`."""
    return term << TERM_SHIFT | writes


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """A lane's producer in a new life.

    Attributes:
        appender: Appends in this life.
        writes: How many writes of all earlier lives have landed, for ever.
        forgotten: The register had pushed the producer out: `writes` may be too low.
    """

    appender: Appender
    writes: int
    forgotten: bool


async def take_over(
    store: ObjectStore,
    lane: Lane,
    *,
    producer_id: bytes,
    term: int,
    writes: int = 0,
    runtime: Runtime | None = None,
) -> TakenOver:
    """Fences every earlier life of a producer off and goes on as it.

    Args:
        store: Where the lane lies.
        lane: Which lane.
        producer_id: 16 bytes, the same in every life.
        term: Higher than any life before; the caller's own durable record gives it out.
        writes: How many landed writes the caller's record knows of.
        runtime: Time, ids and chance.

    Raises:
        ProducerSuperseded: A higher life stands already.
        RegisterLost: It is not the register that earlier lives wrote to.
        OutcomeUnknown: The bounds are spent.
        StoreError: The store refused.
    """
    with_tools = runtime if runtime is not None else Runtime()
    bounds = ProducerSettings()
    client = RegisterClient(store, lane, with_tools)
    budget = RetryBudget("take over", lane.key, with_tools.backoff(bounds.retry))
    fence = _Fence(client=client, producer_id=producer_id, term=term, writes=writes)
    while True:
        try:
            if await fence.step(await client.read_as(producer_id, writes, budget)):
                break
        except StoreUnavailable as error:
            await budget.wait_or_raise(error)
            continue
        await budget.wait_or_raise()
    counter = counter_of(term, fence.writes)
    appender = Appender(
        store, lane, runtime=with_tools, settings=bounds, producer=(producer_id, counter)
    )
    return TakenOver(appender=appender, writes=fence.writes, forgotten=fence.forgotten)


@dataclass(slots=True, kw_only=True)
class _Fence:
    """The swap that puts the new life into the register, once it was sent."""

    client: RegisterClient
    producer_id: bytes
    term: int
    tried: AppendAttempt | None = None
    after: Register | None = None
    writes: int = 0
    forgotten: bool = False

    async def step(self, seen: RegisterRead) -> bool:
        """Judges the swap in flight, or builds and sends one; True once it stands."""
        if self.tried is not None:
            match decide_append(self.tried, seen):
                case Committed():
                    return True
                case InFlight():
                    pass  # the same bytes again: only one of them can land
                case Evicted():
                    self.after, self.forgotten = None, True
                case _:
                    self.after = None
        if self.after is None:
            self._build(seen)
        return await self._send(seen)

    def _build(self, seen: RegisterRead) -> None:
        """Makes the state with the new life; what stood before is the last word on old writes."""
        state, before = seen.state, seen.state.writer(self.producer_id)
        if before is not None and before.counter >= counter_of(self.term, 0):
            raise ProducerSuperseded(self.client.lane.key, self.term, before.counter)
        if before is not None:
            self.writes = max(self.writes, writes_of(before.counter))
        if before is None and len(state.writers) >= WRITERS_MAX:
            self.forgotten = True
        counter = counter_of(self.term, self.writes)
        me = Writer(
            producer_id=self.producer_id,
            counter=counter,
            first_sequence=before.first_sequence if before is not None else 0,
        )
        others = tuple(one for one in state.writers if one.producer_id != self.producer_id)
        self.after = replace(
            state,
            revision=state.revision + 1,
            nonce=self.client.runtime.id_bytes(),
            writers=(me, *others)[:WRITERS_MAX],
        )
        self.tried = AppendAttempt(
            producer_id=self.producer_id,
            counter=counter,
            on=seen.etag,
            revision=self.after.revision,
        )

    async def _send(self, seen: RegisterRead) -> bool:
        if self.after is None:
            return False
        match await self.client.swap(seen, self.after):
            case Applied(date_ns=date_ns):
                self.client.observe_date(date_ns)
                return True
            case Mismatch() | Unknown():
                return False
