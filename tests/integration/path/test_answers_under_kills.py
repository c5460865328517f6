"""Real gateways and reconcilers are killed and suspended at random while clients record each 200.

Each answer of a query is compared with that record: a batch that was acknowledged before
`accepted_until` is in the answer. `SLUICE_SIM_SEEDS=7` replays the order of one run.
"""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from support.constants import command_with_constants, settings_with
from support.gateway import (
    Client,
    GatewayProcess,
    TestKey,
    frame_of,
    gateways,
    identity,
    start_gateway,
)
from support.local_deployment import clean_environment
from support.query_lake import bodies, make_query, run_query
from support.repetitions import times
from support.simloop import seeds
from support.sluice_process import SluiceProcess
from support.spark_lake import Deployment
from support.store_versitygw import free_port

from sluice_protocol.journals import DISCOVERY, JOURNAL_REPLACED_AFTER_S, DiscoveryRecord
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import UnixNs
from sluice_query.settings import QuerySettings
from sluice_queue.inspection import read_lane
from sluice_queue.lane import list_lanes
from sluice_queue.worklists import read_work_list
from sluice_store import open_store

AGENTS = tuple(f"agent-{number}" for number in range(6))
KEY = TestKey("agents", AGENTS)
EVERYTHING = make_query(from_ns=UnixNs(0), to_ns=UnixNs(2**62), limit=100_000)
SETTINGS = settings_with(QuerySettings, threads=1, accepted_list_max=0)
CATCH_UP_S = JOURNAL_REPLACED_AFTER_S + 240.0


@dataclass
class Site:
    """The processes of one deployment, and what the clients know."""

    folder: Path
    servers: list[GatewayProcess]
    reconcilers: list["subprocess.Popen[bytes]"]
    rng: random.Random
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    acknowledged: dict[str, int] = field(default_factory=dict)
    answers: int = 0
    times: list[int] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"file://{self.folder}/store"

    def live(self) -> list[GatewayProcess]:
        return [one for one in self.servers if one.process.poll() is None]

    async def send(self, agent: str) -> None:
        """Send batches until stopped, each until a 200, and record when it was received."""
        rng = random.Random(agent)
        timeout = aiohttp.ClientTimeout(total=3)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            seq = 0
            while not self.stop.is_set():
                body = f"{agent} {seq}"
                frame = frame_of(identity(agent, seq), body)
                client = Client(session, rng.choice(self.live()).port, KEY)
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    if (await client.upload(frame)).status == 200:
                        self.acknowledged[f"{body} 0"] = time.time_ns()
                        seq += 1
                await asyncio.sleep(rng.choice((0.05, 0.2)))

    async def ask(self) -> None:
        """Query until stopped, and compare each answer with the record of the clients."""
        while not self.stop.is_set():
            await self.compare()
            await asyncio.sleep(0.1)

    async def compare(self) -> int:
        """Return through which time one answer is complete; check that it is true."""
        found = await asyncio.to_thread(
            run_query, Deployment(self.folder / "store"), EVERYTHING, SETTINGS
        )
        until = found.summary.accepted_until
        until_ns = parse_rfc3339(until) if until is not None else 0
        shown = set(map(str, bodies(found)))
        missing = [
            body
            for body, at_ns in self.acknowledged.items()
            if at_ns < until_ns and body not in shown
        ]
        assert missing == [], (until, found.summary)
        assert len(shown) == len(bodies(found)), "a batch is shown twice"
        self.answers += 1
        self.times.append(until_ns)
        return until_ns

    def has_advanced(self) -> bool:
        """Return True if an answer was complete through a time after a 200."""
        first_ns = min(self.acknowledged.values(), default=0)
        return bool(first_ns and self.times and self.times[-1] > first_ns)

    async def suspend(self, process: "subprocess.Popen[bytes]", seconds: float) -> None:
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    async def fault(self, kind: str, pause_s: tuple[float, ...]) -> None:
        """Kill a gateway and start another one, or suspend a gateway or a reconciler."""
        victim = self.rng.choice(self.live())
        if kind == "kill":
            victim.kill()
            self.servers.append(await asyncio.to_thread(self._start))
        elif kind == "gateway":
            await self.suspend(victim.process, self.rng.choice(pause_s))
        else:
            await self.suspend(self.rng.choice(self.reconcilers), self.rng.choice(pause_s))

    def _start(self) -> GatewayProcess:
        return start_gateway(self.folder, self.url, self.folder / "principals.toml")

    async def queued(self) -> Counter[str]:
        """Return how often each batch is in the queue."""
        found: Counter[str] = Counter()
        async with open_store(self.url) as store:
            for lane in await list_lanes(store, "spark"):
                for entry in (await read_lane(store, lane.queue, lane.lane)).descriptors:
                    for one in (await read_work_list(store, lane, entry)).batches:
                        found[f"{one.agent_id} {one.seq_start} 0"] += 1
        return found


@contextmanager
def site(folder: Path, seed: int, *, count: int, reconcilers: int) -> Iterator[Site]:
    """Start gateways and reconcilers; end all of them, suspended ones too."""
    with gateways(folder, KEY, count=count) as servers:
        made = Site(folder, servers, [], random.Random(seed))
        try:
            made.reconcilers += [_reconciler(made.url) for _ in range(reconcilers)]
            asyncio.run(_journaled(made.url))
            yield made
        finally:
            for process in (*made.reconcilers, *(one.process for one in servers)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
            for one in made.reconcilers:
                one.kill()
                one.wait()


def _reconciler(url: str) -> "subprocess.Popen[bytes]":
    return SluiceProcess(
        [
            *command_with_constants(
                "sluice_reconciler.settings:ReconcilerSettings.pass_interval_s=0.2"
            ),
            *("reconciler", "--store", url, "--listen", f"127.0.0.1:{free_port()}"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=clean_environment(),
    )


async def _journaled(url: str) -> None:
    async with open_store(url) as store, asyncio.timeout(90):
        while True:
            read = await store.get(DISCOVERY)
            if isinstance(read, Found):
                record = decode_record(DISCOVERY, read.body, DiscoveryRecord)
                if record.journaled_since_unix_ns is not None:
                    return
            await asyncio.sleep(0.1)


async def play(made: Site, faults: Sequence[str], pause_s: tuple[float, ...]) -> None:
    """Make faults under load, the first one after an answer contains a batch."""
    async with asyncio.TaskGroup() as tasks:
        for agent in AGENTS:
            tasks.create_task(made.send(agent))
        tasks.create_task(made.ask())
        async with asyncio.timeout(60):
            while not made.has_advanced():  # noqa: ASYNC110 - it polls from outside
                await asyncio.sleep(0.1)
        for kind in faults:
            await made.fault(kind, pause_s)
            await asyncio.sleep(made.rng.choice((0.1, 0.6)))
        made.stop.set()


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(1))
def test_no_answer_is_complete_ahead_of_the_clients_record(tmp_path: Path, seed: int) -> None:
    with site(tmp_path, seed, count=2, reconcilers=1) as made:
        asyncio.run(play(made, ("gateway", "reconciler", "kill"), (0.5, 1.5)))
        assert made.answers > 2
        assert len(made.acknowledged) > 20


@pytest.mark.long
@pytest.mark.timeout(1200)  # the pauses alone can take ten minutes
@pytest.mark.parametrize("seed", seeds(times(1)))
def test_answers_catch_up_after_kills_and_pauses(tmp_path: Path, seed: int) -> None:
    """Every batch with a 200 is in the queue once, and the time passes the last of them."""
    with site(tmp_path, seed, count=3, reconcilers=2) as made:
        faults = made.rng.choices(("kill", "gateway", "gateway", "reconciler"), k=6)
        asyncio.run(play(made, faults, (1.0, 8.0, 20.0, 70.0)))
        last_ns = max(made.acknowledged.values())

        async def catch_up() -> None:
            end_s = time.monotonic() + CATCH_UP_S
            while await made.compare() <= last_ns:
                assert time.monotonic() < end_s, made.times[-1]
                await asyncio.sleep(2.0)
            counts = await made.queued()
            assert made.acknowledged.keys() <= counts.keys()
            assert set(counts.values()) == {1}

        asyncio.run(catch_up())
