"""The time from acceptance to the queue, and to the answer of a query, with every real process.

A gateway, a reconciler, client processes that upload at a rate, a consumer that takes the place of
the ingest job, and a process that queries for probes. The store is a directory, or versitygw
without notifications, and contains older manifests that are written as files.

    python -m benchmarks.end_to_end --store directory --minutes 10 --older 1000000
    python -m benchmarks.end_to_end --store versitygw --minutes 10 --older 1000000

A client sends a batch again after a 503 or without a response, as an agent does. The lag of a batch
begins when its client has read the response 200. It ends when the consumer has read the register
with its entry (polled every 0.1 s), or when a query that contains it has ended. A write of the
gateway or of the reconciler is a PUT on S3; requests of the consumer and of queries are not
counted. `--folder` is the parent of the store: a disk, or `/dev/shm`.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from tests.support.store_versitygw import CREDENTIALS, make_bucket, versitygw

from benchmarks.accept_servers import KEY, KEY_VARIABLE, gateway_on, tree_cpu_of
from benchmarks.end_to_end_roles import AGENTS_EACH, RoleCost, agent_of, agents_of
from benchmarks.older_manifests import ObjectFolder, leave_older
from benchmarks.request_costs import GatewayCounts, read_gateway_counts
from sluice_protocol.prices import RequestCounts, describe_requests, requests_of

PUTS_MAX: Final = 3.15
ENQUEUED_MAX_S, VISIBLE_MAX_S = 2.0, 3.0
DRAIN_S: Final = 12.0
WRITES: Final = ("create", "replace", "overwrite")
PRICED: Final = (*WRITES, "get", "head", "list", "delete")
BUCKET: Final = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The arguments of the command line."""

    store: str
    minutes: float
    older: int
    rate: float
    clients: int
    folder: Path | None
    reconciler: str
    gateway: list[str]

    @property
    def seconds(self) -> float:
        """The duration of the load."""
        return 60 * self.minutes


def parse(arguments: Sequence[str]) -> LoadPlan:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.end_to_end")
    parser.add_argument("--store", choices=("directory", "versitygw"), default="directory")
    parser.add_argument("--minutes", type=float, default=0.5)
    parser.add_argument("--older", type=int, default=20_000, help="older manifests in the store")
    parser.add_argument("--rate", type=float, default=500.0, help="accepts per second")
    parser.add_argument("--clients", type=int, default=2, help="client processes")
    parser.add_argument("--folder", type=Path, help="parent of the store")
    parser.add_argument("--reconciler", default="{}", help="fields of its settings as JSON")
    parser.add_argument("--gateway", nargs="*", default=[], help="flags, such as --workers=2")
    return LoadPlan(**vars(parser.parse_args(arguments)))


class Role:
    """A running process of `end_to_end_roles`."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.end_to_end_roles", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.name = arguments[0]

    def _line(self) -> str:
        if self._process.stdout is None or not (line := self._process.stdout.readline()):
            raise SystemExit(f"{self.name} ended")
        return line

    def wait_until_ready(self) -> None:
        """Wait for its first line."""
        self._line()

    def signal(self) -> None:
        """Send the line that it waits for."""
        if self._process.stdin is not None:
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def cost(self) -> RoleCost:
        """Wait for its end; return what it spent."""
        found = RoleCost(**json.loads(self._line()))
        self._process.wait()
        return found

    def stop(self) -> None:
        """End it if it runs."""
        self._process.kill()
        self._process.wait()


@contextmanager
def store_in(plan: LoadPlan, folder: Path) -> Iterator[str]:
    """Run the store and yield its URL; its older batches are written before."""
    if plan.store == "directory":
        url, place = f"file://{folder}/store", ObjectFolder(path=folder / "store", etags=False)
        place.path.mkdir()
        asyncio.run(leave_older(url, place, plan.older))
        yield url
        return
    os.environ.update(CREDENTIALS | {"AWS_EC2_METADATA_DISABLED": "true"})
    with versitygw(folder) as server:
        url = server.url(BUCKET, "run")
        asyncio.run(make_bucket(url, versioning=None))
        place = ObjectFolder(path=folder / "data" / BUCKET / "run", etags=True)
        asyncio.run(leave_older(url, place, plan.older))
        yield url


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFigures:
    """What was measured.

    Attributes:
        enqueued_s: The lag of each batch until the queue.
        accepted_s: When each of these batches was accepted, in the same order.
        visible_s: The lag of each probe until a query's answer.
        unseen: Probes that no query returned.
        writes: Writes of gateway and reconciler.
        lists: Listings of both.
    """

    accepted: int
    missing: int
    enqueued_s: list[float]
    accepted_s: list[float]
    visible_s: list[float]
    unseen: int
    queries_s: list[float]
    writes: tuple[float, float]
    lists: tuple[float, float]
    requests: RequestCounts
    accepted_bytes: float
    wall_s: float
    costs: list[tuple[str, RoleCost]]


def measure(plan: LoadPlan, url: str, folder: Path) -> LoadFigures:
    """Run the load."""
    out, secrets = folder / "out", folder / "gateway"
    out.mkdir()
    secrets.mkdir()
    with ExitStack() as stack:
        gateway = gateway_on(url, secrets, *plan.gateway, agents=agents_of(plan.clients))
        pid, port = stack.enter_context(gateway)
        each = plan.rate / plan.clients
        lengths = (str(each), str(plan.seconds))
        clients = [
            Role("client", str(out), str(port), str(one), *lengths) for one in range(plan.clients)
        ]
        reconciler = Role("reconcile", url, plan.reconciler)
        consumer, reader = Role("consume", url, str(out)), Role("query", url, str(out), str(port))
        roles = [*clients, reconciler, consumer, reader]
        for one in roles:
            stack.callback(one.stop)
        for one in roles:
            one.wait_until_ready()
        before, spent_s = read_gateway_counts(port), tree_cpu_of(pid)
        started_s = time.perf_counter()
        for one in (*clients, reconciler, reader):
            one.signal()
        costs = [(one.name, one.cost()) for one in clients]
        wall_s = time.perf_counter() - started_s
        time.sleep(DRAIN_S)
        for one in (reconciler, consumer, reader):
            one.signal()
        costs += [(one.name, one.cost()) for one in (reconciler, consumer, reader)]
        after = read_gateway_counts(port)
        costs.append(("gateway", RoleCost(cpu_s=tree_cpu_of(pid) - spent_s, requests={})))
    return _figures(plan, out, after.since(before), costs, wall_s)


def _figures(
    plan: LoadPlan,
    out: Path,
    gateway: GatewayCounts,
    costs: list[tuple[str, RoleCost]],
    wall_s: float,
) -> LoadFigures:
    seen: dict[str, float] = json.loads((out / "seen.json").read_text())
    visible = json.loads((out / "visible.json").read_text())
    lags: list[float] = []
    accepted_s: list[float] = []
    accepted = 0
    for one in range(plan.clients):
        times = np.load(out / f"accepted-{one}.npy")
        for number in np.flatnonzero(~np.isnan(times)).tolist():
            accepted += 1
            found_s = seen.get(f"{agent_of(one, number)} {number // AGENTS_EACH}")
            if found_s is not None:
                lags.append(max(0.0, found_s - float(times[number])))
                accepted_s.append(float(times[number]))
    made = next(cost.requests for name, cost in costs if name == "reconcile")
    return LoadFigures(
        accepted=accepted,
        missing=accepted - len(lags),
        enqueued_s=lags,
        accepted_s=accepted_s,
        visible_s=visible["lags"],
        unseen=len(visible["unseen"]),
        queries_s=visible["took"],
        writes=(
            sum(gateway.calls.get(one, 0) for one in WRITES),
            sum(made.get(one, 0) for one in WRITES),
        ),
        lists=(gateway.calls.get("list", 0), made.get("list", 0)),
        requests=requests_of(gateway.calls) + requests_of(_priced(made)),
        accepted_bytes=gateway.accepted_bytes,
        wall_s=wall_s,
        costs=costs,
    )


def _priced(made: Mapping[str, float]) -> dict[str, float]:
    """Return the calls of the reconciler that are requests; its other methods make none."""
    return {name: made.get(name, 0) for name in PRICED}


def _spread(lags: list[float]) -> str:
    p50, p99, most = np.percentile(lags, [50, 99, 100]) if lags else (np.nan,) * 3
    return f"p50 {p50:.2f} s, p99 {p99:.2f} s, max {most:.2f} s of {len(lags)}"


def _by_minute(lags: list[float], accepted_s: list[float]) -> str:
    """Return the 99th percentile of each minute of the load: a growing one is a cost of history."""
    values, times = np.array(lags), np.array(accepted_s)
    minutes = ((times - times.min()) // 60).astype(int) if lags else np.array([], int)
    worst = [float(np.percentile(values[minutes == one], 99)) for one in np.unique(minutes)]
    return ", ".join(f"{one:.2f}" for one in worst)


def print_figures(plan: LoadPlan, found: LoadFigures) -> bool:
    """Print the figures with their bars; return True if every bar is met."""
    batches = found.accepted + len(found.visible_s) + found.unseen
    puts = sum(found.writes) / batches
    minutes = (found.wall_s + DRAIN_S) / 60
    met = {
        "enqueued": float(np.percentile(found.enqueued_s or [np.inf], 99)) < ENQUEUED_MAX_S,
        "visible": float(np.percentile(found.visible_s or [np.inf], 99)) < VISIBLE_MAX_S,
        "puts": puts <= PUTS_MAX,
        "complete": not found.missing and not found.unseen,
    }
    failed = sum(cost.failed for _, cost in found.costs)
    late = sum(cost.late for _, cost in found.costs)
    repeated = sum((Counter(cost.repeated) for _, cost in found.costs), Counter[str]())
    print(
        f"{plan.store}, {plan.older} older manifests, {plan.minutes} minutes, {plan.clients}"
        f" clients: {found.accepted / found.wall_s:.0f} accepts/s of {plan.rate:.0f}, {failed}"
        f" failed, {late} sent late",
        "sent again after a 503 or without a response: "
        + (", ".join(f"{count} {reason}" for reason, count in repeated.items()) or "none"),
        f"accepted to enqueued: {_spread(found.enqueued_s)}, {found.missing} missing;"
        f" bar p99 {ENQUEUED_MAX_S} s {_verdict(met['enqueued'])}",
        f"the same, p99 of each minute: {_by_minute(found.enqueued_s, found.accepted_s)} s",
        f"accepted to visible in a query: {_spread(found.visible_s)}, {found.unseen} unseen;"
        f" bar p99 {VISIBLE_MAX_S} s {_verdict(met['visible'])}",
        f"duration of a query: {_spread(found.queries_s)}",
        f"PUTs per batch: {puts:.3f} (gateway {found.writes[0] / batches:.3f}, reconciler"
        f" {found.writes[1] / batches:.3f}); bar {PUTS_MAX} {_verdict(met['puts'])}",
        f"LISTs per minute: gateway {found.lists[0] / minutes:.1f}, reconciler"
        f" {found.lists[1] / minutes:.1f}; compare with another --older",
        f"gateway and reconciler, {describe_requests(found.requests, found.accepted_bytes)}",
        "processor time per batch: "
        + ", ".join(f"{name} {1e3 * cost.cpu_s / batches:.2f} ms" for name, cost in found.costs),
        sep="\n  ",
        flush=True,
    )
    return all(met.values())


def _verdict(is_met: bool) -> str:  # noqa: FBT001 - a word for a value
    return "met" if is_met else "MISSED"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a bar is missed."""
    plan = parse(arguments)
    os.environ[KEY_VARIABLE] = KEY.private_bytes_raw().hex()
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-", dir=plan.folder))
    try:
        started_s = time.perf_counter()
        with store_in(plan, folder) as url:
            print(f"store filled in {time.perf_counter() - started_s:.0f} s", flush=True)
            return int(not print_figures(plan, measure(plan, url, folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
