"""What an operator does to a running cluster: changes of settings, deletions, and repairs."""

import asyncio
import json
import random
import subprocess
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from botocore.exceptions import BotoCoreError, ClientError
from support.builders import make_identity
from support.gateway import TestKey
from verify.clients import Clients
from verify.cluster import SPOOL_WRITER, UPLOADERS, Cluster, S3Store

from sluice_cli.verify.uploads import Batch
from sluice_protocol.keys import blob_key
from sluice_protocol.system_clock import SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_store import open_store

Result = TypeVar("Result")
TRIES: Final = 90
LANES_MAX: Final = 6
RELOADED_S: Final = 4.0
"""A gateway loads a changed principals file after two equal checks, one a second."""
FAKETIME: Final = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
OFFSETS_S: Final = (-20, 20)
"""Within the 30 s for which a signature is valid.

With more than 15 minutes an S3 server refuses every request of a process. The processes of a
directory store share the clock of its machine, which is the store's clock.
"""
FLAGS: Final = (
    ("--journal-interval-s", "1"),
    ("--journal-interval-s", "5"),
    ("--drain-time-s-max", "2"),
    ("--inflight-bytes-max", str(64 << 20)),
)
DRAINED_S: Final = 10.0
"""Time for a gateway without clients to transfer its spool, besides that after SIGTERM."""
DERIVED: Final = ("accepted-by-time/v1/", "accepted-by-blob/v1/", "raw-blobs-by-time/v1/")
OPERATOR: Final = 50
"""The client of operations that an operator begins."""
ERASE_RUNS: Final = 12
"""Runs of one erasure after the faults: it needs two or three."""
ERASE_WAIT_S: Final = 3_600.0
"""An erasure whose next run is later than this has not ended."""
SETTLE_S: Final = "10"
"""How long a spool waits after a switch before which the gateways were stopped. A gateway that
still runs needs the 60 s of the product."""
LEFT_S: Final = 90.0
"""The longest time until a gateway of the mode before a switch has ended."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """An erasure of the records of one batch, and the operation that ends with it."""

    op: int
    batch: Batch
    erasure_id: str


class Operator:
    """Each method is a fault or a change, which the nemesis selects by its name."""

    def __init__(self, cluster: Cluster, clients: Clients, rng: random.Random) -> None:
        self.cluster, self.clients, self.rng = cluster, clients, rng
        self.keys = self.orphans = 0
        self.running: dict[str, asyncio.Task[None]] = {}
        self.erasures: list[Erasure] = []

    def all_faults(self) -> tuple[str, ...]:
        """Return the names of those that this machine and this cluster permit."""
        skewed = FAKETIME.exists() and isinstance(self.cluster.store, S3Store)
        return (
            *("keys_rolled", "gateways_rolled", "records_deleted", "register_damaged"),
            *("register_lost", "index_lost", "journal_damaged", "garbage_collected"),
            *(("gateway_clock_skewed", "reconciler_clock_skewed") if skewed else ()),
            "mode_switched",
            *(("lanes_changed", "compacted", "records_erased") if self.cluster.spark else ()),
        )

    async def end(self) -> None:
        """Wait for what runs in the background."""
        await asyncio.gather(*self.running.values())

    async def _begin(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run work while other faults happen, unless the same still runs."""
        if name not in self.running or self.running[name].done():
            self.running[name] = asyncio.create_task(work())

    async def _command(self, *words: str, limit_s: float = 300) -> None:
        store = ("--store", self.cluster.store.url)
        await self._repeat(lambda: self.cluster.sluice(*words, *store, timeout=limit_s))

    async def _killed(self, after_s: float, *words: str) -> None:
        """Start a command, and kill it."""
        self.cluster.start_command(words[0], *words)
        await asyncio.sleep(after_s)
        await asyncio.to_thread(self.cluster.kill, words[0])

    async def _repeat(self, command: Callable[[], Result]) -> Result:
        """Run a command, and repeat it while it fails or takes too long, as an operator would."""
        for _ in range(TRIES - 1):
            try:
                return await asyncio.to_thread(command)
            except (AssertionError, subprocess.TimeoutExpired, ClientError, BotoCoreError) as error:
                print(f"to be repeated: {error}", flush=True)
                await asyncio.sleep(1.0)
        return await asyncio.to_thread(command)

    def _fired(self, fault: str, target: object) -> None:
        self.clients.recorder.fired(fault, str(target))

    async def keys_rolled(self) -> None:
        """Add a key, move the uploaders to it, and remove the old one."""
        self.keys += 1
        old, new = self.clients.key, TestKey(f"uploaders-{self.keys}", UPLOADERS)
        self.cluster.write_principals(old, new)
        await asyncio.sleep(RELOADED_S)
        self.clients.key = self.cluster.key = new
        self.cluster.write_principals(new)
        self._fired("keys_rolled", new.key_id)

    async def gateways_rolled(self) -> None:
        """Restart each gateway in turn with another option."""
        self.cluster.gateway_flags = self.rng.choice(FLAGS)
        for _ in range(len(self.cluster.gateways)):
            victim = self.cluster.gateways.pop(0)
            await asyncio.to_thread(victim.stop, 90.0)
            await self.cluster.start_gateway()
        self._fired("gateways_rolled", " ".join(self.cluster.gateway_flags))

    async def gateway_clock_skewed(self) -> None:
        """Run one gateway with another clock for some seconds."""
        offset = self.rng.choice(OFFSETS_S)
        victim = self.cluster.gateways.pop(0)
        victim.kill()
        await self.cluster.start_gateway(prefix=_with_clock(offset))
        skewed = self.cluster.gateways[-1]
        self._fired("gateway_clock_skewed", offset)
        await asyncio.sleep(self.rng.uniform(3.0, 10.0))
        if skewed in self.cluster.gateways:
            self.cluster.gateways.remove(skewed)
            skewed.kill()
            await self.cluster.start_gateway()

    async def reconciler_clock_skewed(self) -> None:
        """Run one reconciler with another clock for some seconds."""
        name, offset = f"reconciler-{self.rng.randint(1, 2)}", self.rng.choice(OFFSETS_S)
        await asyncio.to_thread(self.cluster.kill, name)
        self.cluster.start(name, prefix=_with_clock(offset))
        self._fired("reconciler_clock_skewed", f"{name} {offset}")
        await asyncio.sleep(self.rng.uniform(3.0, 10.0))
        await asyncio.to_thread(self.cluster.kill, name)
        self.cluster.start(name)

    async def records_deleted(self) -> None:
        """Delete the records of one accepted batch; no client sends the batch again."""
        if not (kept := self.clients.acknowledged):
            return
        batch = kept.pop(self.rng.randrange(len(kept)))
        delete_id = SystemIds().ulid()
        op = self.clients.recorder.invoke(OPERATOR, "delete", payload=batch.payload)

        await self._command(
            *("delete", "--where", _records_of(batch)),
            *("--delete-id", delete_id, "--reason", "verify"),
        )
        self.clients.recorder.end(op, "ok", result="deleted")
        self._fired("records_deleted", batch.payload)

    async def records_erased(self) -> None:
        """Decide the erasure of the records of one accepted batch, sometimes with a killed run.

        No client sends the batch again before the erasure has ended.
        """
        kill_after_s = self.rng.uniform(3.0, 25.0) if self.rng.random() < 0.5 else 0.0

        async def work() -> None:
            if not (kept := self.clients.acknowledged):
                return
            batch = kept.pop(self.rng.randrange(len(kept)))
            recorder = self.clients.recorder
            hidden = recorder.invoke(OPERATOR, "delete", payload=batch.payload)
            op = recorder.invoke(
                OPERATOR, "erase", payload=batch.payload, identity=batch.identity,
                sha256=batch.sha256,
            )  # fmt: skip
            where = _records_of(batch)
            new = ("--where", where, "--reason", "verify")
            options = ("--key-file", "auditor.pem", "--store", self.cluster.store.url)
            if kill_after_s:
                await self._killed(kill_after_s, "erase", "run", *new, *options)

            def decide() -> str:
                known = self._erasure(where)
                which = (known["erasure_id"],) if known else new
                self.cluster.sluice("erase", "run", *which, *options, timeout=900)
                return str(self._erasure(where)["erasure_id"])

            erasure_id = await self._repeat(decide)
            recorder.end(hidden, "ok", result="deleted")
            self.erasures.append(Erasure(op, batch, erasure_id))
            self._fired("records_erased", batch.payload)

        await self._begin("records_erased", work)

    def _erasure(self, where: str) -> dict[str, Any]:
        """Return the erasure with this filter, or an empty value."""
        listed = self.cluster.sluice("erase", "list", "--json", "--store", self.cluster.store.url)
        return next((one for one in json.loads(listed) if one["where"] == where), {})

    async def end_erasures(self) -> None:
        """Run each erasure until it has ended; then other bytes of its batch must be a conflict."""
        for one in self.erasures:
            left = await self._end_erasure(one)
            outcome = "unknown" if left else "ok"
            self.clients.recorder.end(one.op, outcome, result=left or "erased")
            rival = Batch(one.batch.who, self.clients.recorder.new_payload(), time.time_ns())
            await self.clients.repair(rival)

    async def repeat_erased(self) -> None:
        """Send each erased batch again, which stores its bytes again for the retry horizon."""
        for one in self.erasures:
            await self.clients.repair(one.batch)

    async def _end_erasure(self, erasure: Erasure) -> str:
        """Run an erasure until it has ended; return why it has not, or nothing."""
        where = _records_of(erasure.batch)
        words = ["erase", "run", erasure.erasure_id, "--grace-s", "0", "--readers-hours", "0"]
        words += ["--max-delete-ratio", "1", "--key-file", "auditor.pem"]
        words += ["--store", self.cluster.store.read_url]

        def run() -> dict[str, Any]:
            self.cluster.sluice(*words, timeout=900)
            return self._erasure(where)

        for _ in range(ERASE_RUNS):
            found = await self._repeat(run)
            if found["ended"]:
                return ""
            next_s = ((found["next_at_unix_ns"] or 0) - time.time_ns()) / NS_PER_S
            if next_s > ERASE_WAIT_S:
                break
            await asyncio.sleep(max(1.0, next_s))
        return json.dumps(found)

    async def mode_switched(self) -> None:
        """Accept in a local spool for some seconds, during faults, and return to the store.

        The gateways are stopped before the switch, or find it and end. The spool is drained,
        sometimes after it was killed, during an outage of the store or without one. The command
        that ends the mode is sometimes killed and repeated.
        """
        cluster = self.cluster
        async with cluster.switching:
            cluster.leaving, cluster.gateways = cluster.gateways, []
            flags = cluster.gateway_flags
            if self.rng.random() < 0.5:
                await self._stop_leaving()
                cluster.gateway_flags += ("--switch-settle-s", SETTLE_S)
            await self._command("switch", "local_spool", "--spool-writer", SPOOL_WRITER)
            cluster.spooling = True
            await cluster.start_gateway()
            cluster.gateway_flags = flags
            for one in cluster.leaving:
                code = await asyncio.to_thread(one.process.wait, LEFT_S)
                cluster.exits[f"gateway of the mode before a switch, code {code}"] += 1
            cluster.leaving = []
            await self._spool_faults()
            await self._drain_spool()
            words = ("s3_manifest", "--spool", cluster.spool)
            if self.rng.random() < 0.5:
                kill_after_s = self.rng.uniform(0.0, 0.6)
                await self._killed(kill_after_s, "switch", *words, "--store", cluster.store.url)
            await self._command("switch", *words)
            cluster.spooling = False
            for _ in range(3):
                await cluster.start_gateway()
            self._fired("mode_switched", "local_spool s3_manifest")

    async def _stop_leaving(self) -> None:
        for one in self.cluster.leaving:
            await asyncio.to_thread(one.stop, 90.0)
        self.cluster.leaving = []

    async def _spool_faults(self) -> None:
        """Kill the gateway of a spool, make its store unreachable, or let it run."""
        outage = asyncio.create_task(asyncio.sleep(self.rng.uniform(1.0, 4.0)))
        if self.rng.random() < 0.5:
            name = self.rng.choice(self.cluster.store.outages)
            outage = asyncio.create_task(getattr(self.cluster.store, name)())
        await asyncio.sleep(self.rng.uniform(0.5, 4.0))
        if self.rng.random() < 0.5:
            self.cluster.gateways.pop().kill()
            self._fired("spool_killed", self.cluster.spool)
            await self.cluster.start_gateway()
        await outage
        await asyncio.sleep(self.rng.uniform(0.0, 4.0))

    async def _drain_spool(self) -> None:
        """Stop the gateway of the spool until it reports that nothing is left.

        Clients send to it until then; after the first try none knows its port.
        """
        gateway = self.cluster.gateways.pop()
        for _ in range(TRIES):
            if await asyncio.to_thread(gateway.stop, 90.0) == 0:
                return
            await self.cluster.start_gateway()
            gateway = self.cluster.gateways.pop()
            await asyncio.sleep(DRAINED_S)
        raise AssertionError("the spool is not drained")

    async def lanes_changed(self) -> None:
        """Change the number of lanes, sometimes after a change that was killed."""
        lanes = str(self.rng.randint(1, LANES_MAX))
        kill_after_s = self.rng.uniform(0.3, 4.0) if self.rng.random() < 0.5 else 0.0

        async def work() -> None:
            words = ("queue", "lanes", lanes, "--store", self.cluster.store.url)
            if kill_after_s:
                await self._killed(kill_after_s, *words)
            await self._command("queue", "lanes", lanes)
            self._fired("lanes_changed", lanes)

        await self._begin("lanes_changed", work)

    async def compacted(self) -> None:
        """Compact the tables while everything else runs."""

        async def work() -> None:
            await self._command("spark", "compact", "--open-partitions")
            self._fired("compacted", "lake")

        await self._begin("compacted", work)

    async def garbage_collected(self) -> None:
        """Leave a blob without a manifest, as a killed gateway does, and collect garbage."""
        self.orphans += 1
        who = make_identity(self.orphans, count=1, agent="agent-1", boot="orphans")
        orphan = Batch(who, "orphan", time.time_ns())
        async with open_store(self.cluster.store.read_url) as store:
            await store.create(blob_key(orphan.sha256), orphan.frame)

        async def work() -> None:
            await self._repeat(self.cluster.collect_garbage)
            self._fired("garbage_collected", orphan.sha256)

        await self._begin("garbage_collected", work)

    async def register_damaged(self) -> None:
        """Change a byte of the register of a lane, and rebuild it."""
        await self._repair("register_damaged", self._registers, self._damage)

    async def register_lost(self) -> None:
        """Remove the register of a lane, and rebuild it."""
        await self._repair("register_lost", self._registers, self.cluster.store.remove)

    async def index_lost(self) -> None:
        """Remove some objects of a derived index, and rebuild them."""

        def select() -> list[str]:
            for prefix in self.rng.sample(DERIVED, len(DERIVED)):
                if keys := list(self.cluster.store.list(prefix)):
                    return self.rng.sample(keys, min(5, len(keys)))
            return []

        await self._repair("index_lost", select, self.cluster.store.remove)

    async def journal_damaged(self) -> None:
        """Change a byte of an object of a gateway's journal; a full pass replaces it."""
        keys = await asyncio.to_thread(
            lambda: list(self.cluster.store.list("gateways/v1/journals/"))
        )
        if keys:
            key = self.rng.choice(keys[-20:])
            await asyncio.to_thread(self._damage, key)
            self._fired("journal_damaged", key)

    def _registers(self) -> list[str]:
        keys = [one for one in self.cluster.store.list("queue/v1/") if one.endswith("/manifest")]
        return [self.rng.choice(keys)] if keys else []

    def _damage(self, key: str) -> None:
        if body := self.cluster.store.read(key):
            at = self.rng.randrange(len(body))
            self.cluster.store.damage(key, body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])

    async def _repair(
        self, fault: str, select: Callable[[], list[str]], harm: Callable[[str], None]
    ) -> None:
        await asyncio.gather(
            *(one for name, one in self.running.items() if name == "lanes_changed")
        )
        keys = await asyncio.to_thread(select)
        for key in keys:
            await self._repeat(partial(harm, key))
            self._fired(fault, key)
        await asyncio.sleep(self.rng.uniform(0.5, 5.0))
        await self._command("rebuild", limit_s=900)


def _records_of(batch: Batch) -> str:
    """Return the filter of the records of one batch, and of no other."""
    return f"body contains '{batch.payload} '"


def _with_clock(offset_s: int) -> tuple[str, ...]:
    """Return the start of a command whose process has another clock, except the monotonic one."""
    return (
        *("env", f"LD_PRELOAD={FAKETIME}", f"FAKETIME={offset_s:+d}s"),
        *("FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_RESET=1"),
    )
