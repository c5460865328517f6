"""`sluice up` and an agent, and an outage of their store.

Also here: a proxy before an S3 server whose reads, writes or both can fail for a while.

During an outage the agent's file grows. After it, every service is ready within `RECOVERY_S`, what
is accepted then is found by a query, and at the end each line of the file is found exactly once.
"""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from aiohttp import web
from support.commands import make_java_home
from support.local_deployment import (
    LocalDeployment,
    clean_environment,
    free_ports,
    run_sluice,
    running,
)
from support.sluice_process import SluiceProcess
from support.store_versitygw import CREDENTIALS
from yarl import URL

from sluice_reconciler.loop_health import RECOVERY_S

READS = frozenset({"GET", "HEAD"})
REFUSAL = b"<?xml version='1.0'?><Error><Code>ServiceUnavailable</Code><Message>m</Message></Error>"
BODY_BYTES_MAX = 128 << 20


@dataclass
class OutageProxy:
    """Forwards requests, signatures included, and refuses some while an outage lasts.

    Attributes:
        target: The URL of the server.
        fails: Methods that get 503 at present; empty if none do.
        swallows: Methods that get 200 and an error document without an ETag, and never arrive.
        url: Where the proxy listens.
        refused: How many requests did not arrive.
    """

    target: str
    fails: frozenset[str] = frozenset()
    swallows: frozenset[str] = frozenset()
    url: str = ""
    refused: int = 0
    _session: aiohttp.ClientSession | None = None
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        if request.method in self.fails:
            self.refused += 1
            return web.Response(status=503, body=REFUSAL, content_type="application/xml")
        if request.method in self.swallows:
            self.refused += 1
            return web.Response(status=200, body=REFUSAL, content_type="application/xml")
        assert self._session is not None
        async with self._session.request(
            request.method,
            URL(self.target + request.raw_path, encoded=True),
            headers=request.headers,
            data=body,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            allow_redirects=False,
        ) as found:
            content = await found.read()
            response = web.Response(status=found.status, body=content)
            for name, value in found.headers.items():
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    response.headers[name] = value
            if request.method == "HEAD":
                response.headers["Content-Length"] = found.headers.get("Content-Length", "0")
            return response

    async def serve(self, ready: threading.Event, loop_of: list[asyncio.AbstractEventLoop]) -> None:
        """Serve until `stop` is called from another thread."""
        loop_of.append(asyncio.get_running_loop())
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            self._session = session
            runner = web.ServerRunner(web.Server(self.handle))
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            ready.set()
            await self._stop.wait()
            await runner.cleanup()

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(self._stop.set)


@contextmanager
def outage_proxy(target: str) -> Iterator[OutageProxy]:
    """Run a proxy in a thread until the end of the block."""
    proxy, ready = OutageProxy(target), threading.Event()
    loop_of: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=lambda: asyncio.run(proxy.serve(ready, loop_of)))
    thread.start()
    assert ready.wait(30)
    try:
        yield proxy
    finally:
        proxy.stop(loop_of[0])
        thread.join(30)


SLACK_S = 20.0
"""Time that a loaded machine may need in addition."""
READY_PATHS = {
    "gateway": "/readyz",
    "reconciler": "/readyz",
    "query": "/v1/deletes?limit=1",
    "console": "/livez",
}


@dataclass
class Outage:
    """How the store of a deployment becomes unreachable and reachable again."""

    begin: Callable[[], None]
    end: Callable[[], None]


@dataclass
class Fleet:
    """A deployment with an agent.

    Attributes:
        up: The services.
        agent: The agent.
        lines: How many lines were written into its file.
    """

    up: LocalDeployment
    agent: subprocess.Popen[bytes]
    log: Path
    lines: int = field(default=0)

    def write_lines(self, count: int) -> None:
        """Append numbered lines to the file that the agent follows."""
        with self.log.open("a") as log:
            for _ in range(count):
                log.write(f"outage line{self.lines:06d}\n")
                self.lines += 1

    def states(self) -> dict[str, str]:
        """Return what each service responds; `ok` if it can do its work."""
        return {name: self._state(name, path) for name, path in READY_PATHS.items()}

    def _state(self, name: str, path: str) -> str:
        address = self.up.state["addresses"][name]
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=5):
                return "ok"
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.read()!r}"
        except OSError as error:
            return str(error)

    def wait_ready(self, limit_s: float) -> float:
        """Wait until every service can do its work; return the seconds."""
        started_s = time.monotonic()
        while set((states := self.states()).values()) != {"ok"}:
            assert time.monotonic() - started_s < limit_s, states
            time.sleep(0.2)
        return time.monotonic() - started_s

    def wait_journaled(self, limit_s: float) -> None:
        """Wait until journals decide the frontier: from then on full passes are rare."""
        address, end_s = self.up.state["addresses"]["reconciler"], time.monotonic() + limit_s
        journaled = False
        while not journaled:
            assert time.monotonic() < end_s
            time.sleep(0.5)
            with urllib.request.urlopen(f"http://{address}/v1/discovery", timeout=5) as response:
                journaled = json.load(response)["journaled"]

    def found(self, text: str) -> list[str]:
        """Return the bodies of all records with a text."""
        address = self.up.state["addresses"]["query"]
        wanted = {"query": f"{{}} |= {json.dumps(text)}", "limit": 10_000}
        url = f"http://{address}/v1/query?{urlencode(wanted)}"
        with urllib.request.urlopen(url, timeout=60) as response:
            lines = [json.loads(line) for line in response.read().splitlines()]
        return sorted(one["body"] for one in lines[:-1])

    def queued(self) -> int:
        """Return how many batches are in the queue if nothing reads it."""
        return sum(one["waiting_batches"] for one in self._lanes())

    def ingested(self) -> int:
        """Return how many entries of the queue are in the tables."""
        return sum(one["acked_through"] for one in self._lanes())

    def _lanes(self) -> list[dict[str, Any]]:
        lanes: list[dict[str, Any]] = json.loads(self.command("queue", "status", "--json").stdout)
        return lanes

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        store = ("--store", self.up.state["store"])
        return run_sluice(self.up.folder, *words, *store, **CREDENTIALS)


@contextmanager
def fleet(folder: Path, *options: str, ingests: bool = False) -> Iterator[Fleet]:
    """Start `sluice up` and an agent, and wait until journals decide.

    Without Java, nothing reads the queue.
    """
    java = {} if ingests else {"JAVA_HOME": str(make_java_home(folder, None))}
    ports = free_ports("maintain") if ingests else free_ports()
    with running(folder, *options, *ports, **java, **CREDENTIALS) as up:
        log = folder / "app.log"
        log.touch()
        with (folder / "agent.err").open("wb") as errors:
            agent = SluiceProcess(
                [
                    *(sys.executable, "-m", "sluice_cli", "agent", "run"),
                    *("--gateway", f"http://{up.state['addresses']['gateway']}"),
                    *("--key", ".sluice-up/agent.pem", "--agent-id", "local-agent"),
                    *("--paths", str(log), "--spool", "spool"),
                ],
                cwd=folder,
                env=clean_environment(),
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        try:
            one = Fleet(up=up, agent=agent, log=log)
            one.write_lines(5)
            up.wait_found("line000004", 60)
            one.wait_journaled(60)
            yield one
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait(30)


def go_through_outage(one: Fleet, outage: Outage, seconds: float) -> None:
    """Make an outage, and check that all work continues after it."""
    pids = {name: one.up.service(name) for name in READY_PATHS}
    outage.begin()
    end_s = time.monotonic() + seconds
    try:
        one.write_lines(10)
        while time.monotonic() < end_s:
            time.sleep(min(1.0, max(0.0, end_s - time.monotonic())))
    finally:
        outage.end()
    one.wait_ready(RECOVERY_S + SLACK_S)
    first = one.lines
    one.write_lines(10)
    one.up.wait_found(f"line{first:06d}", RECOVERY_S + SLACK_S)
    wait_until_enqueued(one)
    assert {name: one.up.service(name) for name in READY_PATHS} == pids, "a service was restarted"
    assert one.agent.poll() is None
    wait_for_lines(one)


def wait_until_enqueued(one: Fleet) -> None:
    """Wait until the queue grows: the reconciler enqueues again."""
    before, end_s = one.queued(), time.monotonic() + RECOVERY_S + SLACK_S
    one.write_lines(1)
    while one.queued() <= before:
        assert time.monotonic() < end_s, one.command("reconciler", "status").stdout
        time.sleep(0.5)


def wait_for_lines(one: Fleet) -> None:
    """Wait until each line is found, and check that none is found twice."""
    expected = [f"outage line{number:06d}" for number in range(one.lines)]
    end_s = time.monotonic() + 60
    while (found := one.found("outage")) != expected:
        assert time.monotonic() < end_s, (len(found), len(set(found)), one.lines)
        time.sleep(1)


def wait_for_status(one: Fleet, is_right: Callable[[str], bool], limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while not is_right(shown := one.command("status").stdout):
        assert time.monotonic() < end_s, shown
        time.sleep(0.5)


def wait_until_ingested(one: Fleet, before: int, limit_s: float) -> None:
    """Wait until more entries of the queue are in the tables."""
    end_s = time.monotonic() + limit_s
    while one.ingested() <= before:
        assert time.monotonic() < end_s, one.command("maintain", "status").stdout
        time.sleep(0.5)
