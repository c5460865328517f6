"""Two pages stay open for a day, compressed to minutes: neither they nor the console may grow.

A day is 8 640 samples of the overview and, at ten records a second, 864 000 records of the live
tail. The records come from a server in this test, through the console, at the rate at which the
page shows them. At the end of each round the flow pauses, the browser collects garbage, and the
heap, the nodes and the listeners of both pages and the memory of the console are measured.
A quarter of the day runs by default, in which each planted leak is found; `SLUICE_SOAK_SHARE=1`
runs all of it.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from aiohttp import web
from playwright.sync_api import Browser, Page, Route, expect
from support.console_pages import CHROMIUM, watch
from support.console_world import deployment
from support.local_deployment import clean_environment

from sluice_web.connection_guard import listening
from sluice_web.listening import ServerOptions

SHARE = float(os.environ.get("SLUICE_SOAK_SHARE", "0.25"))
LEAK_RECORDS = 216_000
"""The records of this share: each planted leak is found in them, and one is not in half of them."""
RECORDS = int(864_000 * SHARE)
SAMPLES = int(8_640 * SHARE)
ROUNDS = 12
WARM = 4
"""Rounds in which the kept records, the samples of an hour and the caches fill up."""
EVENTS_EACH = 250
HEARTBEAT_S = 5.0
"""Pause after which a comment is sent, as the query service does. Without it the console ends the
stream while the flow waits for the samples."""
HEAP_MB_MAX, NODES_MAX, LISTENERS_MAX, SERVICE_MB_MAX = 2.0, 200.0, 20.0, 12.0
ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.console,
    pytest.mark.long,
    pytest.mark.timeout(3_000),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`"),
]


@dataclass
class RecordFlow:
    """A server of `/v1/tail` that sends as many records as it may.

    Attributes:
        allowed: How many records it may send in total.
        sent: How many it has sent.
        url: Where it listens.
    """

    allowed: int = 0
    sent: int = 0
    url: str = ""
    stop: threading.Event = field(default_factory=threading.Event)

    async def send(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        heard_s = time.monotonic()
        while not self.stop.is_set():
            if self.sent >= self.allowed:
                await asyncio.sleep(0.02)
                if time.monotonic() - heard_s > HEARTBEAT_S:
                    await response.write(b": no new record\n\n")
                    heard_s = time.monotonic()
                continue
            heard_s = time.monotonic()
            await response.write(b"".join(map(event, range(self.sent, self.sent + EVENTS_EACH))))
            self.sent += EVENTS_EACH
            state = {"position": f"p.{self.sent}", "partial": False, "reasons": []}
            await response.write(f"event: state\ndata: {json.dumps(state)}\n\n".encode())
        return response

    async def refuse(self, request: web.Request) -> web.Response:
        """Refuse the searches of the page before the live tail begins."""
        problem = {"title": "overloaded", "detail": "only the live tail is served"}
        return web.json_response(problem, status=503, content_type="application/problem+json")

    async def serve(self, started: threading.Event) -> None:
        app = web.Application()
        app.router.add_get("/v1/tail", self.send)
        app.router.add_get("/v1/{rest:.*}", self.refuse)
        async with listening(app, "127.0.0.1:0", ServerOptions(shutdown_s=1.0)) as urls:
            self.url = urls[0]
            started.set()
            await asyncio.to_thread(self.stop.wait)


def event(number: int) -> bytes:
    record = {
        "agent_id": f"host-{number % 50}",
        "boot_id": "b1",
        "seq": number,
        "ts": "2026-01-01T00:00:00.000000000Z",
        "severity": 9,
        "body": f"GET /orders/{number} 200 {number % 97} ms",
        "attributes": {"path": "/var/log/shop.log", "request": f"r-{number}"},
    }
    return f"event: record\ndata: {json.dumps(record)}\n\n".encode()


@contextmanager
def flowing() -> Iterator[RecordFlow]:
    flow, started = RecordFlow(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(flow.serve(started)), daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield flow
    finally:
        flow.stop.set()
        thread.join(30)


@contextmanager
def fast_console(folder: Path, query: str, *more: str) -> Iterator[tuple[str, psutil.Process]]:
    """Serve a console in a process, over a deployment with trouble."""

    async def prepare() -> Path:
        async with deployment(folder, services=False) as world:
            return world.store_folder

    found: list[Path] = []
    preparing = threading.Thread(target=lambda: found.append(asyncio.run(prepare())))
    preparing.start()
    preparing.join(120)
    words = [sys.executable, "-m", "support.soak_console", str(found[0]), query, *more]
    with (
        (folder / "console.log").open("wb") as log,
        subprocess.Popen(
            words,
            env=clean_environment(PYTHONPATH=f"{ROOT / 'tests'}"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            url = process.stdout.readline().decode().strip()
            assert url, (folder / "console.log").read_text()
            yield url, psutil.Process(process.pid)
        finally:
            process.kill()


@dataclass(frozen=True)
class PageMemory:
    """What a page keeps after a collection of garbage."""

    heap_mb: float
    nodes: float
    listeners: float


def measured(page: Page) -> PageMemory:
    session = page.context.new_cdp_session(page)
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
    heap = session.send("Runtime.getHeapUsage")["usedSize"] / 1e6
    counters = session.send("Memory.getDOMCounters")
    session.detach()
    return PageMemory(heap, counters["nodes"], counters["jsEventListeners"])


@dataclass
class Soak:
    """The measurements of each round."""

    tail: list[PageMemory] = field(default_factory=list)
    overview: list[PageMemory] = field(default_factory=list)
    service_mb: list[float] = field(default_factory=list)

    def growth(self) -> dict[str, float]:
        """Return how much each figure grew from the first half after the warm-up to the second."""
        found = {"service_mb": grown(self.service_mb)}
        for name, page in (("tail", self.tail), ("overview", self.overview)):
            for figure in ("heap_mb", "nodes", "listeners"):
                found[f"{name}_{figure}"] = grown([getattr(one, figure) for one in page])
        return found


def grown(values: list[float]) -> float:
    kept = values[WARM:]
    half = len(kept) // 2
    return statistics.median(kept[half:]) - statistics.median(kept[:half])


def soak(
    browser: Browser,
    running: tuple[str, psutil.Process, RecordFlow],
    *,
    leak: str = "",
    records: int = RECORDS,
    samples: int = SAMPLES,
) -> Soak:
    url, service, flow = running
    context, result = browser.new_context(), Soak()
    tail, overview = context.new_page(), context.new_page()
    if leak:
        tail.route("**/static/pages/explore.js", lambda route: with_leak(route, leak))
    errors = (watch(tail), watch(overview))
    overview.goto(url)
    counted = count_samples(overview)
    tail.goto(f"{url}/#explore")
    tail.get_by_role("button", name="Live tail").click(timeout=60_000)
    for number in range(1, ROUNDS + 1):
        flow.allowed = records * number // ROUNDS // EVENTS_EACH * EVENTS_EACH
        shown = f"/orders/{flow.allowed - 1} "
        expect(tail.locator(".line").first).to_contain_text(shown, timeout=600_000)
        end_s = time.monotonic() + 600
        while counted() < samples * number // ROUNDS:
            assert time.monotonic() < end_s, f"{counted()} samples in time"
            overview.wait_for_timeout(200)
        result.tail.append(measured(tail))
        result.overview.append(measured(overview))
        result.service_mb.append(service.memory_info().rss / 1e6)
    print(json.dumps(result.growth()), [one.heap_mb for one in result.tail], result.service_mb)
    assert [one for some in errors for one in some if "503" not in one] == []
    context.close()
    return result


def count_samples(page: Page) -> Callable[[], int]:
    """Count the samples that the page shows: its heading contains the time of the newest."""
    page.evaluate(
        """() => { window.samples = 0;
          const source = new EventSource("v1/overview/stream");
          source.onmessage = () => { window.samples += 1 } }"""
    )
    return lambda: int(page.evaluate("window.samples"))


def with_leak(route: Route, leak: str) -> None:
    kept, lost = leak.split(" => ")
    text = route.fetch().text()
    assert kept in text
    route.fulfill(body=text.replace(kept, lost), content_type="text/javascript")


def test_a_long_day_does_not_grow_the_pages_or_the_console(
    browser: Browser, tmp_path: Path
) -> None:
    with flowing() as flow, fast_console(tmp_path, flow.url) as (url, service):
        found = soak(browser, (url, service, flow))
    assert too_much(found.growth()) == {}
    assert flow.sent == RECORDS // EVENTS_EACH * EVENTS_EACH


def too_much(growth: dict[str, float]) -> dict[str, float]:
    limits = {
        "heap_mb": HEAP_MB_MAX,
        "nodes": NODES_MAX,
        "listeners": LISTENERS_MAX,
        "service_mb": SERVICE_MB_MAX,
    }
    return {
        name: value
        for name, value in growth.items()
        if value > next(limit for end, limit in limits.items() if name.endswith(end))
    }


@pytest.mark.parametrize(
    "leak",
    [
        ".slice(0, TAIL_MAX) => .slice(0, 1e9)",
        "known.current.size > 4 * TAIL_MAX => false",
    ],
    ids=["records", "keys"],
)
def test_a_leak_of_the_page_is_found(browser: Browser, tmp_path: Path, leak: str) -> None:
    """Each of the two limits that keep the live tail small is removed in turn."""
    with flowing() as flow, fast_console(tmp_path, flow.url) as (url, service):
        found = soak(browser, (url, service, flow), leak=leak, records=LEAK_RECORDS, samples=0)
    assert "tail_heap_mb" in too_much(found.growth())


def test_a_leak_of_the_console_is_found(browser: Browser, tmp_path: Path) -> None:
    """The console keeps what it sends."""
    with flowing() as flow, fast_console(tmp_path, flow.url, "leak") as (url, service):
        found = soak(browser, (url, service, flow), records=LEAK_RECORDS, samples=0)
    assert "service_mb" in too_much(found.growth())
