"""What a read of the register proves about a write whose response was lost or was "mismatch".

All decisions follow from one rule. A swap names the ETag that it replaces, and no ETag ever recurs,
because no two bodies are ever equal (revision and nonce). If a read returns another ETag than a
write replaces, the write was applied already or never will be.

Producers. The `writers` of the register distinguish a write from a rival's by id and write counter.
The list contains the 64 latest producers and survives dequeues. A producer is evicted from it only
by at least 64 later writes. If there were fewer, its write was never applied.

Consumers. An epoch belongs to a consumer only together with its owner id.

Pure: no I/O, clock or randomness. Source: `docs/queue.md`, Unknown outcomes; ADR 23.
"""

from dataclasses import dataclass
from typing import Final

from sluice_protocol.units import ETag
from sluice_queue.register import WRITERS_MAX, Register

TERM_SHIFT: Final = 32
"""A counter has the producer's term above this bit, and its applied writes of all terms below."""
_WRITES_MASK: Final = (1 << TERM_SHIFT) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRead:
    """A register as read: its state and its ETag."""

    state: Register
    etag: ETag


def writes_of(counter: int) -> int:
    """Return how many writes have been applied in all terms."""
    return counter & _WRITES_MASK


def is_other_register(state: Register | None, producer_id: bytes, counter: int) -> bool:
    """Return True if a producer's writes were applied to another register.

    Such a register is missing, new or an old copy. A new one has room in its list of writers, which
    never shrinks, and does not list the producer. An old copy has fewer writes. A producer that
    continued to append would lose the pending entries of the old register.
    """
    if writes_of(counter) == 0:
        return False
    if state is None:
        return True
    me = state.writer(producer_id)
    if me is None:
        return len(state.writers) < WRITERS_MAX
    return writes_of(me.counter) < writes_of(counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAttempt:
    """One producer's write in flight: it replaces the ETag `on` and writes `revision`."""

    producer_id: bytes
    counter: int
    on: ETag
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The write is in the register."""

    first_sequence: int


@dataclass(frozen=True, slots=True)
class InFlight:
    """The replaced state is still current: send the same bytes again; one write is applied."""


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """The write was not applied and never will be: build it again from this state."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """Too many later writes to decide. A repeated append may add the entries twice: count it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerFenced:
    """Another process writes under this producer's id: stop."""

    counter: int


AppendVerdict = Committed | InFlight | NotCommitted | Evicted | ProducerFenced


def decide_append(tried: AppendAttempt, seen: RegisterRead) -> AppendVerdict:
    """Decide the outcome of a write from a read made after it."""
    if seen.etag == tried.on:
        return InFlight()
    mine = seen.state.writer(tried.producer_id)
    if mine is None:
        writes_since = seen.state.revision - tried.revision
        full = len(seen.state.writers) >= WRITERS_MAX
        return Evicted() if full and writes_since >= WRITERS_MAX else NotCommitted()
    if mine.counter == tried.counter:
        return Committed(first_sequence=mine.first_sequence)
    if mine.counter > tried.counter:
        return ProducerFenced(counter=mine.counter)
    return NotCommitted()


def may_append(seen: RegisterRead, producer_id: bytes, counter: int) -> ProducerFenced | None:
    """Return `ProducerFenced` if this state has a later write of the producer than `counter`."""
    mine = seen.state.writer(producer_id)
    if mine is not None and mine.counter > counter:
        return ProducerFenced(counter=mine.counter)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochClaim:
    """A consumer's claim: the epoch that it opened, under its own id."""

    epoch: int
    owner: bytes


def owns_epoch(state: Register, holder: EpochClaim) -> bool:
    """Return True if the register has the epoch and the owner of the claim."""
    return (state.epoch, state.owner) == (holder.epoch, holder.owner)


@dataclass(frozen=True, slots=True)
class RetryOpen:
    """Another state is current: claim the epoch after the one in it."""


OpenVerdict = EpochClaim | InFlight | RetryOpen


def decide_open(claim: EpochClaim, on: ETag, seen: RegisterRead) -> OpenVerdict:
    """Decide from a later read whether a consumer's claim was applied."""
    if seen.etag == on:
        return InFlight()
    return claim if owns_epoch(seen.state, claim) else RetryOpen()


@dataclass(frozen=True, slots=True)
class Acked:
    """The register contains the acknowledgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaken:
    """Another consumer opened the lane: no further change is allowed."""

    epoch: int


@dataclass(frozen=True, slots=True)
class RetryAck:
    """The acknowledgement is not in the register: build it from this state."""


AckVerdict = Acked | Overtaken | RetryAck


def decide_ack(holder: EpochClaim, through: int, seen: RegisterRead) -> AckVerdict:
    """Decide from a read whether an acknowledgement is applied, may be tried, or is forbidden."""
    if not owns_epoch(seen.state, holder):
        return Overtaken(epoch=seen.state.epoch)
    return Acked() if seen.state.acked_through >= through else RetryAck()
