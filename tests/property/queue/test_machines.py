"""State machines: the register compared with a plain list, and leases with their guarantees."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.builders import descriptors
from support.repetitions import examples

from sluice_protocol.units import ObjectKey, UnixNs
from sluice_queue.register import (
    Descriptor,
    Draft,
    Register,
    Writer,
    append,
    body_descriptors,
    decode_register,
    dequeue,
    encode_register,
    open_epoch,
)
from sluice_queue.register_client import decode_segment, spill
from sluice_reconciler.http_queue import LaneLeases

KEY = "queue/v1/spark.000/manifest"


class RegisterMachine(RuleBasedStateMachine):
    """Appends, spills, acknowledgements and openings in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Register(revision=1, nonce=bytes(16))
        self.model: list[tuple[int, str]] = []
        self.segments: dict[int, bytes] = {}
        self.given = 0
        self.bodies = {encode_register(self.state)}

    def nonce(self) -> bytes:
        return self.state.revision.to_bytes(16, "big")

    def moved(self, after: Register) -> None:
        assert after.revision == self.state.revision + 1
        body = encode_register(after)
        assert body not in self.bodies
        self.bodies.add(body)
        self.state = decode_register(KEY, body)
        assert self.state == after

    @rule(count=st.integers(1, 5), who=st.integers(0, 70))
    def add(self, count: int, who: int) -> None:
        drafts = tuple(
            Draft(
                location=ObjectKey(f"manifests/v1/{self.given + number}"),
                size_bytes=1,
                batches=1,
                frame_bytes=1,
                first_accepted_at_ns=UnixNs(1),
                last_accepted_at_ns=UnixNs(1),
                ingested_at_ns=UnixNs(1),
            )
            for number in range(count)
        )
        writer = Writer(producer_id=who.to_bytes(16, "big"), counter=1, first_sequence=0)
        first = self.state.next_sequence
        self.moved(append(self.state, drafts, writer, self.nonce()))
        self.model += [(first + at, draft.location) for at, draft in enumerate(drafts)]
        self.given += count
        assert self.state.writers[0].first_sequence == first

    @precondition(lambda self: self.state.count >= 2)
    @rule()
    def move_older_half(self) -> None:
        spilled = spill(KEY, self.state)
        assert self.segments.setdefault(spilled.ref.first, spilled.body) == spilled.body
        self.state = spilled.after

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        through = data.draw(st.sampled_from([sequence for sequence, _ in self.model]))
        self.moved(dequeue(KEY, self.state, through, self.nonce()))
        self.model = [one for one in self.model if one[0] > through]

    @rule(owner=st.binary(min_size=16, max_size=16))
    def open(self, owner: bytes) -> None:
        epoch = self.state.epoch
        self.moved(open_epoch(self.state, owner, self.nonce()))
        assert (self.state.epoch, self.state.owner) == (epoch + 1, owner)

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        held: list[Descriptor] = []
        for ref in self.state.segments:
            held += decode_segment(KEY, self.segments[ref.first])
        held += body_descriptors(KEY, self.state)
        waiting = [(one.sequence, one.location) for one in held]
        assert [one for one in waiting if one[0] > self.state.acked_through] == self.model
        assert self.state.waiting == len(self.model)
        assert len(self.state.writers) <= 64


class LeaseMachine(RuleBasedStateMachine):
    """Claims, commits, failures, late responses and time in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = LaneLeases(acked_through=0)
        self.offered = 0
        self.now = 0
        self.names = 0
        self.current: dict[int, str] = {}
        self.ends: dict[str, int] = {}
        self.old: list[str] = []
        self.committed: set[int] = set()
        self.committed_by: dict[str, int] = {}
        self.acked = 0

    @rule(count=st.integers(1, 4))
    def offer(self, count: int) -> None:
        self.leases.offer(descriptors(self.offered + 1, count))
        self.offered += count

    @rule(lasts=st.integers(1, 10))
    def claim(self, lasts: int) -> None:
        self.names += 1
        name = f"lease-{self.names}"
        lease = self.leases.claim(name, "c", self.now, self.now + lasts)
        free = set(range(1, self.offered + 1)) - self.committed - set(self.current)
        if lease is None:
            assert not free
            return
        assert lease.entry.sequence == min(free)
        self.current[lease.entry.sequence] = name
        self.ends[name] = self.now + lasts

    @rule(passed=st.integers(1, 8))
    def wait(self, passed: int) -> None:
        self.now += passed
        ended = [one for one, name in self.current.items() if self.ends[name] <= self.now]
        assert self.leases.expire(self.now) == len(ended)
        self.old += [self.current.pop(one) for one in ended]

    @precondition(lambda self: self.current)
    @rule(data=st.data(), do=st.sampled_from(["commit", "fail", "extend"]))
    def answer(self, data: st.DataObject, do: str) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.current)))
        name = self.current[sequence]
        if do == "extend":
            self.ends[name] = self.now + 5
            assert self.leases.extend(name, self.now + 5)
            return
        assert self.leases.commit(name) if do == "commit" else self.leases.fail(name)
        self.old.append(self.current.pop(sequence))
        if do == "commit":
            self.committed.add(sequence)
            self.committed_by[name] = sequence

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def answer_late(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.old))
        # A commit may be repeated until its entry is acknowledged.
        assert self.leases.commit(name) == (self.committed_by.get(name, 0) > self.acked)
        assert not self.leases.fail(name)
        assert not self.leases.extend(name, self.now + 100)

    @rule()
    def acknowledge(self) -> None:
        self.acked = max(self.acked, self.leases.acknowledgeable())
        self.leases.acknowledged(self.leases.acknowledgeable())

    @invariant()
    def frontier_passes_only_what_is_committed(self) -> None:
        through = self.leases.acknowledgeable()
        assert set(range(1, through + 1)) <= self.committed
        assert through + 1 not in self.committed


TestRegister = RegisterMachine.TestCase
TestRegister.settings = settings(max_examples=examples(60), stateful_step_count=30)
TestLeases = LeaseMachine.TestCase
TestLeases.settings = settings(stateful_step_count=40)
