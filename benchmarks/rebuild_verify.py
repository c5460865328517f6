"""The cost of `rebuild --verify` on an intact store, compared with an earlier checkout.

    python -m benchmarks.rebuild_verify CHECKOUT

CHECKOUT is a directory with another version of the project, for example made by `git worktree add`.
Without it only this checkout is measured. The earlier checkout writes one store of each layout,
because this one reads its formats. Both then compare it, one after the other, in several rounds,
each in a new process. `SLUICE_BENCH_VERIFY` (default 20 000 batches) and `SLUICE_BENCH_ROUNDS` (3)
set the sizes. The figures are requests and processor time per batch: of a directory in memory, and
of the S3 adapter with a fifth of the batches on versitygw, whose time does not count. The ratio is
at most 0.4.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from tests.support.store_versitygw import CREDENTIALS, make_bucket, versitygw

FILE: Final = Path(__file__).resolve()
HERE: Final = FILE.parent.parent
SHM: Final = Path("/dev/shm")  # noqa: S108 - memory on purpose; a private folder is created in it
PARENT: Final = SHM if SHM.is_dir() else None
BATCHES: Final = int(os.environ.get("SLUICE_BENCH_VERIFY", "20000"))
ON_S3: Final = max(BATCHES // 5, 1)
ROUNDS: Final = int(os.environ.get("SLUICE_BENCH_ROUNDS", "3"))
RATIO_MOST: Final = 0.4
ROOMS: Final = ("", "core", "gateway", "reconciler", "spark", "gc", "query", "policies", "agent")
LAYOUTS: Final[dict[str, dict[str, int]]] = {
    "packed entries": {},
    "single entries": {"list_batches_max": 1},
    "packed references": {"pack_references": True},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What one comparison of a store cost; time and requests are per batch.

    A page of a listing is one request.
    """

    cpu_ms: float
    requests: float
    found: int


class CountedRequests:
    """A store that counts its requests: each object that is read, and each page of a listing."""

    def __init__(self, store: Any) -> None:  # noqa: ANN401 - a store of either checkout
        self._store = store
        self.counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any verb
        if name in {"get", "head"}:
            self.counts[name] += 1
        return getattr(self._store, name)

    async def get_many(self, keys: Sequence[Any]) -> Any:  # noqa: ANN401
        """Read, and count the objects."""
        self.counts["get"] += len(keys)
        return await self._store.get_many(keys)

    async def list(self, prefix: str, **bounds: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        """List, and count the pages."""
        async for page in self._store.list(prefix, **bounds):
            self.counts["list"] += 1
            yield page


async def seed(url: str, layout: str) -> None:
    """Write a store in which every batch is indexed and enqueued."""
    from benchmarks.reconcile_world import accept_many, full_pass  # noqa: PLC0415
    from sluice_store import StoreMode, open_store  # noqa: PLC0415

    async with open_store(url, StoreMode.CREATE) as store:
        await accept_many(store, range(batches_of(url)))
        await full_pass(store, **LAYOUTS[layout])


def batches_of(url: str) -> int:
    """Return the number of batches in a store."""
    return ON_S3 if url.startswith("s3:") else BATCHES


async def verify(url: str) -> Spent:
    """Compare everything derived as `rebuild --verify` does, and measure it."""
    from benchmarks.reconcile_world import reconciler  # noqa: PLC0415
    from sluice_store import open_store  # noqa: PLC0415

    async with open_store(url) as store:
        counted: Any = CountedRequests(store)
        spent = time.process_time()
        found = [one async for one in reconciler(counted).rebuild().differences()]
        return Spent(
            cpu_ms=1e3 * (time.process_time() - spent) / batches_of(url),
            requests=sum(counted.counts.values()) / batches_of(url),
            found=len(found),
        )


def environment_of(checkout: Path) -> dict[str, str]:
    """Return the environment of a process with the packages of a checkout."""
    path = os.pathsep.join(str(checkout / room) for room in (*ROOMS, "cli"))
    return os.environ | CREDENTIALS | {"PYTHONPATH": path}


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Run the S3 server over a folder; return the URL of its store."""
    with versitygw(folder) as started:
        url = started.url("bench", "verify")
        os.environ.update(CREDENTIALS)
        asyncio.run(make_bucket(url))
        yield url


def run(checkout: Path, *arguments: str) -> str:
    """Run a part of this file with the packages of a checkout; return what it printed."""
    environment = environment_of(checkout)
    command = [sys.executable, "-P", str(FILE), *arguments]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout


def main(control: Path | None) -> int:
    """Measure both checkouts in turns; return 1 if a ratio is above the bar."""
    checkouts = {"this checkout": HERE} | ({} if control is None else {"control": control})
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=PARENT) as parent:
        for layout in LAYOUTS:
            folder = (Path(parent) / layout.replace(" ", "-")).as_uri()
            worst = max(worst, compare(checkouts, folder, layout))
            with server(Path(parent) / "s3" / layout.replace(" ", "-")) as url:
                worst = max(worst, compare(checkouts, url, layout))
    return 1 if worst > RATIO_MOST else 0


def compare(checkouts: dict[str, Path], url: str, layout: str) -> float:
    """Measure one store with every checkout, print the figures, and return the ratio."""
    name = f"{'S3' if url.startswith('s3:') else 'directory'}, {layout}"
    run(checkouts.get("control", HERE), "seed", url, layout)
    found: dict[str, list[Spent]] = {one: [] for one in checkouts}
    for _ in range(ROUNDS):
        for one, checkout in checkouts.items():
            spent = Spent(**json.loads(run(checkout, "verify", url)))
            if spent.found:
                raise RuntimeError(f"the store is not intact: {spent.found} differences")
            found[one].append(spent)
    for one, runs in found.items():
        cpu_ms = statistics.median(spent.cpu_ms for spent in runs)
        print(f"{name}, {one}: {cpu_ms:.3f} ms, {runs[0].requests:.2f} requests per batch")
    if len(found) == 1:
        return 0.0
    ratios = [
        mine.cpu_ms / other.cpu_ms
        for mine, other in zip(found["this checkout"], found["control"], strict=True)
    ]
    middle = statistics.median(ratios)
    print(f"{name}: CPU ratio {middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)
    return middle


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    match sys.argv[1:]:
        case ["seed", url, layout]:
            asyncio.run(seed(url, layout))
        case ["verify", url]:
            print(json.dumps(asdict(asyncio.run(verify(url)))))
        case [checkout]:
            sys.exit(main(Path(checkout).resolve()))
        case _:
            sys.exit(main(None))
