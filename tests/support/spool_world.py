"""The world of a spool: a file of lines, and gateways that keep the first bytes of each identity.

An agent reads from the spool's checkpoints, seals, sends, forgets or parks. After a crash a new run
starts with what the disk kept.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from support.agent_sim import retrying

from sluice_agent.inputs.columns import logs_from_block
from sluice_agent.settings import SpoolSettings
from sluice_agent.spool.disk import Disk
from sluice_agent.spool.format import FileCheckpoint, ParkedReason
from sluice_agent.spool.spool import Spool, SpooledBatch
from sluice_protocol.columns import LogColumns
from sluice_protocol.frame import decode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.units import UnixNs

LINES = [f"line {n}".encode() for n in range(12)]
NOW = UnixNs(1)
REASON = ParkedReason(reason="identity_conflict", gateway="g", status=409, parked_at_unix_ns=1)


def is_refused(identity: Identity) -> bool:
    """Return whether the gateways refuse the batches with this identity."""
    return identity.seq_start % 5 == 4


class World:
    """What outlives a run of the agent: the disk, the file and the gateways.

    `tell` is called with each frame that the gateways accept or refuse, before the agent knows.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path = Path("/spool"),
        *,
        sync: bool = True,
        tell: Callable[[bytes], object] = lambda _: None,
    ) -> None:
        self.disk = disk
        self.settings = SpoolSettings(directory=directory, agent_id="host-1", sync=sync)
        self.accepted: dict[Identity, bytes] = {}
        self.refused: set[Identity] = set()
        self.boots = itertools.count()
        self.lines = LINES
        self._tell = tell

    def decide(self, frame: bytes) -> Identity:
        """Accept a frame, or refuse it; its bytes are those of every earlier try."""
        identity = decode_frame(frame).envelope.identity
        assert self.accepted.setdefault(identity, frame) == frame, "an identity had other bytes"
        if is_refused(identity):  # the model still sees what was sent
            self.refused.add(identity)
        self._tell(frame)
        return identity

    def run(self, rng: random.Random) -> None:
        """Run one agent from start to the end of the file, unless the disk crashes."""
        spool = Spool(self.settings, self.disk, boot_id=f"boot-{next(self.boots)}")
        assert spool.corrupt_files == ()
        todo = spool.ready()
        while batches := self._seal(spool, rng):
            todo += batches
            while todo and rng.random() < 0.6:
                (self._send_list if rng.random() < 0.3 else self._send)(spool, todo, rng)
            if rng.random() < 0.3:
                retrying(spool.sweep)
        while todo:
            self._send(spool, todo, rng)
        retrying(spool.sweep)
        spool.close()

    def _seal(self, spool: Spool, rng: random.Random) -> list[SpooledBatch]:
        """Seal up to two batches before the first is committed, as the batcher does."""
        checkpoint = spool.checkpoints().get("1:1")
        start = checkpoint.offset if checkpoint else 0
        sealed = []
        for _ in range(rng.randrange(1, 3)):
            lines = self.lines[start : start + rng.randrange(1, 4)]
            if not lines:
                break
            end = start + len(lines)
            after = FileCheckpoint(source="1:1", path="/log", start=start, offset=end)
            columns = logs_from_block(b"\n".join(lines) + b"\n", arrived_ns=NOW, zone=None)
            sealed.append(spool.seal(columns, [after], now_ns=NOW))
            start = end
        return [retrying(partial(spool.commit, one)) for one in sealed]

    def _send(self, spool: Spool, todo: list[SpooledBatch], rng: random.Random) -> None:
        batch = todo.pop(rng.randrange(len(todo)))
        frame = retrying(lambda: spool.read(batch))
        if is_refused(self.decide(frame)):
            retrying(lambda: spool.park(batch, REASON))
        elif rng.random() < 0.8:
            retrying(lambda: spool.forget(batch))
        else:  # the response was lost: the same bytes are sent again
            todo.append(batch)

    def _send_list(self, spool: Spool, todo: list[SpooledBatch], rng: random.Random) -> None:
        """Send several batches in one request; a crash may come between any two results of it."""
        batches = [todo.pop(rng.randrange(len(todo))) for _ in range(min(len(todo), 3))]
        frames = [retrying(partial(spool.read, one)) for one in batches]
        decided = [self.decide(frame) for frame in frames]  # all of them before the first result
        lost = rng.random() < 0.2
        for batch, identity in zip(batches, decided, strict=True):
            if lost:
                todo.append(batch)
            elif is_refused(identity):
                retrying(partial(spool.park, batch, REASON))
            else:
                retrying(partial(spool.forget, batch))

    def check(self) -> None:
        """Check that every line was accepted once and that `parked/` contains the rejected ones."""
        got = Counter(
            body
            for frame in self.accepted.values()
            if isinstance(columns := decode_frame(frame).columns, LogColumns)
            for body in columns.body.slices()
        )
        assert got == Counter(self.lines)
        parked = {name for name, _ in self.disk.list(self.settings.directory / "parked")}
        assert len([name for name in parked if name.endswith(".batch")]) == len(self.refused)
        assert self.disk.list(self.settings.directory / "corrupt") == []
