"""Write the state machines into their pages as Mermaid: `python -m deploy.state_machines`.

Each machine is explored by running the code that decides. Its diagram adds the words for readers,
and is written only if its arrows are the steps that the code takes.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Final, get_args

from msgspec.structs import replace

from deploy.page_sections import split_section
from sluice_agent.sending.foreign_responses import BatchRefusals
from sluice_agent.sending.upload_decisions import (
    ConnectionFailure,
    DropResolved,
    Forget,
    GatewayResponse,
    NoGatewayResponse,
    Park,
    SendAgain,
    StopSending,
    decide_reaction,
)
from sluice_agent.spool.parked import drop_parked, retry_parked
from sluice_protocol.acceptance import (
    BlobHashed,
    ManifestRead,
    ManifestUnreadable,
    Observation,
    Offer,
    OverwriteRefused,
    Progress,
    RetriesExhausted,
    StoreRequest,
    begin,
    step,
)
from sluice_protocol.conflicts import ACCEPT_EXISTING
from sluice_protocol.errors import BadUsage, ErrorCode, InvariantViolated, status_of
from sluice_protocol.identity import Identity
from sluice_protocol.outcomes import Applied, Exists, NotFound, ObjectInfo, Unknown, UnknownReason
from sluice_protocol.units import Digest, ETag, ObjectKey, UnixNs
from sluice_queue.register import (
    WRITERS_MAX,
    Acked,
    AckVerdict,
    AppendAttempt,
    AppendVerdict,
    Committed,
    Descriptor,
    EpochClaim,
    Evicted,
    InFlight,
    NotCommitted,
    OpenVerdict,
    Overtaken,
    ProducerFenced,
    Register,
    RegisterRead,
    RetryAck,
    RetryOpen,
    Writer,
    decide_ack,
    decide_append,
    decide_open,
    is_other_register,
)
from sluice_reconciler.http_queue import LaneLeases

Step = tuple[str, str, str]
"""A state, the event in it, and the next state."""
Arrow = tuple[str, str, str, frozenset[str]]
"""A state, the next state, the words of the diagram, and the events; no events out of a choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A state machine and its diagram.

    Attributes:
        page: Its page in `docs/`, with the marks `<!-- NAME: begin -->` and `end`.
        states: The words for each state, by its name in the steps.
        choice: A state that only the diagram has. The code goes from the states with an arrow to it
            directly to some of those that it has an arrow to.
    """

    name: str
    page: str
    states: dict[str, str]
    arrows: tuple[Arrow, ...]
    explore: Callable[[], frozenset[Step]]
    choice: str = ""


def _arrow(source: str, target: str, words: str, *events: str) -> Arrow:
    return source, target, words, frozenset(events)


def differences(machine: Machine) -> list[str]:
    """Return how the diagram and the code differ; empty if they agree."""
    real = machine.explore()
    chosen = [one[1] for one in machine.arrows if one[0] == machine.choice]
    drawn: set[Step] = set()
    wrong: list[str] = []
    for source, target, words, events in machine.arrows:
        if source == machine.choice:
            continue
        targets = chosen if target == machine.choice else [target]
        for event in sorted(events):
            steps = {(source, event, one) for one in targets}
            drawn |= steps
            if len(steps & real) < min(len(steps), 2):
                wrong.append(f"not in the code: {source}, {event}, {target}")
        if not events:
            wrong.append(f"no event: {source}, {words}, {target}")
    return wrong + [f"not drawn: {', '.join(one)}" for one in sorted(real - drawn)]


def render(machine: Machine) -> str:
    """Return the Mermaid text of a machine; refuse a diagram that differs from the code."""
    found = differences(machine)
    if found:
        raise BadUsage(f"diagram and code differ: {'; '.join(found)}, machine=`{machine.name}`")
    lines = [f'    state "{words}" as {name}' for name, words in machine.states.items()]
    if machine.choice:
        lines.append(f"    state {machine.choice} <<choice>>")
    lines += [f"    {source} --> {to} : {words}" for source, to, words, _ in machine.arrows]
    return "\n```mermaid\nstateDiagram-v2\n" + "\n".join(lines) + "\n```\n"


# The acceptance of an upload

_WINDOW_NS: Final = 100
_TIMES: Final = (UnixNs(0), UnixNs(2 * _WINDOW_NS))
"""Two moments that are further apart than a proof is valid."""
_OWN, _OTHER = Digest("a" * 64), Digest("b" * 64)
_ATTEMPTS: Final = ("this", "another")
_OFFER: Final = Offer(
    identity=Identity(agent_id="agent", boot_id="boot", seq_start=1, seq_end=1),
    digest=_OWN,
    size_bytes=1,
    attempt_id=_ATTEMPTS[0],
    window_ns=_WINDOW_NS,
)


def _infos() -> Iterator[ObjectInfo]:
    for size, sha256, modified, date in product((1, 2), (_OWN, _OTHER, None), _TIMES, _TIMES):
        yield ObjectInfo(
            key=ObjectKey("key"),
            size_bytes=size,
            etag=ETag("etag"),
            incarnation=None,
            last_modified_ns=modified,
            sha256=sha256,
            date_ns=date,
        )


def _observations() -> Iterator[Observation]:
    for date in _TIMES:
        yield Applied(etag=ETag("etag"), incarnation=None, date_ns=date)
        yield Exists(date_ns=date)
        yield NotFound(date_ns=date)
    for info in _infos():
        yield info
        for digest in (_OWN, _OTHER):
            yield BlobHashed(info=info, digest=digest)
    for digest, attempt, modified in product((_OWN, _OTHER), _ATTEMPTS, _TIMES):
        yield ManifestRead(
            digest=digest,
            attempt_id=attempt,
            accepted_at_ns=modified,
            last_modified_ns=modified,
            date_ns=modified,
        )
    yield ManifestUnreadable(reason="reason")
    yield OverwriteRefused(reason="reason")


def _explore_acceptance() -> frozenset[Step]:
    """Return every step over all reachable states."""
    seen = tuple(_observations())
    steps: set[Step] = set()
    reached: set[Progress] = set()
    waiting: list[Progress] = []
    for event, sent_before in (("first", False), ("again", True)):
        now = begin(replace(_OFFER, sent_before=sent_before))
        steps.add(("start", event, type(now.action).__name__))
        waiting.append(now)
    while waiting:
        now = waiting.pop()
        now = replace(now, tries=0, gone=min(now.gone, 1))  # so the number of states is finite
        if now in reached or not isinstance(now.action, StoreRequest):
            continue
        reached.add(now)
        _check_unknown(now)
        for one in seen:
            try:
                after = step(now, one)
            except InvariantViolated:
                continue  # not an observation of this action
            steps.add((type(now.action).__name__, type(one).__name__, type(after.action).__name__))
            waiting.append(after)
    return frozenset(steps)


def _check_unknown(now: Progress) -> None:
    """Check that an unknown outcome repeats the request, up to a limit."""
    after = step(now, Unknown(reason=UnknownReason.TIMEOUT))
    last = step(replace(now, tries=10_000), Unknown(reason=UnknownReason.TIMEOUT))
    if after.action != now.action or not isinstance(last.action, RetriesExhausted):
        raise InvariantViolated(f"an unknown outcome does not repeat {now.action!r}")


ACCEPTANCE: Final = Machine(
    name="acceptance",
    page="protocol.md",
    choice="proved",
    states={
        "start": "an upload arrives",
        "CreateBlob": "create the blob",
        "HeadBlob": "read the metadata of the blob",
        "HashBlob": "read the blob and hash it",
        "OverwriteBlob": "write the blob again",
        "CreateManifest": "create the manifest",
        "ReadManifest": "read the manifest",
        "CreateQuarantine": "create the quarantine manifest",
        "HeadQuarantine": "read when it appeared",
        "Accepted": "200 accepted",
        "Conflict": "409 identity_conflict",
        "Corrupt": "500 corrupt_object",
        "RetriesExhausted": "503 outcome_unknown",
    },
    arrows=(
        _arrow("start", "CreateBlob", "first time", "first"),
        _arrow("start", "ReadManifest", "sent before", "again"),
        _arrow("CreateBlob", "proved", "created", "Applied"),
        _arrow("CreateBlob", "HeadBlob", "exists", "Exists"),
        _arrow("HeadBlob", "proved", "correct, and young enough", "ObjectInfo"),
        _arrow("HeadBlob", "HashBlob", "without a checksum", "ObjectInfo"),
        _arrow("HeadBlob", "ReadManifest", "correct, but old", "ObjectInfo"),
        _arrow("HeadBlob", "OverwriteBlob", "wrong, or missing again", "ObjectInfo", "NotFound"),
        _arrow("HeadBlob", "CreateBlob", "missing", "NotFound"),
        _arrow("HashBlob", "proved", "correct, and young enough", "BlobHashed"),
        _arrow("HashBlob", "ReadManifest", "correct, but old", "BlobHashed"),
        _arrow("HashBlob", "OverwriteBlob", "wrong", "BlobHashed"),
        _arrow("HashBlob", "HeadBlob", "missing", "NotFound"),
        _arrow("OverwriteBlob", "proved", "written", "Applied"),
        _arrow("OverwriteBlob", "Corrupt", "refused, and the blob is wrong", "OverwriteRefused"),
        _arrow("OverwriteBlob", "RetriesExhausted", "refused, and it is old", "OverwriteRefused"),
        _arrow("proved", "CreateManifest", "no manifest is known"),
        _arrow("proved", "Accepted", "manifest of this hash, in time"),
        _arrow("proved", "CreateQuarantine", "manifest of another hash"),
        _arrow("proved", "Conflict", "the same, recorded in time"),
        _arrow("proved", "CreateBlob", "not in time, prove again"),
        _arrow("CreateManifest", "proved", "created", "Applied"),
        _arrow("CreateManifest", "ReadManifest", "exists", "Exists"),
        _arrow("ReadManifest", "proved", "found, and the blob is proved", "ManifestRead"),
        _arrow("ReadManifest", "HeadBlob", "found, of this hash", "ManifestRead"),
        _arrow(
            "ReadManifest", "CreateBlob", "of another hash, or missing", "ManifestRead", "NotFound"
        ),
        _arrow("ReadManifest", "OverwriteBlob", "late after the blob", "ManifestRead", "NotFound"),
        _arrow("ReadManifest", "CreateManifest", "missing, and the blob is proved", "NotFound"),
        _arrow("ReadManifest", "Corrupt", "not a manifest", "ManifestUnreadable"),
        _arrow("CreateQuarantine", "proved", "created", "Applied"),
        _arrow("CreateQuarantine", "HeadQuarantine", "exists", "Exists"),
        _arrow("HeadQuarantine", "proved", "found", "ObjectInfo"),
        _arrow("HeadQuarantine", "CreateQuarantine", "missing", "NotFound"),
    ),
    explore=_explore_acceptance,
)


# A lane of the queue

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
LANE_VERDICTS: Final = frozenset(
    (source, verdict.__name__)
    for source, union in (("append", AppendVerdict), ("open", OpenVerdict), ("ack", AckVerdict))
    for verdict in get_args(union)
)
"""Each verdict that the types allow; a test compares them with the explored ones."""


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
        for epoch, owner, acked in product((1, 2), (b"c" * 16, b"d" * 16), (0, 5)):
            yield Register(
                revision=revision,
                nonce=b"n" * 16,
                epoch=epoch,
                owner=owner,
                next_sequence=9,
                acked_through=acked,
                writers=(*mine, *(others[len(mine) :] if full else ())),
            )


def _explore_lane() -> frozenset[Step]:
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


LANE: Final = Machine(
    name="queue-lane",
    page="protocol.md",
    states={
        "append": "producer appends entries by a swap",
        "appended": "the entries have sequences",
        "superseded": "the producer stops",
        "halted": "the lane is halted until sluice rebuild",
        "open": "consumer raises the epoch by a swap",
        "ack": "consumer acknowledges by a swap",
        "acked": "the entries are acknowledged",
        "fenced": "the consumer stops, nothing changed",
    },
    arrows=(
        _arrow("append", "appended", "its counter is in the register", "Committed"),
        _arrow("append", "append", "the replaced state is current, same bytes again", "InFlight"),
        _arrow("append", "append", "not applied, build it on the newer state", "NotCommitted"),
        _arrow("append", "append", "too many later writes, again and counted", "Evicted"),
        _arrow("append", "superseded", "a later counter of another process", "ProducerFenced"),
        _arrow("append", "halted", "missing, new or an old copy", "is_other_register"),
        _arrow("open", "ack", "epoch and owner are its own", "EpochClaim"),
        _arrow("open", "open", "the replaced state is current, same bytes again", "InFlight"),
        _arrow("open", "open", "another state, claim the next epoch", "RetryOpen"),
        _arrow("ack", "acked", "the register contains it", "Acked"),
        _arrow("ack", "ack", "not yet, build it on the newer state", "RetryAck"),
        _arrow("ack", "fenced", "another epoch or owner", "Overtaken"),
    ),
    explore=_explore_lane,
)


# An entry that HTTP consumers lease

_ENTRIES: Final = (1, 2)
_ENDS_NS: Final = 10


def _descriptors(after: int) -> tuple[Descriptor, ...]:
    return tuple(
        Descriptor(
            sequence=sequence,
            location=ObjectKey("list"),
            size_bytes=1,
            batches=1,
            frame_bytes=1,
            first_accepted_at_ns=UnixNs(0),
            last_accepted_at_ns=UnixNs(0),
            ingested_at_ns=UnixNs(0),
        )
        for sequence in _ENTRIES
        if sequence > after
    )


@dataclass(slots=True)
class _Leased:
    """The leases of a lane with two entries, and which of them were committed."""

    leases: LaneLeases
    claims: int = 0
    committed: set[int] = field(default_factory=set)

    def state(self, sequence: int) -> str:
        if sequence <= self.leases.acked_through:
            return "acknowledged"
        if any(one.entry.sequence == sequence for one in self.leases.leases):
            return "leased"
        return "committed" if sequence in self.committed else "pending"

    def claim(self) -> None:
        self.claims += 1
        self.leases.claim(str(self.claims), "consumer", 0, _ENDS_NS)

    def commit(self, at: int) -> None:
        for one in self.leases.leases[at : at + 1 or None]:
            if self.leases.commit(one.lease_id):
                self.committed.add(one.entry.sequence)

    def fail(self) -> None:
        for one in self.leases.leases[:1]:
            self.leases.fail(one.lease_id)

    def extend(self) -> None:
        for one in self.leases.leases[:1]:
            self.leases.extend(one.lease_id, 2 * _ENDS_NS)

    def restart(self) -> None:
        after = self.leases.acked_through
        self.leases = LaneLeases(acked_through=after)
        self.leases.offer(_descriptors(after))
        self.committed.clear()


_OPERATIONS: Final[tuple[tuple[str, Callable[[_Leased], object]], ...]] = (
    ("claim", _Leased.claim),
    ("commit", lambda lane: lane.commit(0)),
    ("commit", lambda lane: lane.commit(-1)),
    ("fail", _Leased.fail),
    ("extend", _Leased.extend),
    ("expire", lambda lane: lane.leases.expire(2 * _ENDS_NS)),
    ("acknowledge", lambda lane: lane.leases.acknowledged(lane.leases.acknowledgeable())),
    ("restart", _Leased.restart),
)


def _explore_leases() -> frozenset[Step]:
    """Return every change of an entry's state by one operation, from each reachable lane."""
    fresh = _Leased(LaneLeases(acked_through=0))
    fresh.leases.offer(_descriptors(0))
    steps: set[Step] = set()
    reached: set[tuple[str, ...]] = set()
    waiting = [fresh]
    while waiting:
        lane = waiting.pop()
        before = tuple(lane.state(one) for one in _ENTRIES)
        if before in reached:
            continue
        reached.add(before)
        for event, operate in _OPERATIONS:
            after = deepcopy(lane)
            operate(after)
            now = tuple(after.state(one) for one in _ENTRIES)
            steps |= {(old, event, new) for old, new in zip(before, now, strict=True) if old != new}
            if after.leases.leases != lane.leases.leases and now == before:
                steps.add(("leased", event, "leased"))
            waiting.append(after)
    return frozenset(steps)


LEASE: Final = Machine(
    name="queue-lease",
    page="reconciler.md",
    states={
        "pending": "pending",
        "leased": "leased, one lease id for each claim",
        "committed": "committed",
        "acknowledged": "acknowledged",
    },
    arrows=(
        _arrow("pending", "leased", "claim", "claim"),
        _arrow("leased", "committed", "commit under its lease id", "commit"),
        _arrow("leased", "leased", "extend", "extend"),
        _arrow("leased", "pending", "fail", "fail"),
        _arrow("leased", "pending", "the lease expires", "expire"),
        _arrow("leased", "pending", "the reconciler restarts", "restart"),
        _arrow("committed", "acknowledged", "every entry below it is committed", "acknowledge"),
        _arrow("committed", "pending", "the reconciler restarts", "restart"),
    ),
    explore=_explore_leases,
)


# The batches in the spool of an agent

_AFTER_UPLOAD: Final[dict[type, str]] = {
    Forget: "accepted",
    Park: "parked",
    DropResolved: "removed",
    SendAgain: "ready",
    StopSending: "stopped",
}
_AFTER_QUESTION: Final = _AFTER_UPLOAD | {SendAgain: "parked", StopSending: "parked"}
"""What `ParkedInquiry` does with the response to a conflict that is sent again."""
_GIVEN_UP: Final = BatchRefusals.is_final.__qualname__
"""An hour of foreign responses to one batch, while gateways decide about others."""


def _responses() -> Iterator[tuple[str, GatewayResponse | NoGatewayResponse]]:
    for code in ErrorCode:
        yield code.value, GatewayResponse(status=status_of(code), code=code.value)
    for event, resolution, digest in (
        ("accept_existing", ACCEPT_EXISTING, _OWN),
        ("accept_existing of other bytes", ACCEPT_EXISTING, _OTHER),
        ("another decision", "quarantine_identity", _OWN),
    ):
        yield (
            event,
            GatewayResponse(
                status=409,
                code=ErrorCode.IDENTITY_CONFLICT.value,
                resolution=resolution,
                submitted_sha256=digest,
            ),
        )
    yield "200", GatewayResponse(status=200, frame_sha256=_OWN)
    yield "200 of other bytes", GatewayResponse(status=200, frame_sha256=_OTHER)
    yield "302", GatewayResponse(status=302)
    yield "a page with 404", GatewayResponse(status=404, media_type="text/html")
    yield "a code of a later release", GatewayResponse(status=418, code="later")
    yield "502", GatewayResponse(status=502)
    for failure in ConnectionFailure:
        yield failure.value, NoGatewayResponse(failure=failure)


def _explore_agent() -> frozenset[Step]:
    """Return what each response and each command does with a ready and with a parked batch."""
    steps = {
        ("ready", _GIVEN_UP, "parked"),
        ("parked", retry_parked.__name__, "ready"),
        ("parked", drop_parked.__name__, "removed"),
    }
    for event, response in _responses():
        reaction = type(decide_reaction(response, sent=_OWN))
        steps.add(("ready", event, _AFTER_UPLOAD[reaction]))
        steps.add(("parked", event, _AFTER_QUESTION[reaction]))
    return frozenset(steps)


_STOPPED: Final = ("unauthenticated", "forbidden_agent")
_REFUSED: Final = (
    *("invalid_frame", "identity_quarantined", "identity_conflict", "too_large"),
    *("accept_existing of other bytes", "another decision", "a code of a later release"),
)
_AGAIN: Final = (
    *("bad_request", "forbidden", "not_found", "method_not_allowed", "fenced", "delete_id_taken"),
    *("digest_mismatch", "unsupported_version", "length_required", "unsupported_media_type"),
    *("internal", "store_unavailable", "overloaded", "draining", "outcome_unknown"),
    *("corrupt_object", "a page with 404", "200 of other bytes", "302", "502"),
    *("timeout", "reset", "connection_refused", "name_not_resolved", "tls"),
)
AGENT: Final = Machine(
    name="agent-batches",
    page="agent.md",
    states={
        "ready": "ready, sent until a gateway decides",
        "stopped": "all uploads stop, one batch is tried from time to time",
        "parked": "parked with the response",
        "accepted": "removed, it is accepted",
        "removed": "removed by a decision of an operator",
    },
    arrows=(
        _arrow("ready", "accepted", "200 that names these bytes", "200"),
        _arrow("ready", "ready", "5xx, no response, or not from a gateway", *_AGAIN),
        _arrow("ready", "stopped", "401, 403 forbidden_agent", *_STOPPED),
        _arrow("ready", "parked", "409, 413, any other final refusal", *_REFUSED, _GIVEN_UP),
        _arrow("ready", "removed", "409 with accept_existing", "accept_existing"),
        _arrow("parked", "accepted", "sent again, 200", "200"),
        _arrow("parked", "removed", "sent again, accept_existing", "accept_existing"),
        _arrow("parked", "parked", "sent again, other", *_REFUSED, *_STOPPED, *_AGAIN),
        _arrow("parked", "ready", "sluice agent parked retry", retry_parked.__name__),
        _arrow("parked", "removed", "sluice agent parked drop", drop_parked.__name__),
    ),
    explore=_explore_agent,
)


MACHINES: Final = (ACCEPTANCE, LANE, LEASE, AGENT)
DOCS: Final = Path(__file__).parents[1] / "docs"


def marks(machine: Machine) -> tuple[str, str]:
    """Return the lines of a page before and after a diagram."""
    return f"<!-- {machine.name}: begin -->\n", f"<!-- {machine.name}: end -->"


def main() -> None:
    """Write every diagram into its page."""
    for machine in MACHINES:
        page = DOCS / machine.page
        before, _, after = split_section(page.read_text(encoding="utf-8"), *marks(machine))
        page.write_text(before + render(machine) + after, encoding="utf-8")


if __name__ == "__main__":
    main()
