"""What a read of the register proves about a write whose answer was lost or said "mismatch".

One rule carries all of it: a swap names the ETag that it replaces, and no ETag ever recurs, because
no two bodies are ever equal (revision and nonce). So once a read shows another ETag than the one a
try was made on, that try either has landed already or never will.

Producers. A try is told from a rival's by `writers`: id and write counter. The list keeps the 64
latest producers and survives dequeues. A producer that is not in it was pushed out only if at
least 64 writes came after its own; fewer writes than that, and it never landed.

Consumers. An epoch is one's own only with one's own owner id beside it.

Pure: no I/O, clock or randomness. Source: `docs/queue.md`, Unknown outcomes; ADR 0041.
"""

from dataclasses import dataclass
from typing import Final

from sluice_protocol.units import ETag
from sluice_queue.register import WRITERS_MAX, Register

TERM_SHIFT: Final = 32
"""A counter is a producer's life above this bit, and its landed writes of all lives below."""
_WRITES_MASK: Final = (1 << TERM_SHIFT) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRead:
    """One read of the register."""

    state: Register
    etag: ETag


def writes_of(counter: int) -> int:
    """Gives how many writes have landed in all lives."""
    return counter & _WRITES_MASK


def is_other_register(state: Register | None, producer_id: bytes, counter: int) -> bool:
    """Tells whether a register is not the one that a producer's writes landed in.

    It is gone, or begun anew: the list of writers never shrinks, so with room in it everybody who
    ever wrote is there; or it is an old copy, which knows of fewer writes. Who goes on appending
    leaves behind what waited in the lost one.
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
    """One producer's write in flight.

    Attributes:
        producer_id: Who writes.
        counter: The write counter that it puts beside its id.
        on: The ETag that it replaces.
        revision: The revision that it writes.
    """

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
    """The state written on still stands: send the same bytes again, only one of them can land."""


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """The write is not in the register and can no longer land: build it anew on what stands."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """So many producers wrote since that nobody can tell. Appending again may double: count it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerFenced:
    """Another process writes under this producer's id: stop."""

    counter: int


AppendVerdict = Committed | InFlight | NotCommitted | Evicted | ProducerFenced


def decide_append(tried: AppendAttempt, seen: RegisterRead) -> AppendVerdict:
    """Tells what became of a write from a read made after it."""
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
    """Tells whether a producer whose last landed write is `counter` may write on this state."""
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
    """Tells whether the claim stands: the epoch is the holder's only with its id beside it."""
    return (state.epoch, state.owner) == (holder.epoch, holder.owner)


@dataclass(frozen=True, slots=True)
class RetryOpen:
    """Another state stands: take the epoch after the one that it shows."""


OpenVerdict = EpochClaim | InFlight | RetryOpen


def decide_open(claim: EpochClaim, on: ETag, seen: RegisterRead) -> OpenVerdict:
    """Tells from a later read whether a consumer's opening landed."""
    if seen.etag == on:
        return InFlight()
    return claim if owns_epoch(seen.state, claim) else RetryOpen()


@dataclass(frozen=True, slots=True)
class Acked:
    """The acknowledgement stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaken:
    """Another consumer opened the lane: nothing more may be changed."""

    epoch: int


@dataclass(frozen=True, slots=True)
class RetryAck:
    """The acknowledgement is not in the register: build it on what stands."""


AckVerdict = Acked | Overtaken | RetryAck


def decide_ack(holder: EpochClaim, through: int, seen: RegisterRead) -> AckVerdict:
    """Tells from a read whether an acknowledgement stands, may be tried, or is forbidden."""
    if not owns_epoch(seen.state, holder):
        return Overtaken(epoch=seen.state.epoch)
    return Acked() if seen.state.acked_through >= through else RetryAck()
