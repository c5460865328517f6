"""A lane of the queue: every verdict of `sluice_queue.decisions` over small registers."""

from collections.abc import Iterator
from itertools import product
from typing import Final, get_args

from deploy.pictures.drawing import Drawing, DrawnState, Step, arrow
from sluice_protocol.units import ETag
from sluice_queue.decisions import (
    Acked,
    AckVerdict,
    AppendAttempt,
    AppendVerdict,
    Committed,
    EpochClaim,
    Evicted,
    InFlight,
    NotCommitted,
    OpenVerdict,
    Overtaken,
    ProducerFenced,
    RegisterRead,
    RetryAck,
    RetryOpen,
    decide_ack,
    decide_append,
    decide_open,
    is_other_register,
)
from sluice_queue.register import WRITERS_MAX, Register, Writer

_ME: Final = b"p" * 16
_ETAGS: Final = (ETag("replaced"), ETag("later"))
_COUNTERS: Final = (1, 2, 3)
_AFTER: Final[dict[tuple[str, type], str]] = {
    ("append", Committed): "appended",
    ("append", InFlight): "append",
    ("append", NotCommitted): "append",
    ("append", Evicted): "append",
    ("append", ProducerFenced): "superseded",
    ("open", EpochClaim): "ack",
    ("open", InFlight): "open",
    ("open", RetryOpen): "open",
    ("ack", Acked): "acked",
    ("ack", RetryAck): "ack",
    ("ack", Overtaken): "fenced",
}
"""What a producer or a consumer does after each verdict."""


def _registers() -> Iterator[Register]:
    """Yield registers without, with an older, with this and with a later write of the producer."""
    others = tuple(
        Writer(producer_id=number.to_bytes(16, "big"), counter=1, first_sequence=1)
        for number in range(WRITERS_MAX)
    )
    for counter, full, revision in product((None, *_COUNTERS), (False, True), (2, 2 + WRITERS_MAX)):
        mine = (
            () if counter is None else (Writer(producer_id=_ME, counter=counter, first_sequence=1),)
        )
        writers = (*mine, *(others[len(mine) :] if full else ()))
        for epoch, owner, acked in product((1, 2), (b"c" * 16, b"d" * 16), (0, 5)):
            yield Register(
                revision=revision,
                nonce=b"n" * 16,
                epoch=epoch,
                owner=owner,
                next_sequence=9,
                acked_through=acked,
                writers=writers,
            )


def explore() -> frozenset[Step]:
    """Return every verdict about an append, a claim and an acknowledgement."""
    tried = AppendAttempt(producer_id=_ME, counter=2, on=_ETAGS[0], revision=2)
    claim = EpochClaim(epoch=1, owner=b"c" * 16)
    found: set[tuple[str, type]] = set()
    lost = is_other_register(None, _ME, 1)
    for state, etag in product(_registers(), _ETAGS):
        seen = RegisterRead(state=state, etag=etag)
        found.add(("append", type(decide_append(tried, seen))))
        found.add(("open", type(decide_open(claim, _ETAGS[0], seen))))
        found.add(("ack", type(decide_ack(claim, 5, seen))))
        lost = lost or is_other_register(state, _ME, tried.counter)
    steps = {(source, verdict.__name__, _AFTER[source, verdict]) for source, verdict in found}
    if lost:
        steps.add(("append", is_other_register.__name__, "halted"))
    return frozenset(steps)


VERDICTS: Final = frozenset(
    (source, verdict)
    for source, union in (("append", AppendVerdict), ("open", OpenVerdict), ("ack", AckVerdict))
    for verdict in get_args(union)
)
"""Each verdict that the types allow; a test compares them with the explored ones."""


DRAWING: Final = Drawing(
    name="queue-lane",
    title="A lane of the queue",
    summary=(
        "What a producer and a consumer conclude from a read of the register after a swap whose"
        " outcome is unknown or a mismatch. No ETag recurs, so a read decides."
    ),
    states=(
        DrawnState(name="append", title="producer: append entries by a swap", kind="action"),
        DrawnState(name="appended", title="the entries have sequences", kind="good"),
        DrawnState(name="superseded", title="the producer stops", kind="bad"),
        DrawnState(
            name="halted", title="the lane is halted", kind="bad", note="until sluice rebuild"
        ),
        DrawnState(name="open", title="consumer: raise the epoch by a swap", kind="action"),
        DrawnState(name="ack", title="consumer: acknowledge by a swap", kind="action"),
        DrawnState(name="acked", title="the entries are acknowledged", kind="good"),
        DrawnState(name="fenced", title="the consumer stops; nothing changed", kind="bad"),
    ),
    edges=(
        arrow("append", "appended", "its counter is in the register", "Committed"),
        arrow("append", "append", "the replaced state is current: same bytes again", "InFlight"),
        arrow("append", "append", "not applied: build it on the newer state", "NotCommitted"),
        arrow("append", "append", "too many later writes: again, and counted", "Evicted"),
        arrow("append", "superseded", "a later counter: another process", "ProducerFenced"),
        arrow("append", "halted", "missing, new or an old copy", "is_other_register"),
        arrow("open", "ack", "epoch and owner are its own", "EpochClaim"),
        arrow("open", "open", "the replaced state is current: same bytes again", "InFlight"),
        arrow("open", "open", "another state: claim the next epoch", "RetryOpen"),
        arrow("ack", "acked", "the register contains it", "Acked"),
        arrow("ack", "ack", "not yet: build it on the newer state", "RetryAck"),
        arrow("ack", "fenced", "another epoch or owner", "Overtaken"),
    ),
    explore=explore,
)
