"""The processes of a run: stores, gateways, reconcilers, ingestion and agents; and their state."""

import asyncio
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import boto3
import psutil
from deltalake import DeltaTable
from msgspec.structs import replace
from support import store_seaweedfs
from support.constants import command_with_constants
from support.door_client import TestSender
from support.gateway import GatewayProcess, TestKey, start_gateways
from support.local_deployment import clean_environment
from support.sluice_process import SluiceProcess, run_process
from support.store_versitygw import ACCESS, CREDENTIALS, SECRET, free_port, wait_for_port
from support.store_versitygw import command as versitygw_command
from verify.link import FaultyLink, linked
from verify.proxy import FaultyProxy, serving
from verify.registers import RegisterRecorder

from sluice_agent.sending.signing_key import make_key, principal_entry
from sluice_cli.verify.recording import Recorder
from sluice_lake.delta import find_table, vacuum_table
from sluice_lake.locations import lake_location
from sluice_lake.tables import LOGS
from sluice_protocol.authority import Authority
from sluice_protocol.expiry import decode_tombstone
from sluice_protocol.identity import format_identity
from sluice_protocol.keys import EXPIRED, RAW_BLOBS
from sluice_protocol.system_clock import SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_store import StoreMode, create_authority, open_store

DOORS: Final = ("otlp", "loki", "json")
AGENTS: Final = ("file-1", "file-2")
UPLOADERS: Final = tuple(f"agent-{number}" for number in range(1, 100))
GATEWAYS: Final = ("gateway-1", "gateway-2", "gateway-3")
RECONCILERS: Final = ("reconciler-1", "reconciler-2")
LINKED: Final = (*GATEWAYS, *RECONCILERS, "ingest")
"""Processes that have a link to the store each."""
SPOOL_WRITER: Final = "verify"
"""The collector id of the gateway over a spool."""
BUCKET: Final = "verify"
HORIZON_S: Final = 216
BRIEF: Final = Authority(authority_id="", retry_horizon_s=HORIZON_S, margin_s=72)
"""The smallest that a store accepts, so that garbage is collected during a run."""
CLOCK_S: Final = 15
"""Whole seconds of a store's times, and the margin of its clock."""
DISK_BYTES: Final = 8 << 30


class Store:
    """A directory, with a disk that can be filled if the system permits to mount one."""

    faults: tuple[str, ...] = ("store_moved_away",)
    uploaders = 6
    pause_s = 0.0
    outages: tuple[str, ...] = ("store_moved_away",)

    def __init__(self, folder: Path, recorder: Recorder, rng: random.Random) -> None:
        self.disk = folder / "disk"
        self.disk.mkdir()
        self.recorder, self.rng = recorder, rng
        self.mounted = self._mount(f"size={DISK_BYTES}")
        self.url = self.read_url = f"file://{self.disk}/store"

    def _mount(self, options: str) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.disk)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.disk)], check=False)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve the store, and remove its disk at the end."""
        try:
            yield
        finally:
            if self.mounted:
                await asyncio.to_thread(self._unmount)

    def url_of(self, name: str) -> str:
        """Return the URL through which a process reaches the store."""
        return self.url

    def all_faults(self) -> tuple[str, ...]:
        return (*self.faults, *(("disk_full",) if self.mounted else ()))

    async def disk_full(self) -> None:
        """Shrink the disk to what it contains, for some seconds."""
        used = shutil.disk_usage(self.disk).used
        self._mount(f"remount,size={max(used, 1 << 20)}")
        self.recorder.fired("disk_full", "store")
        await asyncio.sleep(self.rng.uniform(2.0, 6.0))
        self._mount(f"remount,size={DISK_BYTES}")

    async def store_moved_away(self) -> None:
        place, away = self.disk / "store", self.disk / "away"
        place.rename(away)
        self.recorder.fired("store_moved_away", "store")
        await asyncio.sleep(self.rng.uniform(1.0, 8.0))
        away.rename(place)

    def list(self, prefix: str) -> Iterator[str]:
        root = self.disk / "store"
        for path in sorted((root / prefix).rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                yield str(path.relative_to(root))

    def times(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Return keys with the time of the last write, in nanoseconds."""
        for key in self.list(prefix):
            with suppress(FileNotFoundError):
                yield key, (self.disk / "store" / key).stat().st_mtime_ns

    def noncurrent(self, prefix: str) -> Iterator[str]:
        """Return the keys of versions that are not current."""
        yield from ()

    def read(self, key: str) -> bytes:
        try:
            return (self.disk / "store" / key).read_bytes()
        except FileNotFoundError:
            return b""

    def damage(self, key: str, body: bytes) -> None:
        with (self.disk / "store" / key).open("r+b") as file:
            file.write(body)

    def remove(self, key: str) -> None:
        (self.disk / "store" / key).unlink(missing_ok=True)


class S3Store(Store):
    """A real S3 server behind a proxy; subclasses start it.

    `sluice rebuild` reads every batch through that proxy, so there are fewer of them. A repeater
    alone sends up to 256 a request, each with reads of the server: without pauses, a rebuild never
    caught up with the uploads.
    """

    uploaders = 2
    pause_s = 4.0

    faults = (
        *(
            "link_cut",
            "link_delayed",
            "store_killed",
            "store_stopped",
            "store_unreachable",
            "store_reset_before_forwarding",
        ),
        *("store_reset_after_forwarding", "store_delay"),
    )
    outages = ("store_killed", "store_stopped", "store_unreachable")
    process: "subprocess.Popen[bytes]"

    def __init__(self, folder: Path, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(folder, recorder, rng)
        os.environ.update(CREDENTIALS)
        self.log = (folder / "store.log").open("wb")
        self.port = free_port()
        self.proxy = FaultyProxy("store", lambda: [self.port], recorder, rng)
        self.registers = self.proxy.registers = RegisterRecorder(recorder.folder)
        self.links = {name: FaultyLink(lambda: [self.proxy.port], rng) for name in LINKED}

    def command(self) -> list[str]:
        """Return the command of versitygw."""
        return versitygw_command(self.disk, self.port)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as links, super().serving(), serving(self.proxy):
            for link in self.links.values():
                await links.enter_async_context(linked(link))
            query = f"{BUCKET}/deep?endpoint=http://127.0.0.1:%d&region=us-east-1"
            self.url = f"s3://{query}" % self.proxy.port
            self.read_url = f"s3://{query}" % self.port
            await asyncio.to_thread(self._start)
            self.client = boto3.client(
                "s3", endpoint_url=f"http://127.0.0.1:{self.port}", region_name="us-east-1",
                aws_access_key_id=ACCESS, aws_secret_access_key=SECRET,
            )  # fmt: skip
            self.client.create_bucket(Bucket=BUCKET)
            enabled = {"Status": "Enabled"}
            self.client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration=enabled)
            try:
                yield
            finally:
                self.client.close()
                self.registers.close()
                self.log.close()
                self.process.kill()
                self.process.wait()

    def _start(self) -> None:
        environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}
        self.process = subprocess.Popen(
            self.command(), env=environment, stdout=self.log, stderr=self.log, cwd=self.disk
        )
        wait_for_port(self.port, self.process)

    def url_of(self, name: str) -> str:
        """Return the URL of the link of this process."""
        return self.url.replace(f":{self.proxy.port}&", f":{self.links[name].port}&")

    async def link_cut(self) -> None:
        """Cut one process off the store, while all others reach it."""
        name = self.rng.choice(LINKED)
        self.links[name].disconnect()
        self.recorder.fired("link_cut", name)
        await asyncio.sleep(self.rng.uniform(1.0, 12.0))
        await self.links[name].connect()

    async def link_delayed(self) -> None:
        """Delay what one process and the store send to each other."""
        name = self.rng.choice(LINKED)
        self.links[name].delay_s_max = self.rng.uniform(0.05, 0.5)
        self.recorder.fired("link_delayed", name)
        await asyncio.sleep(self.rng.uniform(1.0, 8.0))
        self.links[name].delay_s_max = 0.0

    async def store_killed(self) -> None:
        self.process.kill()
        self.process.wait()
        self.recorder.fired("store_killed", "store")
        await asyncio.sleep(self.rng.uniform(0.5, 5.0))
        await asyncio.to_thread(self._start)

    async def store_stopped(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.recorder.fired("store_stopped", "store")
        await asyncio.sleep(self.rng.uniform(1.0, 8.0))
        self.process.send_signal(signal.SIGCONT)

    async def store_unreachable(self) -> None:
        self.proxy.unreachable = True
        self.recorder.fired("store_unreachable", "store")
        await asyncio.sleep(self.rng.uniform(1.0, 12.0))
        self.proxy.unreachable = False

    def list(self, prefix: str) -> Iterator[str]:
        for key, _ in self.times(prefix):
            yield key

    def times(self, prefix: str) -> Iterator[tuple[str, int]]:
        pages = self.client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=BUCKET, Prefix=f"deep/{prefix}"):
            for entry in page.get("Contents", ()):
                written_ns = int(entry["LastModified"].timestamp()) * NS_PER_S
                yield entry["Key"].removeprefix("deep/"), written_ns

    def noncurrent(self, prefix: str) -> Iterator[str]:
        pages = self.client.get_paginator("list_object_versions")
        for page in pages.paginate(Bucket=BUCKET, Prefix=f"deep/{prefix}"):
            for entry in page.get("Versions", ()):
                if not entry["IsLatest"]:
                    yield entry["Key"].removeprefix("deep/")

    def read(self, key: str) -> bytes:
        try:
            body: bytes = self.client.get_object(Bucket=BUCKET, Key=f"deep/{key}")["Body"].read()
        except self.client.exceptions.NoSuchKey:
            return b""
        return body

    def damage(self, key: str, body: bytes) -> None:
        self.registers.harmed(key, body)
        self.client.put_object(Bucket=BUCKET, Key=f"deep/{key}", Body=body)

    def remove(self, key: str) -> None:
        """Remove every version, the current one last: no earlier one becomes current meanwhile."""
        self.registers.harmed(key, b"")
        found = self.client.list_object_versions(Bucket=BUCKET, Prefix=f"deep/{key}")
        versions = (*found.get("Versions", ()), *found.get("DeleteMarkers", ()))
        for one in sorted(versions, key=itemgetter("IsLatest")):
            if one["Key"] == f"deep/{key}":
                self.client.delete_object(Bucket=BUCKET, Key=one["Key"], VersionId=one["VersionId"])


class SeaweedStore(S3Store):
    """SeaweedFS: master, volume server, filer and S3 API in one process."""

    def __init__(self, folder: Path, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(folder, recorder, rng)
        filer = (free_port(), free_port())
        self.words = store_seaweedfs.command(self.disk, self.port, filer)

    def command(self) -> list[str]:
        """Return the command, with the same ports after each start."""
        return self.words

    async def disk_full(self) -> None:
        """Also start the server again: its filer reports a full disk until then."""
        await super().disk_full()
        self.process.kill()
        self.process.wait()
        await asyncio.to_thread(self._start)


STORES: Final[dict[str, type[Store]]] = {
    "directory": Store,
    "versitygw": S3Store,
    "seaweedfs": SeaweedStore,
}


@dataclass
class Cluster:
    """Three gateways behind a balancer, two reconcilers, ingestion with Spark, two agents."""

    folder: Path
    store: Store
    recorder: Recorder
    rng: random.Random
    spark: bool
    key: TestKey = field(default_factory=lambda: TestKey("uploaders", UPLOADERS))
    sender: TestSender = field(default_factory=lambda: TestSender("shop", (), doors=DOORS))
    gateways: list[GatewayProcess] = field(default_factory=list)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    agent_entries: list[str] = field(default_factory=list)
    gateway_flags: tuple[str, ...] = ()
    leaving: list[GatewayProcess] = field(default_factory=list)
    """Gateways of the mode before a switch, which end without a signal."""
    spooling: bool = False
    switching: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while gateways of one mode are replaced by those of the other."""
    _started: int = 0
    exits: Counter[str] = field(default_factory=Counter)
    balancer: FaultyProxy = field(init=False)

    def __post_init__(self) -> None:
        self.balancer = FaultyProxy("balancer", self.ports, self.recorder, self.rng)

    def ports(self) -> list[int]:
        return [one.port for one in (*self.gateways, *self.leaving)]

    @property
    def spool(self) -> str:
        """The URL of the spool of the one gateway that accepts in `local_spool`."""
        return f"file://{self.store.disk}/spool"

    def sluice(self, *words: str, timeout: float = 300) -> bytes:
        """Run a command to its end."""
        command = [sys.executable, "-m", "sluice_cli", *words]
        environment = clean_environment(PYSPARK_PYTHON=sys.executable)
        done = run_process(command, timeout=timeout, env=environment, cwd=self.folder)
        found = words[0] in {"gaps", "erase"} and done.returncode == 1  # gaps; it has not ended
        assert found or done.returncode == 0, (words, done.stderr.decode()[-2000:])
        output: bytes = done.stdout
        return output

    def write_principals(self, *keys: TestKey) -> None:
        """Write the principals of all clients, with these keys of the uploaders."""
        entries = [*(one.entry for one in keys), self.sender.entry, *self.agent_entries]
        (self.folder / "principals.toml").write_text("\n".join(entries))

    def start_gateways(self, count: int = 1, prefix: tuple[str, ...] = ()) -> None:
        flags = [word for door in DOORS for word in ("--doors", door)]
        flags += self.gateway_flags
        if self.spooling:
            flags += ("--spool", self.spool, "--collector-id", SPOOL_WRITER)
        principals = self.folder / "principals.toml"
        for _ in range(count):
            self._started += 1
            store = self.store.url_of(GATEWAYS[self._started % len(GATEWAYS)])
            self.gateways += start_gateways(
                1, self.folder, store, principals, *flags, prefix=prefix
            )

    def start(self, name: str, prefix: tuple[str, ...] = ()) -> None:
        """Start a reconciler, the ingestion or an agent, by its name."""
        kind, _, number = name.partition("-")
        if kind == "reconciler":
            words = ["reconciler", "--listen", f"127.0.0.1:{free_port()}"]
        elif kind == "ingest":
            checkpoint = self.folder / "checkpoints"
            words = ["spark", "ingest", "--trigger-s", "5", "--checkpoint", str(checkpoint)]
        else:
            words = self.agent_words(f"file-{number}")
        if kind != "agent":
            words += ["--store", self.store.url_of(name)]
        self.start_command(name, *words, prefix=prefix)

    def start_command(self, name: str, *words: str, prefix: tuple[str, ...] = ()) -> None:
        """Start a command of `sluice` as a process with this name."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = SluiceProcess(
                [*prefix, *command_with_constants(), *words] if words[0] != "spark"
                else [sys.executable, "-m", "sluice_cli", *words],
                cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env=clean_environment(PYSPARK_PYTHON=sys.executable),
            )  # fmt: skip

    def agent_words(self, agent: str, *more: str) -> list[str]:
        return [
            *("agent", "run", "--gateway", f"http://127.0.0.1:{self.balancer.port}"),
            *("--key", f"{agent}.pem", "--agent-id", agent, "--spool", f"spool-{agent}"),
            *("--paths", f"text:{self.folder}/{agent}.log", "--multiline-start", "^"),
            *("--host-metrics-s", "0", *more),
        ]

    def kill(self, name: str) -> None:
        """Kill a process with its children."""
        process = self.processes.pop(name)
        children = []
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()

    async def supervise(self) -> None:
        """Start each process that ended without a fault again, as systemd would, and count it."""
        while True:
            await asyncio.sleep(1.0)
            for name, process in list(self.processes.items()):
                if process.poll() is not None and name in self.names():
                    self.exits[f"{name.partition('-')[0]}, code {process.returncode}"] += 1
                    self.start(name)
            if not self.switching.locked():
                async with self.switching:
                    await self.replace_ended_gateways()

    async def replace_ended_gateways(self) -> None:
        """Start each gateway that ended without a fault again, and count it."""
        for one in list(self.gateways):
            if one.process.poll() is not None:
                self.exits[f"gateway, code {one.process.returncode}"] += 1
                self.gateways.remove(one)
                await self.start_gateway()

    async def start_gateway(self, prefix: tuple[str, ...] = ()) -> None:
        """Start a gateway; at a moment without a store it exits, and is started again."""
        for _ in range(20):
            try:
                await asyncio.to_thread(self.start_gateways, 1, prefix)
            except AssertionError:
                await asyncio.sleep(1.0)
            else:
                return
        raise AssertionError("a gateway does not start")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start everything, and end it with the block."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.store.serving())
            await stack.enter_async_context(serving(self.balancer))
            stack.enter_context(self._processes())
            async with open_store(self.store.url, StoreMode.CREATE) as store:
                await create_authority(store, replace(BRIEF, authority_id=SystemIds().ulid()))
            await asyncio.to_thread(self.sluice, "doctor", "--store", self.store.url)
            await asyncio.to_thread(self.sluice, "audit", "key", "--key-file", "auditor.pem")
            for agent in AGENTS:
                (self.folder / f"{agent}.log").touch()
                made = make_key(self.folder / f"{agent}.pem")
                self.agent_entries.append(principal_entry(agent, agent, made))
            self.write_principals(self.key)
            await asyncio.to_thread(self.start_gateways, 3)
            for name in self.names():
                self.start(name)
            yield

    def names(self) -> list[str]:
        names = [*RECONCILERS, "agent-1", "agent-2"]
        return [*names, "ingest"] if self.spark else names

    @contextmanager
    def _processes(self) -> Iterator[None]:
        try:
            yield
        finally:
            for name in list(self.processes):
                self.kill(name)
            for one in (*self.gateways, *self.leaving):
                one.kill()

    def collect_garbage(self) -> int:
        """Audit, execute the last plan and plan; return what is surely old enough for the plan."""
        before_ns = time.time_ns() - (HORIZON_S + CLOCK_S) * NS_PER_S
        options = ("--grace-s", "0", "--max-delete-ratio", "1", "--key-file", "auditor.pem")
        self.sluice("gc", "cycle", *options, "--store", self.store.url, timeout=900)
        return before_ns

    def drain_agents(self) -> None:
        """Stop the agents, and let each send what is left."""
        for number, agent in enumerate(AGENTS, 1):
            process = self.processes.pop(f"agent-{number}")
            process.terminate()
            process.wait(60)
            self.sluice(*self.agent_words(agent, "--once"))

    def errors(self) -> Counter[str]:
        """Return how often each process logged each event with the level error."""
        found: Counter[str] = Counter()
        for path in self.folder.glob("*.log"):
            if path.stem in AGENTS:
                continue
            for line in path.read_text(errors="replace").splitlines():
                if '"level":"error"' in line.replace(" ", ""):
                    with suppress(json.JSONDecodeError):
                        found[str(json.loads(line).get("event"))] += 1
                elif line.startswith("Traceback"):
                    found[f"traceback in {path.stem.partition('-')[0]}"] += 1
        return found

    def remove_unfinished(self) -> None:
        """Delete the files that killed jobs left, as compaction does a day later; no job runs."""
        if (table := find_table(self.store.read_url, LOGS, for_writing=True)) is not None:
            vacuum_table(table, 0, full=True, dry_run=False)

    def write_state(self, path: Path) -> None:
        """Write what the store and the table contain."""
        with path.open("w") as file:
            for fact in self._facts():
                file.write(json.dumps(fact) + "\n")

    def _facts(self) -> Iterator[dict[str, Any]]:
        for kind, prefix, hash_of, blob_of in (
            ("manifest", "accepted/v1/", "frame_sha256", "raw_blob_key"),
            ("quarantine", "quarantine/v1/", "submitted_frame_sha256", "submitted_raw_blob_key"),
        ):
            for key in self.store.list(prefix):
                record = json.loads(self.store.read(key))
                place = f"{record['seq_start']}-{record['seq_end']}"
                blob = self.store.read(record[blob_of])
                yield {
                    "kind": kind,
                    "identity": f"{record['agent_id']}/{record['boot_id']}/{place}",
                    "sha256": record[hash_of],
                    "blob": hashlib.sha256(blob).hexdigest() if blob else "",
                }
        for key in self.store.list(EXPIRED):
            tombstone = decode_tombstone(key, self.store.read(key)).tombstone
            for boot in tombstone.boots if tombstone.refused is not True else ():
                for who, digest in boot.named():
                    identity = format_identity(who)
                    yield {"kind": "tombstone", "identity": identity, "sha256": digest}
        for key, written_ns in self.store.times(RAW_BLOBS):
            yield {"kind": "blob", "sha256": Path(key).stem, "time": written_ns}
        for key in self.store.noncurrent(RAW_BLOBS):
            yield {"kind": "version", "sha256": Path(key).stem}
        location = lake_location(self.store.read_url, "logs")
        table = DeltaTable(location.uri, storage_options=dict(location.storage_options))
        columns = ["agent_id", "boot_id", "seq", "body"]
        for row in table.to_pyarrow_table(columns=columns).to_pylist():
            agent, boot, seq, body = (row[name] for name in columns)
            yield {"kind": "row", "agent": agent, "boot": boot, "seq": seq, "body": body}
        for boot in json.loads(self.sluice("gaps", "--json", "--store", self.store.read_url)):
            for gap in boot["gaps"]:
                where = {"agent": boot["agent_id"], "boot": boot["boot_id"]}
                yield {"kind": "gap", **where, "from": gap["seq_start"], "to": gap["seq_end"]}
