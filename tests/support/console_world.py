"""A deployment with planted trouble, and the console over it, in a background thread.

Each trouble of the runbook is planted in the deployment and in the metrics of a gateway. A bucket
with the policies of a deployment has denials that the console proves.
"""

import asyncio
import hashlib
import json
import os
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import start_http_server
from support.builders import log_columns, make_identity, salted_frame
from support.constants import settings_with
from support.gateway import (
    Client,
    GatewayProcess,
    Running,
    TestKey,
    running,
    start_gateway,
    write_principals,
)
from support.policies_live import settings_file

from sluice_cli.main import run
from sluice_console.app import open_console
from sluice_console.settings import ConsoleSettings, PolicySettings
from sluice_gateway.metrics import GatewayMetrics
from sluice_gc.certificate import sign_certificate
from sluice_maintain.lake_state import make_lake_reader
from sluice_protocol.collection_records import AuditCounts, Certificate
from sluice_protocol.expiry import LegalHold, legal_hold_key
from sluice_protocol.identity import Identity
from sluice_protocol.journals import DISCOVERY
from sluice_protocol.keys import QUEUE, blob_key, chain_key, digest_of
from sluice_protocol.maintenance import (
    RunOutcome,
    TaskRecord,
    TaskRun,
    task_record_key,
)
from sluice_protocol.manifests import encode_record
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_query.http.service import make_query_app
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings, ServeSettings
from sluice_reconciler.app import make_operator_app
from sluice_reconciler.lanes.state import LANES
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.authority import create_authority
from sluice_store.doctor import examine, seal_result, write_result
from sluice_store.local import open_local_store
from sluice_web.connection_guard import listening
from sluice_web.listening import ServerOptions

VIEWER, OPERATOR = "token-of-a-viewer", "token-of-an-operator"
SERVICE_TOKEN = "token-between-services"
HOSTILE = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror='window.hacked=1'>",
    '"><svg onload=window.hacked=1>',
    "javascript:window.hacked=1",
    "{{constructor.constructor('window.hacked=1')()}}",
    "</textarea></title><iframe srcdoc='<script>parent.hacked=1</script>'>",
    "\u202egnp.exe\u202c \u001b[31mred\u0007 \u0000",
    "' onmouseover='window.hacked=1",
)
SHOWN_URL = "s3://logs/production"
"""The URL that pages show; the store is a directory."""
STARTED_NS = time.time_ns()
AGENT = "web-1"
HOSTILE_AGENT = "<img src=x onerror=window.hacked=1>"

SENDER = TestKey("sender", (AGENT, "db-2", "web-2", "late-1", HOSTILE_AGENT))


@dataclass
class ConsoleWorld:
    """Where the console and its sources are."""

    folder: Path
    url: str = ""
    reconciler_url: str = ""
    query_url: str = ""
    held: Identity | None = None
    conflict: Identity | None = None

    gateway: GatewayProcess | None = None

    @property
    def store_folder(self) -> Path:
        return self.folder / "store"

    def accept(self, body: bytes) -> None:
        """Upload a batch to a gateway, which is started with the first call."""
        if self.gateway is None:
            folder = self.folder / "another"
            principals = write_principals(folder / "principals.toml", SENDER)
            url = f"file://{self.store_folder}"
            self.gateway = start_gateway(folder, url, principals)
        sending = self._upload(body, self.gateway.port)
        with ThreadPoolExecutor(1) as thread:  # the driver of the browser runs a loop in this one
            thread.submit(asyncio.run, sending).result()

    @staticmethod
    async def _upload(body: bytes, port: int) -> None:
        async with aiohttp.ClientSession() as session:
            answer = await Client(session, port, SENDER).upload(body)
        assert answer.status == 200

    def read(self, path: str) -> Any:
        """Return what the console returns to a viewer, None if there is no such thing."""
        request = urllib.request.Request(
            self.url + path, headers={"Authorization": f"Bearer {VIEWER}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def wait_until(self, path: str, is_right: Callable[[Any], bool]) -> None:
        """Wait until a response is right: what was accepted is found once it is in the queue."""
        deadline_s = time.monotonic() + 60
        while not is_right(found := self.read(path)):
            assert time.monotonic() < deadline_s, f"{path} stays {found}"
            time.sleep(0.2)


def sha256_text(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


SETTINGS = settings_with(
    ConsoleSettings,
    listen="127.0.0.1:0",
    viewers=f"vera={sha256_text(VIEWER)}",
    operators=f"otto={sha256_text(OPERATOR)}",
    reconciler_token=SERVICE_TOKEN,
    query_token=SERVICE_TOKEN,
    sample_s=1.0,
)


def frame(
    agent: str,
    start: int,
    bodies: list[str],
    salt: str = "",
    boot: str = "b1",
    *,
    at_ns: int | None = None,
) -> bytes:
    """Return a frame; later sequence numbers have later times, which depend on nothing else."""
    who = make_identity(start, count=len(bodies), agent=agent, boot=boot)
    past_ns = STARTED_NS - (60 - start) * 40 * NS_PER_S
    columns = log_columns(bodies, from_ns=past_ns if at_ns is None else at_ns)
    return salted_frame(who, columns, salt)


def lines(start: int, count: int = 3) -> list[str]:
    return [f"GET /orders/{start + n} 200 {17 + n} ms" for n in range(count)]


REFUSED = frame(AGENT, 0, [lines(0)[0], "GET /orders/1 500 18 ms", lines(0)[2]], "other")
"""Other bytes under the first identity."""


@asynccontextmanager
async def deployment(
    folder: Path, *, trouble: bool = True, services: bool = True, http_queues: str = ""
) -> AsyncIterator[ConsoleWorld]:
    """Accept batches through a real gateway, with every kind of trouble, and serve the sources.

    Without services no reconciler runs, and the gateway has stopped.
    """
    world = ConsoleWorld(folder=folder)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_local_store(world.store_folder))
        authority = await create_authority(store)
        if trouble:
            async with AsyncExitStack() as sender:
                gateway = await sender.enter_async_context(
                    running(world.folder, SENDER, store=store, authority=authority)
                )
                await _accept(world, gateway)
                if services:
                    stack.push_async_exit(sender.pop_all())
                    await stack.enter_async_context(_reporting(gateway))
        settings = ReconcilerSettings(
            api_token=SERVICE_TOKEN, tail_interval_s=0.0, http_queues=http_queues
        )
        await Reconciler(store, authority, settings=settings).once()
        if trouble:
            result = await examine([store], [f"file://{world.store_folder}"], SystemIds())
            await write_result(store, result, seal_result(result), SystemClock())
        if not services:
            let_gateway_lapse(world)
            yield world
            return
        reconciler = Reconciler(store, authority, settings=settings)
        searcher = Searcher(
            store=store,
            store_url=f"file://{world.store_folder}",
            settings=QuerySettings(time_s_max=20.0),
            clock=SystemClock(),
        )
        query = make_query_app(searcher, ServeSettings(api_token=SERVICE_TOKEN))
        options = ServerOptions(decompress=True, shutdown_s=1.0)
        for name, app in (
            ("reconciler_url", make_operator_app(reconciler)),
            ("query_url", query),
        ):
            (url,) = await stack.enter_async_context(listening(app, "127.0.0.1:0", options))
            setattr(world, name, url)
        reconciler.share.url = world.reconciler_url
        yield world


async def _accept(world: ConsoleWorld, gateway: Running) -> None:
    """Upload batches: a gap, a conflict and a blob that disappears."""
    accepted = frame(AGENT, 0, lines(0))
    send = gateway.client.upload
    assert (await send(accepted)).status == 200
    for start in (3, 6, 15, 18):  # 9 to 14 are missing
        assert (await send(frame(AGENT, start, lines(start)))).status == 200
    assert (await send(REFUSED)).status == 409
    world.conflict = make_identity(0, count=3, agent=AGENT)
    hostile = frame("db-2", 0, list(HOSTILE))
    assert (await send(hostile)).status == 200
    assert (await send(frame("db-2", 0, list(reversed(HOSTILE)), "again"))).status == 409
    assert (await send(frame(HOSTILE_AGENT, 0, list(HOSTILE), boot=HOSTILE[1]))).status == 200
    lost = frame("web-2", 0, lines(0))
    assert (await send(lost)).status == 200
    world.held = make_identity(0, count=3, agent="web-2")
    (world.store_folder / blob_key(digest_of(lost))).unlink()
    shutil.copytree(world.store_folder / "gateways", world.folder / "gateways")


@asynccontextmanager
async def _reporting(gateway: Running) -> AsyncIterator[None]:
    """Let a gateway report until the block ends; a silent one needs attention after seconds."""
    task = asyncio.create_task(gateway.gateway.uploads.journal.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def let_gateway_lapse(world: ConsoleWorld) -> None:
    """Restore the journal from before the stop, as if the gateway was killed an hour ago."""
    hour_ago_s = time.time() - 3600
    shutil.rmtree(world.store_folder / "gateways")
    shutil.copytree(world.folder / "gateways", world.store_folder / "gateways")
    for path in (world.store_folder / "gateways").rglob("*"):
        if path.is_file():
            os.utime(path, (hour_ago_s, hour_ago_s))
    discovery = world.store_folder / DISCOVERY
    record = json.loads(discovery.read_bytes())
    record["pass_began_unix_ns"] = int((hour_ago_s - 3600) * NS_PER_S)
    discovery.chmod(0o600)
    discovery.write_text(json.dumps(record))


@asynccontextmanager
async def console_over(
    world: ConsoleWorld, settings: ConsoleSettings = SETTINGS
) -> AsyncIterator[str]:
    """Serve the console; yields its URL."""
    async with (
        open_local_store(world.store_folder) as store,
        open_console(
            store,
            SHOWN_URL,
            settings,
            SystemClock(),
            read_lake=make_lake_reader(store, f"file://{world.store_folder}"),
        ) as app,
        listening(app, settings.listen, ServerOptions(shutdown_s=1.0)) as urls,
    ):
        yield urls[0]


@contextmanager
def served_console(
    folder: Path,
    settings: ConsoleSettings = SETTINGS,
    *,
    trouble: bool = True,
    services: bool = True,
    http_queues: str = "",
    plant: Callable[[ConsoleWorld], None] = lambda _: None,
) -> Iterator[ConsoleWorld]:
    """Serve everything in a background thread, so that a test may block.

    `plant` changes the store before the console starts.
    """
    started = threading.Event()
    state: _Thread = _Thread()

    async def serve() -> None:
        state.stop = asyncio.Event()
        state.loop = asyncio.get_running_loop()
        options = {"trouble": trouble, "services": services}
        async with deployment(folder, http_queues=http_queues, **options) as world:
            sources: dict[str, Any] = {"reconciler": world.reconciler_url, "query": world.query_url}
            used = replace(settings, **sources) if services else settings
            if services:
                await _wait_ready(world.reconciler_url)
            plant(world)
            async with console_over(world, used) as url:
                world.url = url
                state.world = world
                started.set()
                await state.stop.wait()

    def work() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            state.failures.append(error)
        started.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert started.wait(120)
    if state.failures:
        raise state.failures[0]
    assert state.world is not None
    try:
        yield state.world
    finally:
        assert state.loop is not None
        if state.world.gateway is not None:
            state.world.gateway.stop()
        state.loop.call_soon_threadsafe(state.stop.set)
        thread.join(30)


async def _wait_ready(url: str) -> None:
    """Wait until a service has done its first work."""
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/readyz") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.05)


@dataclass
class _Thread:
    world: ConsoleWorld | None = None
    failures: list[BaseException] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    loop: asyncio.AbstractEventLoop | None = None


HOUR_NS = 3600 * NS_PER_S
AUDIT_ID = "01ARZ3NDEKTSV4RRFFQ69G5FAA"
_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@dataclass
class TroubledWorld:
    """A console over a deployment with most troubles of the runbook.

    Attributes:
        console: The deployment.
        metrics: The metrics of the gateway that the console reads.
    """

    console: ConsoleWorld
    metrics: GatewayMetrics


@contextmanager
def troubled_console(folder: Path) -> Iterator[TroubledWorld]:
    """Serve a console over a deployment whose services run and report trouble."""
    metrics = GatewayMetrics()
    server, thread = start_http_server(0, addr="127.0.0.1", registry=metrics.registry)
    settings = replace(SETTINGS, gateways=f"http://127.0.0.1:{server.server_port}")
    try:
        with served_console(folder, settings, plant=plant_in_store) as world:
            yield TroubledWorld(world, metrics)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def plant_in_gateway(metrics: GatewayMetrics) -> None:
    """Change the metrics of a gateway, after the console has read them once."""
    metrics.accepts_of("identity_conflict").inc(50)
    for _ in range(50):
        metrics.store_requests_of("create", "error").inc()
        metrics.store_seconds.observe(12.0, "create")
    metrics.journal_age.set(45)
    metrics.spool_capacity.set(1e9)
    metrics.spool_bytes.set(9e8)
    metrics.principals_stale.set(1)


def plant_in_store(world: ConsoleWorld) -> None:
    """Damage the store: a register, tasks of maintenance, an audit."""
    store, now_ns = world.store_folder, time.time_ns()
    registers = sorted((store / QUEUE).glob("*/manifest"))
    registers[0].unlink()
    run = TaskRun(
        started_at_unix_ns=now_ns - HOUR_NS,
        ended_at_unix_ns=now_ns - HOUR_NS + NS_PER_S,
        outcome=RunOutcome.FAILED.value,
        owner="host",
        reason="access denied to lake/",
    )
    done = msgspec.structs.replace(run, outcome=RunOutcome.DONE.value, reason="")
    for task in (
        TaskRecord(task="rollup", revision=1, nonce="n", runs=(run,), failures=3),
        TaskRecord(task="gc", revision=1, nonce="n", halted="the plan names an accepted blob"),
        TaskRecord(
            task="compact",
            revision=1,
            nonce="n",
            runs=(done,),
            due_at_unix_ns=now_ns - HOUR_NS,
            every_s=60.0,
        ),
    ):
        put(store / task_record_key(task.task), encode_record(task))
    put(store / chain_key(0), sign_certificate(audit(now_ns), _KEY))
    hold = LegalHold(
        hold_id="01ARZ3NDEKTSV4RRFFQ69G5FAV",
        case="C-1",
        reason="litigation of a supplier",
        held_by="operator:ann",
        held_at_unix_ns=now_ns - 2 * HOUR_NS,
        review_at_unix_ns=now_ns - HOUR_NS,
    )
    put(store / legal_hold_key(hold.hold_id), encode_record(hold))


def stop_everything(world: ConsoleWorld) -> None:
    """Leave what an hour without services leaves: ended gateways, old lanes, an old discovery."""
    shutil.rmtree(world.store_folder / "gateways")
    age_lanes(world.store_folder)
    discovery = world.store_folder / DISCOVERY
    record = json.loads(discovery.read_bytes())
    record["complete_through_unix_ns"] = time.time_ns() - HOUR_NS
    discovery.chmod(0o600)
    discovery.write_text(json.dumps(record))


def age_lanes(store: Path) -> None:
    """Make the states of lanes an hour old, as if their owners stopped then."""
    hour_ago_ns = time.time_ns() - HOUR_NS
    for path in (store / LANES).iterdir():
        os.utime(path, ns=(hour_ago_ns, hour_ago_ns))


def audit(now_ns: int) -> Certificate:
    return Certificate(
        authority_id="A",
        retry_horizon_s=300,
        audit_id=AUDIT_ID,
        chain_index=0,
        previous_audit_id="",
        previous_sha256="",
        started_at_unix_ns=now_ns - HOUR_NS,
        finished_at_unix_ns=now_ns - HOUR_NS + NS_PER_S,
        clock_skew_ns=0,
        deep=0.0,
        shards=1,
        coverage=(),
        merkle_root=digest_of(b""),
        counts=AuditCounts(accepted=9, missing_blobs=2),
        evidence=(),
    )


def put(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)


PROOF_MS = 180_000
"""Time of two proofs on a machine that other tests use."""

_Result = TypeVar("_Result")


def in_thread(act: Callable[[], _Result]) -> _Result:
    """Call a function in a thread: the driver of the browser runs a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(act).result()


def applied(folder: Path) -> PolicySettings:
    """Apply the rendered policies to the bucket of the AWS environment."""
    file = settings_file(folder, "aws", tls=True, profiles=False)
    words = ["policies", "apply", "--settings", str(file), "--yes", "--json"]
    assert in_thread(lambda: run(words)) == 0
    return settings_with(PolicySettings, file=str(file), live=True, prove_s=3.0)
