"""Faults of a run, in an order that follows from the seed; each is counted when it happens."""

import asyncio
import random
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from typing import Final

from verify.clients import Clients
from verify.cluster import Cluster, S3Store
from verify.operators import Operator
from verify.proxy import FaultyProxy

NETWORK: Final = ("reset_before_forwarding", "reset_after_forwarding", "repeat", "delay")
PROCESSES: Final = (
    *("gateway_killed", "gateway_stopped", "gateway_restarted", "reconciler_killed"),
    *("reconciler_stopped", "agent_killed", "gateway_cut_off"),
)
PAUSE_S: Final = (0.5, 4.0)
PROXY_S: Final = 30.0
"""Time for the writes that the last faults of the proxies wait for."""


class Nemesis:
    """Makes every fault once in each cycle."""

    def __init__(
        self,
        cluster: Cluster,
        clients: Clients,
        rng: random.Random,
        faults: tuple[str, ...] = (),
    ) -> None:
        self.cluster, self.clients, self.rng = cluster, clients, rng
        self.operator = Operator(cluster, clients, rng)
        self.faults = faults or (
            *(f"balancer_{name}" for name in NETWORK),
            *PROCESSES,
            *(("ingest_killed",) if cluster.spark else ()),
            *cluster.store.all_faults(),
            "blob_damaged",
            *self.operator.all_faults(),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Make faults until stopped, each of them at least once, and wait for those of proxies."""
        fired = self.clients.recorder.firings
        while not stop.is_set() or any(not fired[one] for one in self.faults):
            for fault in self.rng.sample(self.faults, len(self.faults)):
                if stop.is_set() and fired[fault]:  # maybe in the background, during a pause
                    continue
                await self._make(fault)
                await asyncio.sleep(self.rng.uniform(*PAUSE_S))
        await self.operator.end()
        end_s = time.monotonic() + PROXY_S
        for proxy in self._proxies().values():
            while proxy.pending.total() and time.monotonic() < end_s:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            proxy.pending.clear()

    def _proxies(self) -> dict[str, FaultyProxy]:
        found = {"balancer": self.cluster.balancer}
        if isinstance(self.cluster.store, S3Store):
            found["store"] = self.cluster.store.proxy
        return found

    async def _make(self, fault: str) -> None:
        proxies = self._proxies()
        owner, _, name = fault.partition("_")
        if owner in proxies and name in NETWORK:
            proxies[owner].pending[name] += self.rng.randint(1, 4)
            return
        places = (self, self.operator, self.cluster.store)
        action: Callable[[], Awaitable[None]] = next(
            getattr(place, fault) for place in places if hasattr(place, fault)
        )
        await action()

    async def gateway_killed(self) -> None:
        victim = self.cluster.gateways.pop(self.rng.randrange(len(self.cluster.gateways)))
        victim.kill()
        self._fired("gateway_killed", victim.port)
        await asyncio.sleep(self.rng.uniform(0.0, 2.0))
        await self.cluster.start_gateway()

    async def gateway_restarted(self) -> None:
        victim = self.cluster.gateways.pop(self.rng.randrange(len(self.cluster.gateways)))
        self._fired("gateway_restarted", victim.port)
        await asyncio.to_thread(victim.stop, 90.0)
        await self.cluster.start_gateway()

    async def gateway_stopped(self) -> None:
        victim = self.rng.choice(self.cluster.gateways)
        await self._suspend(victim.process, "gateway_stopped", str(victim.port))

    async def gateway_cut_off(self) -> None:
        """Cut the balancer off a gateway to which clients still send."""
        self.cluster.balancer.cut_off = self.rng.choice(self.cluster.gateways).port
        self._fired("gateway_cut_off", self.cluster.balancer.cut_off)
        await asyncio.sleep(self.rng.uniform(1.0, 8.0))
        self.cluster.balancer.cut_off = 0

    async def reconciler_killed(self) -> None:
        await self._restart(f"reconciler-{self.rng.randint(1, 2)}", "reconciler_killed")

    async def reconciler_stopped(self) -> None:
        name = f"reconciler-{self.rng.randint(1, 2)}"
        await self._suspend(self.cluster.processes[name], "reconciler_stopped", name)

    async def agent_killed(self) -> None:
        await self._restart(f"agent-{self.rng.randint(1, 2)}", "agent_killed")

    async def ingest_killed(self) -> None:
        await self._restart("ingest", "ingest_killed")

    async def blob_damaged(self) -> None:
        """Change a byte of an accepted blob, and repair it as docs/recovery.md describes."""
        if not self.clients.acknowledged:
            return
        batch = self.rng.choice(self.clients.acknowledged)
        at = self.rng.randrange(len(batch.frame))
        body = batch.frame[:at] + bytes([batch.frame[at] ^ 1]) + batch.frame[at + 1 :]
        first, second = batch.sha256[:2], batch.sha256[2:4]
        key = f"raw-blobs/v1/sha256/{first}/{second}/{batch.sha256}.lmbatch"
        await asyncio.to_thread(self.cluster.store.damage, key, body)
        self._fired("blob_damaged", batch.identity)
        for one in self.cluster.gateways:  # they repeat recent responses from memory
            one.kill()
        self.cluster.gateways.clear()
        for _ in range(3):
            await self.cluster.start_gateway()
        await self.clients.repair(batch)

    async def _restart(self, name: str, fault: str) -> None:
        await asyncio.to_thread(self.cluster.kill, name)
        self._fired(fault, name)
        await asyncio.sleep(self.rng.uniform(0.0, 3.0))
        self.cluster.start(name)

    async def _suspend(self, process: "subprocess.Popen[bytes]", fault: str, target: str) -> None:
        process.send_signal(signal.SIGSTOP)
        self._fired(fault, target)
        try:
            await asyncio.sleep(self.rng.uniform(1.0, 8.0))
        finally:
            process.send_signal(signal.SIGCONT)

    def _fired(self, fault: str, target: object) -> None:
        self.clients.recorder.fired(fault, str(target))
