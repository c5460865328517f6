"""Benchmark `identities`: the effect of existing accepted identities on the cost of a new accept.

There are two directory stores, one empty and one with many manifests, each with a separate gateway.
The same uploads are sent to both in turn. The existing manifests are written in the layout of the
local store, but without fsyncs, which would take too long.

    python -m benchmarks.identities            # 100 000
    python -m benchmarks.identities 3000000    # some minutes and 13 GB of disk
"""

import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.accept_load import UploadBatch, drive, uploading
from benchmarks.accept_servers import MANIFEST, cpu_of, gateway_on
from benchmarks.measure import Sample, ratio, report
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key
from sluice_store.local.layout import Layout

STANDING: Final = 100_000
AGENTS: Final = 300
BOOTS: Final = 10
UPLOADS: Final = 600
ROUNDS: Final = 9
CHANGE_MAX: Final = 1.10


def fill(root: Path, count: int) -> None:
    """Write manifests of `AGENTS` agents with `BOOTS` boots each to a store."""
    layout = Layout(root=root)
    for number in range(count):
        boot, seq = number % (AGENTS * BOOTS), number // (AGENTS * BOOTS)
        identity = Identity(
            agent_id=f"bench-{boot % AGENTS}",
            boot_id=f"boot-{boot // AGENTS}",
            seq_start=seq * 100,
            seq_end=seq * 100 + 99,
        )
        path = layout.object_of(accepted_key(identity))
        if seq == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(fd, MANIFEST)
        os.close(fd)


async def rounds(gateways: dict[str, tuple[int, int]]) -> dict[str, list[Sample]]:
    """Upload to both stores in turn; the wall time of a sample is the median of its uploads."""
    taken: dict[str, list[Sample]] = {name: [] for name in gateways}
    async with AsyncExitStack() as stack:
        sends = {
            name: await stack.enter_async_context(uploading(port))
            for name, (_, port) in gateways.items()
        }
        for number in range(ROUNDS + 1):
            for name, (pid, port) in gateways.items():
                batches, spent = [UploadBatch(1024, port) for _ in range(UPLOADS)], cpu_of(pid)
                seconds = await drive(sends[name], batches, 4)
                cpu_s = max(0.01, cpu_of(pid) - spent)
                if number:
                    wall_s = statistics.median(seconds) * UPLOADS
                    taken[name].append(Sample(wall_s=wall_s, cpu_s=cpu_s, units=UPLOADS))
    return taken


def main(words: list[str]) -> int:
    """Run the benchmark; return 1 if existing identities change an accept by more than a tenth."""
    count = int(words[0]) if words else STANDING
    base = os.environ.get("SLUICE_BENCH_DIR")
    with tempfile.TemporaryDirectory(prefix="identities-", dir=base) as name, ExitStack() as stack:
        folders = {who: Path(name) / who for who in ("empty", "full")}
        for folder in folders.values():
            (folder / "principals").mkdir(parents=True)
        fill(folders["full"] / "store", count)
        gateways = {
            who: stack.enter_context(gateway_on(f"file://{folder}/store", folder / "principals"))
            for who, folder in folders.items()
        }
        samples = uvloop.run(rounds(gateways))
        stack.close()
    figures: dict[str, Callable[[Sample], float]] = {
        "p50 of an accept": lambda one: one.wall_s,
        "CPU of an accept": lambda one: one.cpu_per_unit,
    }
    lines, worst = [f"{count} existing identities, 1 KiB, 4 clients, {ROUNDS} rounds"], 0.0
    for what, value in figures.items():
        low, middle, high = ratio(samples["full"], samples["empty"], value)
        lines.append(
            f"{what}: {middle:.2f} of an empty store's ({low:.2f} to {high:.2f}),"
            f" at most {CHANGE_MAX}"
        )
        worst = max(worst, middle)
    report("identities", lines, samples)
    return 0 if worst <= CHANGE_MAX else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
