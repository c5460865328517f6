"""The cost of a flush by the number of boots that the lane was ever given: bytes and CPU.

It measures `LaneOwner.enqueue`, which writes work lists and registers to a directory in memory.

The bar compares the same flushes: batches of the same 500 active lives, in a lane that was given
10^6 or 10^3 lives before. The other case is no bar, because its flushes differ: all lives are
equally active, so at 10^6 lives each flush changes lives that have not changed for long, and a
change is rewritten once per size class of the parts.
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

from msgspec.structs import replace

from benchmarks.measure import Sample, report
from benchmarks.reconcile_world import manifest, scratch
from sluice_protocol.manifests import AcceptedManifest
from sluice_queue.lane import Lane
from sluice_queue.register_client import Runtime
from sluice_reconciler.lanes.enqueued import IntendedBatch
from sluice_reconciler.lanes.owner import LaneOwner
from sluice_reconciler.lanes.part_log import PartCache, read_enqueued
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


async def prepared(store: ObjectStore, lives: int, choose: Callable[[int], int]) -> FlushCost:
    """Return a lane that was given one batch of each life."""
    counted = WrittenBytes(store)
    owner = await LaneOwner.take(counted, LANE, Runtime())
    for number in range(lives):
        agent, boot = life_of(number)
        owner.enqueued.add(IntendedBatch(agent_id=agent, boot_id=boot, seq_start=0, seq_end=99))
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
    cases: dict[str, tuple[int, Callable[[int], int]]] = {}
    for lives in (few, many):
        cases[f"{lives} lives"] = lives, active(lives)
        cases[f"{lives} lives, all active"] = lives, any_life(lives)
    samples: dict[str, list[Sample]] = {name: [] for name in cases}
    costs: dict[str, FlushCost] = {}
    async with AsyncExitStack() as stack:
        for name, (lives, choose) in cases.items():
            store = await stack.enter_async_context(scratch())
            costs[name] = await prepared(store, lives, choose)
        for _ in range(rounds):
            for name, cost in costs.items():
                samples[name].append(await cost.flush(flushes))
        lines = [_line(name, cost, samples[name]) for name, cost in costs.items()]
        lines.append(await _takeover(costs[f"{many} lives"]))
    failed = False
    for what, of in (("CPU", _cpu), ("bytes", _bytes)):
        for suffix in ("", ", all active"):
            at_many = of(costs, samples, f"{many} lives{suffix}")
            grown = at_many / of(costs, samples, f"{few} lives{suffix}")
            missed = not suffix and grown > RATIO_MAX
            failed = failed or missed
            lines.append(
                f"{what} per flush{suffix}, {many} to {few} lives: {grown:.2f}x"
                f"{' (the bar of 1.5 is missed)' if missed else ''}"
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
    ledger, _ = await read_enqueued(cost.store, LANE, PartCache())
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
