"""The cost of a flush by the number of lives that the lane was ever given: bytes and CPU.

Subject: `LaneOwner.enqueue`. Control: the same, but the whole lane state is one record that each
flush writes again, as it was before the state had parts. Both write the same work lists and
registers to a directory in memory.

The bar compares the subject with itself for the same flushes: batches of the same 500 active lives,
in a lane that was given 10^6 or 10^3 lives before. The other case is no bar, because its flushes
differ: all lives are equally active, so at 10^6 lives each flush changes lives that have not
changed for long, and a change is rewritten once per size class of the parts.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from benchmarks.measure import Sample, report
from benchmarks.reconcile_world import manifest, scratch
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.outcomes import Applied
from sluice_queue.lane import Lane, Runtime
from sluice_reconciler.lanes.ledger import IntendedBatch, Ledger, StoredBoot
from sluice_reconciler.lanes.owner import LaneOwner
from sluice_reconciler.lanes.part_log import PartCache, read_ledger
from sluice_reconciler.lanes.sequence_ranges import BootRanges
from sluice_reconciler.lanes.state import (
    StoredLaneState,
    encode_lane,
    lane_key,
)
from sluice_store.port import ObjectStore

LANE: Final = Lane(queue="spark", lane=0)
BATCHES: Final = 64
ACTIVE: Final = 500
RATIO_MAX: Final = 1.5


class WrittenBytes:
    """A store that counts the bytes of lane states and parts."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.size_bytes = 0
        self.writes = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any verb
        verb = getattr(self._store, name)
        if name not in ("create", "replace"):
            return verb

        async def counted(key: str, body: bytes, **more: Any) -> Any:  # noqa: ANN401
            if key.startswith("reconciler/v1/"):
                self.size_bytes += len(body)
                self.writes += 1
            return await verb(key, body, **more)

        return counted


class WholeLedger(Ledger):
    """The control's ledger: every life is an object."""

    def __init__(self) -> None:
        super().__init__()
        self.boots: dict[tuple[str, str], BootRanges] = {}

    def boot(self, agent_id: str, boot_id: str) -> BootRanges | None:
        """Return the enqueued batches of one boot."""
        return self.boots.get((agent_id, boot_id))

    def add(self, batch: IntendedBatch) -> None:
        """Record a batch as enqueued."""
        self.boots.setdefault(batch.life, BootRanges()).add(batch.seq_start, batch.seq_end)


class WholeRecordOwner(LaneOwner):
    """The control: every write contains every life."""

    async def _write(
        self,
        *,
        writes: int,
        pending: tuple[IntendedBatch, ...],
        released: bool | UnsetType = UNSET,
    ) -> None:
        del released
        if not isinstance(self.ledger, WholeLedger):
            self.ledger = WholeLedger()
        boots = tuple(
            StoredBoot(agent_id=agent, boot_id=boot, ranges=ranges)
            for (agent, boot), ranges in sorted(self.ledger.boots.items())
        )
        record = replace(
            self._stored.record,
            nonce=self._runtime.id_bytes().hex(),
            writes=writes,
            pending=pending,
        )
        body = encode_lane(record, boots)
        match await self._store.replace(lane_key(LANE), body, if_match=self._stored.etag):
            case Applied(etag=etag, date_ns=date_ns):
                self._stored = StoredLaneState(record=record, etag=etag, date_ns=date_ns)
            case other:
                raise RuntimeError(other)


def life_of(number: int) -> tuple[str, str]:
    """Return the agent and a boot id like that of an agent."""
    return f"host-{number}", f"0b0f1c52-7a4e-4a51-9d36-{number * 2654435761 % 2**48:012x}"


def batch_of(life: int, number: int, nonce: int) -> AcceptedManifest:
    """Return the manifest of a life's batch."""
    agent, boot = life_of(life)
    one, _ = manifest(nonce, 1_800_000_000_000_000_000 + nonce)
    return replace(
        one, agent_id=agent, boot_id=boot, seq_start=number * 100, seq_end=number * 100 + 99
    )


@dataclass(slots=True, kw_only=True)
class FlushCost:
    """The cost of the measured flushes of one lane."""

    owner: LaneOwner
    store: WrittenBytes
    lives: int
    choose: Callable[[int], int]
    sent: int = 0
    given: Counter[int] = field(default_factory=Counter)

    async def flush(self, flushes: int) -> Sample:
        """Enqueue, and return the CPU; the units are flushes."""
        lists = []
        for _ in range(flushes):
            chosen = []
            for _ in range(BATCHES):
                self.sent += 1
                life = self.choose(self.sent)
                self.given[life] += 1
                chosen.append(batch_of(life, self.given[life], self.sent))
            lists.append(chosen)
        started, spent = time.perf_counter(), time.process_time()
        for chosen in lists:
            if await self.owner.enqueue(chosen) != BATCHES:
                raise RuntimeError("a batch was taken for an enqueued one")
        cpu_s = time.process_time() - spent
        return Sample(wall_s=time.perf_counter() - started, cpu_s=cpu_s, units=flushes)


async def prepared(
    kind: type[LaneOwner], store: ObjectStore, lives: int, choose: Callable[[int], int]
) -> FlushCost:
    """Return a lane that was given one batch of each life."""
    counted = WrittenBytes(store)
    owner = await kind.take(counted, LANE, Runtime())
    for number in range(lives):
        agent, boot = life_of(number)
        owner.ledger.add(IntendedBatch(agent_id=agent, boot_id=boot, seq_start=0, seq_end=99))
    await owner.close()
    counted.size_bytes = counted.writes = 0
    return FlushCost(owner=owner, store=counted, lives=lives, choose=choose)


def active(lives: int) -> Callable[[int], int]:
    """Return a choice of lives in which a few are active and the others are quiet."""
    return lambda sent: sent * 7919 % min(ACTIVE, lives)


def any_life(lives: int) -> Callable[[int], int]:
    """Return a choice of lives in which all are equally active."""
    return lambda sent: sent * 1_000_003 % lives


async def measure(many: int, flushes: int, rounds: int) -> int:
    """Run every case in turn, print the ratios, and return 1 if a bar is missed."""
    few = 1000
    cases: dict[str, tuple[type[LaneOwner], int, Callable[[int], int]]] = {}
    for lives in (few, many):
        cases[f"parts, {lives} lives"] = LaneOwner, lives, active(lives)
        cases[f"parts, {lives} lives, all active"] = LaneOwner, lives, any_life(lives)
        cases[f"whole record, {lives} lives"] = WholeRecordOwner, lives, active(lives)
    samples: dict[str, list[Sample]] = {name: [] for name in cases}
    costs: dict[str, FlushCost] = {}
    async with AsyncExitStack() as stack:
        for name, (kind, lives, choose) in cases.items():
            store = await stack.enter_async_context(scratch())
            costs[name] = await prepared(kind, store, lives, choose)
        for _ in range(rounds):
            for name, cost in costs.items():
                count = max(2, flushes // 64) if "whole" in name else flushes
                samples[name].append(await cost.flush(count))
        lines = [_line(name, cost, samples[name]) for name, cost in costs.items()]
        lines.append(await _takeover(costs[f"parts, {many} lives"]))
    failed = False
    for what, of in (("CPU", _cpu), ("bytes", _bytes)):
        old = of(costs, samples, f"whole record, {many} lives")
        for suffix in ("", ", all active"):
            at_many = of(costs, samples, f"parts, {many} lives{suffix}")
            grown = at_many / of(costs, samples, f"parts, {few} lives{suffix}")
            missed = not suffix and grown > RATIO_MAX
            failed = failed or missed
            lines.append(
                f"{what} per flush{suffix}, {many} to {few} lives: {grown:.2f}x"
                f"{' (the bar of 1.5 is missed)' if missed else ''};"
                f" whole record to parts at {many}: {old / at_many:.0f}x"
            )
    report("lane_state", lines, samples)
    return int(failed)


def _cpu(_: dict[str, FlushCost], samples: dict[str, list[Sample]], name: str) -> float:
    return median(one.cpu_per_unit for one in samples[name])


def _bytes(costs: dict[str, FlushCost], samples: dict[str, list[Sample]], name: str) -> float:
    return costs[name].store.size_bytes / sum(one.units for one in samples[name])


def _line(name: str, cost: FlushCost, taken: list[Sample]) -> str:
    flushes = sum(one.units for one in taken)
    cpu_ms = median(one.cpu_per_unit for one in taken) * 1e3
    return (
        f"{name}: {cpu_ms:.2f} ms CPU, {cost.store.size_bytes / flushes / 1e3:.1f} kB and"
        f" {cost.store.writes / flushes:.2f} writes of lane state per flush of {BATCHES} batches"
    )


async def _takeover(cost: FlushCost) -> str:
    """Return what reading the state costs a new owner."""
    spent = time.process_time()
    ledger, _ = await read_ledger(cost.store, LANE, PartCache())
    cpu_s = time.process_time() - spent
    return (
        f"takeover at {cost.lives} lives: {cpu_s:.2f} s CPU to read,"
        f" {ledger.memory_bytes / 1e6:.0f} MB of memory,"
        f" {ledger.memory_bytes / cost.lives:.0f} bytes per life"
    )


def main() -> int:
    """Run with 10^6 lives, or with the number given on the command line."""
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    return asyncio.run(measure(many, flushes=128, rounds=3))


if __name__ == "__main__":
    sys.exit(main())
