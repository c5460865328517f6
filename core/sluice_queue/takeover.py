"""Takeover of a producer by a new process, which fences the earlier process.

A producer with a durable append intent (the reconciler's lane owner) appends under one permanent
id. Its write counter has two halves: the owner term (upper 32 bits) and the number of its applied
writes in all terms (lower 32 bits). A new term first swaps in its number without any entry. From
then on no write of an earlier term can be applied: the ETag that it replaces is no longer current,
and a later try finds a higher term. The state right before that swap is the final answer to "was my
last write applied?".

Source: `docs/queue.md`, Producers with an append intent; ADR 24.
"""

from dataclasses import dataclass, replace

from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.outcomes import Applied, Mismatch, Unknown
from sluice_queue.appender import Appender
from sluice_queue.errors import ProducerSuperseded, refuse_other_layout
from sluice_queue.lane import Lane
from sluice_queue.register import (
    TERM_SHIFT,
    WRITERS_MAX,
    AppendAttempt,
    Committed,
    Evicted,
    InFlight,
    Register,
    RegisterRead,
    Writer,
    decide_append,
    writes_of,
)
from sluice_queue.register_client import SWAP_RETRY, RegisterClient, Runtime
from sluice_store.port import ObjectStore
from sluice_store.retry import RetryBudget


def counter_of(term: int, writes: int) -> int:
    """Return the write counter of the `writes`-th applied write, made in term `term`."""
    return term << TERM_SHIFT | writes


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """A lane's producer in a new term.

    `writes` is the final number of applied writes of all earlier terms. It may be too low if the
    register had evicted the producer, as `forgotten` states.
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
    """Fence every earlier term of a producer and continue as that producer.

    `term` is higher than any earlier one; the caller's durable record assigns it and contains
    `writes`, the number of applied writes.
    """
    with_tools = runtime if runtime is not None else Runtime()
    client = RegisterClient(store, lane, with_tools)
    retries = RetryBudget("take over", lane.key, with_tools.backoff(SWAP_RETRY))
    fence = _Fence(client=client, producer_id=producer_id, term=term, writes=writes)
    while True:
        try:
            if await fence.step(await client.read_as(producer_id, writes, retries)):
                break
        except StoreUnavailable as error:
            await retries.wait_or_raise(error)
            continue
        await retries.wait_or_raise()
    counter = counter_of(term, fence.writes)
    appender = Appender(store, lane, runtime=with_tools, producer=(producer_id, counter))
    return TakenOver(appender=appender, writes=fence.writes, forgotten=fence.forgotten)


@dataclass(slots=True, kw_only=True)
class _Fence:
    """The swap that writes the new term into the register, once it is sent."""

    client: RegisterClient
    producer_id: bytes
    term: int
    tried: AppendAttempt | None = None
    after: Register | None = None
    writes: int = 0
    forgotten: bool = False

    async def step(self, seen: RegisterRead) -> bool:
        """Decide the swap in flight, or build and send one; return True once it is applied."""
        if self.tried is not None:
            match decide_append(self.tried, seen):
                case Committed():
                    return True
                case InFlight():
                    # The same bytes again: only one of the two writes can be applied.
                    pass
                case Evicted():
                    self.after, self.forgotten = None, True
                case _:
                    self.after = None
        if self.after is None:
            self._build(seen)
        return await self._send(seen)

    def _build(self, seen: RegisterRead) -> None:
        """Build the state with the new term; the state before it is final for old writes."""
        state, before = seen.state, seen.state.writer(self.producer_id)
        if before is not None and before.counter >= counter_of(self.term, 0):
            raise ProducerSuperseded(self.client.lane.key, self.term, before.counter)
        refuse_other_layout(self.client.lane.key, self.client.lane.layout, state.layout)
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
