"""One run: start a cluster, disturb it, wait for its end state, and check the history."""

import asyncio
import json
import os
import platform
import random
import subprocess
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from support.spark_local import ingest_locally
from verify.checking import CHECKERS, build_checkers, check_history
from verify.clients import Clients
from verify.cluster import AGENTS, DOORS, STORES, Cluster
from verify.nemesis import Nemesis
from verify.operators import Operator

from sluice_cli.verify.recording import Recorder
from sluice_protocol.system_clock import SystemClock

ROOT: Final = Path(__file__).parents[2]
REPEATERS: Final = 3
SETTLED_S: Final = 400.0


async def disturb(cluster: Cluster, clients: Clients, nemesis: Nemesis, seconds: float) -> None:
    """Run clients and faults for a time; then let every client come to an end, without faults."""
    stop, recorder = asyncio.Event(), clients.recorder
    async with asyncio.TaskGroup() as tasks:
        supervisor = tasks.create_task(cluster.supervise())
        for number in range(1, cluster.store.uploaders + 1):
            tasks.create_task(clients.upload(number))
        for number in range(10, 10 + REPEATERS):
            tasks.create_task(clients.repeat(number))
        for number, door in enumerate(DOORS, 20):
            tasks.create_task(clients.door(number, door))
        lines = [
            tasks.create_task(clients.write_lines(number, cluster.folder / f"{agent}.log"))
            for number, agent in enumerate(AGENTS, 30)
        ]
        tasks.create_task(clients.query(40, cluster.store.read_url))
        await asyncio.sleep(min(3.0, seconds / 4))
        faults = tasks.create_task(nemesis.run(stop))
        await asyncio.sleep(seconds)
        stop.set()
        await faults
        clients.stop.set()
        supervisor.cancel()
    await asyncio.to_thread(cluster.drain_agents)
    for task in lines:
        for op in task.result():
            recorder.end(op, "ok", result="stored")


async def settle(cluster: Cluster, clients: Clients, operator: Operator) -> tuple[bool, int]:
    """Wait until an answer is complete through the last success, and ingest everything.

    Then the erasures end, and what they have erased is sent again. Also return the time before
    which garbage is collected.
    """
    last_ns, end_s = time.time_ns(), time.monotonic() + SETTLED_S
    while (settled := await clients.compare(40, cluster.store.read_url) > last_ns) is False:
        if time.monotonic() > end_s:
            break
        await asyncio.sleep(2.0)
    if cluster.spark:
        await asyncio.to_thread(cluster.kill, "ingest")
        store = ("--store", cluster.store.url)
        await asyncio.to_thread(cluster.sluice, "spark", "ingest", "--once", *store, timeout=900)
        compact = ("spark", "compact", "--open-partitions")
        await asyncio.to_thread(cluster.sluice, *compact, *store, timeout=900)
    else:
        await asyncio.to_thread(ingest_locally, cluster.store.url)
    await asyncio.to_thread(cluster.remove_unfinished)
    await operator.end_erasures()
    collected_ns = await asyncio.to_thread(cluster.collect_garbage)
    await asyncio.to_thread(cluster.collect_garbage)  # it executes the plan of the first one
    await asyncio.to_thread(cluster.write_state, clients.recorder.folder / "state.jsonl")
    await operator.repeat_erased()
    return settled, collected_ns


async def run(
    folder: Path,
    store: str,
    seconds: float,
    seed: int,
    *,
    spark: bool,
    faults: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Make a history in `folder`/history with these faults or all, and return the result."""
    started_s, began = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    rng, commit = random.Random(seed), revision()
    history = folder / "history"
    with Recorder(history, SystemClock()) as recorder:
        place = STORES[store](folder, recorder, rng)
        cluster = Cluster(folder, place, recorder, rng, spark)
        async with cluster.running():
            clients = Clients(
                recorder,
                seed,
                cluster.key,
                cluster.sender,
                cluster.balancer.port,
                cluster.ports,
                place.pause_s,
            )
            nemesis = Nemesis(cluster, clients, random.Random(f"{seed} faults"), faults)
            await disturb(cluster, clients, nemesis, seconds)
            settled, collected_ns = await settle(cluster, clients, nemesis.operator)
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    meta = {
        "seed": seed,
        "store": store,
        "minutes": round(seconds / 60, 1),
        "began": began,
        "revision": commit,
        "machine": f"{os.cpu_count()} cores, {system}",
        "versions": {name: version(name) for name in ("pyspark", "deltalake", "duckdb")},
        "settings": {
            "gateways": 3,
            "reconcilers": 2,
            "uploaders": place.uploaders,
            "repeaters": REPEATERS,
            "doors": DOORS,
            "agents": len(AGENTS),
            "ingest": "Spark" if spark else "after the run",
        },
        "faults": list(nemesis.faults),
        "compacted": spark,
        "collected_before": collected_ns,
    }
    (history / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
    program = build_checkers(folder)
    verdicts = [check_history(program, checker, history) for checker in CHECKERS]
    return {
        **meta,
        "seconds": round(time.monotonic() - started_s),
        "outcomes": dict(recorder.ends),
        "results": dict(recorder.results),
        "firings": {**dict.fromkeys(nemesis.faults, 0), **recorder.firings},
        "settled": settled,
        "errors_logged": dict(cluster.errors()),
        "exits": dict(cluster.exits),
        "verdicts": verdicts,
        "passed": settled and not any(verdict["broken"] for verdict in verdicts),
    }


def revision() -> str:
    with suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    return "unknown"
