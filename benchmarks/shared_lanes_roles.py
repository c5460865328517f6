"""Processes of the benchmark `shared_lanes`: a reconciler over a slow store, and a bare loop."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog
import uvloop

from benchmarks.reconcile_world import BULK
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore

PAGED: Final = ("list", "list_incarnations")
LOOP_STEPS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SpinCount:
    """What a process that only computes reached."""

    loops: int
    cpu_s: float
    wall_s: float


IN_FLIGHT: Final = 32


class SlowStore:
    """A store whose calls take longer, as those of a bucket with 32 requests in flight."""

    def __init__(self, store: ObjectStore, latency_s: float) -> None:
        self._store = store
        self._latency_s = latency_s

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any verb
        verb = getattr(self._store, name)

        async def pages(*arguments: Any, **options: Any) -> AsyncIterator[Any]:  # noqa: ANN401
            await asyncio.sleep(self._latency_s)
            async for page in verb(*arguments, **options):
                yield page
                if not page.last:
                    await asyncio.sleep(self._latency_s)

        async def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as the verb
            rounds = -(-len(arguments[0]) // IN_FLIGHT) if name in BULK else 1
            await asyncio.sleep(self._latency_s * rounds)
            return await verb(*arguments, **options)

        return pages if name in PAGED else call


async def reconcile(folder: Path, latency_ms: float) -> None:
    """Run a reconciler with the settings of a bucket until it is terminated."""
    async with open_local_store(folder) as store:
        slow = SlowStore(store, latency_ms / 1000)
        subject = await Reconciler.of(slow, settings=ReconcilerSettings().on("s3:"))
        await subject.run()


def spin(seconds: float) -> SpinCount:
    """Run a loop of integer arithmetic for some seconds."""
    started, spent, loops = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - started < seconds:
        total = 0
        for step in range(LOOP_STEPS):
            total += step * step
        loops += 1
    return SpinCount(
        loops=loops,
        cpu_s=time.process_time() - spent,
        wall_s=time.perf_counter() - started,
    )


def main(arguments: list[str]) -> None:
    """Run one role."""
    match arguments:
        case ["reconcile", folder, latency_ms]:
            uvloop.run(reconcile(Path(folder), float(latency_ms)))
        case ["spin", seconds]:
            print(json.dumps(asdict(spin(float(seconds)))), flush=True)
        case _:
            raise SystemExit(f"unknown role, arguments=`{arguments}`")


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    main(sys.argv[1:])
