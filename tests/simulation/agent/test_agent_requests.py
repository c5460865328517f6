"""Requests of doors with a crash at every operation: accepted records are stored exactly once.

The clients send each request until it is answered, and lose some answers. The agent is the spool
with the rule of `AgentDoors`: a known request is answered without being sealed again. Gateways keep
the first bytes of each identity.
"""

import hashlib
import itertools
import random
from collections import Counter

import pytest
from support.agent_disk import SimDisk
from support.agent_sim import (
    DIRECTORY,
    DRAWS,
    SEEDS,
    crash_in_a_row,
    cut_power_at_every_operation,
    fail_at_every_operation,
    kill_at_every_operation,
    retrying,
)
from support.repetitions import times

from sluice_agent.inputs.columns import logs_from_block
from sluice_agent.settings import SpoolSettings
from sluice_agent.spool.format import ParkedReason
from sluice_agent.spool.request_window import (
    DIGEST_BYTES,
    REQUESTS_MAX,
    add_requests,
    part_digest,
    remove_requests,
    split_requests,
)
from sluice_agent.spool.spool import Spool, SpooledBatch
from sluice_protocol.frame import decode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.units import UnixNs

NOW = UnixNs(1)
REQUESTS = [f"request {n}".encode() for n in range(8)]
REASON = ParkedReason(reason="identity_conflict", gateway="g", status=409, parked_at_unix_ns=1)


def digest_of_request(line: bytes) -> bytes:
    return part_digest(hashlib.sha256(line).digest(), 0, 1)


class World:
    """What outlives a run of the agent: the disk, the clients and the gateways."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.accepted: dict[Identity, bytes] = {}
        self.parked: set[Identity] = set()
        self.answered: Counter[bytes] = Counter()
        self.boots = itertools.count()

    def run(self, rng: random.Random) -> None:
        settings = SpoolSettings(directory=DIRECTORY, agent_id="host-1")
        spool = Spool(settings, self.disk, boot_id=f"boot-{next(self.boots)}")
        todo = spool.ready()
        # Clients whose answer was lost, or who send a last repetition, come in any order.
        while open_requests := [one for one in REQUESTS if self.answered[one] < 2]:
            sent = rng.sample(open_requests, min(len(open_requests), rng.randrange(1, 4)))
            todo += self._accept(spool, sent)
            for one in sent:
                self.answered[one] += rng.random() < 0.6
            while todo and rng.random() < 0.6:
                self._send(spool, todo, rng)
            if rng.random() < 0.4:
                retrying(spool.sweep)
        while todo:
            self._send(spool, todo, rng)
        retrying(spool.sweep)
        spool.close()

    def _accept(self, spool: Spool, sent: list[bytes]) -> list[SpooledBatch]:
        new = [one for one in sent if not spool.knows_request(digest_of_request(one))]
        if not new:
            return []
        columns = logs_from_block(b"\n".join(new) + b"\n", arrived_ns=NOW, zone=None)
        digests = b"".join(map(digest_of_request, new))
        sealed = spool.seal(columns, (), now_ns=NOW, requests=digests)
        batch = retrying(lambda: spool.commit(sealed))
        assert all(spool.knows_request(digest_of_request(one)) for one in sent)
        return [batch]

    def _send(self, spool: Spool, todo: list[SpooledBatch], rng: random.Random) -> None:
        batch = todo.pop(rng.randrange(len(todo)))
        frame = retrying(lambda: spool.read(batch))
        identity = decode_frame(frame).envelope.identity
        assert self.accepted.setdefault(identity, frame) == frame
        if identity.seq_start % 5 == 4:
            self.parked.add(identity)
            retrying(lambda: spool.park(batch, REASON))
        else:
            retrying(lambda: spool.forget(batch))

    def check(self) -> None:
        """Every request is in exactly one accepted batch."""
        bodies = Counter(
            body
            for frame in self.accepted.values()
            for body in decode_frame(frame).columns.body.slices()
        )
        assert bodies == Counter(REQUESTS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kill_at_every_operation(seed: int) -> None:
    """It neither loses nor doubles a request."""
    kill_at_every_operation(World, seed)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "draws"), DRAWS)
def test_a_power_cut_at_every_operation(seed: int, draws: int) -> None:
    cut_power_at_every_operation(World, seed, draws)


@pytest.mark.parametrize("count", [40, pytest.param(times(300), marks=pytest.mark.long)])
def test_many_crashes_in_a_row(count: int) -> None:
    for seed in range(count):
        crash_in_a_row(World, seed, crashes_max=5)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_an_error_at_every_operation(seed: int) -> None:
    """A full disk is retried, or ends this run only."""
    fail_at_every_operation(World, seed)


def test_a_damaged_batch_is_not_a_known_request() -> None:
    """Its records are gone, so a client that got no answer may send them again."""
    world = World()
    settings = SpoolSettings(directory=DIRECTORY, agent_id="host-1")
    spool = Spool(settings, world.disk, boot_id="boot")
    first, second = (world._accept(spool, [one])[0] for one in REQUESTS[:2])
    path = DIRECTORY / "ready" / first.header.name
    world.disk.write_new(path, [world.disk.read(path)[:-1] + b"?"], sync=True)
    with pytest.raises(Exception, match="corrupt"):
        spool.read(first)
    known = [spool.knows_request(digest_of_request(one)) for one in REQUESTS[:2]]
    assert known == [False, True]
    spool.forget(second)
    spool.sweep()
    spool.close()
    again = Spool(settings, world.disk, boot_id="next")
    assert [again.knows_request(digest_of_request(one)) for one in REQUESTS[:2]] == [False, True]


def test_the_window_keeps_the_last_requests() -> None:
    """It is bounded, the oldest leave first, and chosen ones can be removed."""
    digests = [digest_of_request(str(n).encode()) for n in range(REQUESTS_MAX + 3)]
    window = b""
    for one in digests:
        window = add_requests(window, one)
    assert len(window) == REQUESTS_MAX * DIGEST_BYTES
    assert split_requests(window) == digests[3:]
    assert split_requests(remove_requests(window, digests[5] + digests[9])) == [
        one for one in digests[3:] if one not in (digests[5], digests[9])
    ]
