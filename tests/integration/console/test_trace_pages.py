"""Traces in a real Chromium: the operations of services, the waterfall, and hostile spans."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanKind, format_trace_id
from playwright.sync_api import Browser, Page, Route, expect
from support.builders import make_identity
from support.console_pages import CHROMIUM, accessibility, log_in, open_place, walk_hostile, watch
from support.console_world import AGENT, HOSTILE, ConsoleWorld, in_thread, served_console
from support.door_fleet import Fleet, GatewayStore, fleet

from sluice_protocol.frame import encode_frame
from sluice_protocol.records import LogRecord, SpanRecord, logs_from_records, spans_from_records
from sluice_protocol.units import NS_PER_S

pytestmark = [
    pytest.mark.console,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`"),
]

TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
OTHER: Final = "0af7651916cd43dd8448eb211c80319c"
BEGAN_NS: Final = time.time_ns() // NS_PER_S * NS_PER_S - 60 * NS_PER_S
MS: Final = 1_000_000


def span(number: int, parent: int, name: str, start: int, length: int, **more: Any) -> SpanRecord:
    """Return a span of the trace; `start` and `length` in ms, parent 0 for none."""
    return SpanRecord(
        ts_ns=BEGAN_NS + start * MS,
        name=name,
        duration_ns=length * MS,
        trace_id=TRACE,
        span_id=f"{number:016x}",
        parent_id=f"{parent:016x}" if parent else "",
        **more,
    )


SHOP: Final = (
    span(1, 0, "GET /cart", 0, 250, span_kind=2),
    span(2, 1, "load cart", 10, 100),
    span(4, 1, "charge", 120, 120, status=2, status_message="card declined"),
    span(9, 77, "send mail", 200, 20),
)
EVENTS: Final = json.dumps(
    [{"name": "exception", "ts": "2026-01-31T12:00:00Z", "attributes": {"exception.type": "E"}}]
)
DATABASE: Final = (
    span(
        3,
        2,
        "SELECT",
        20,
        80,
        span_kind=3,
        events=EVENTS,
        links=json.dumps([{"trace_id": OTHER, "span_id": "1" * 16}]),
        attributes={"db.system": "postgresql"},
    ),
)


def accept(world: ConsoleWorld, start: int, columns: Any, service: str) -> None:
    who = make_identity(start, count=len(columns), agent=AGENT, boot="b1")
    resource = (("service.name", service),)
    world.accept(encode_frame(identity=who, columns=columns, resource=resource))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleWorld]:
    with served_console(tmp_path_factory.mktemp("traces"), trouble=False) as found:
        accept(found, 0, spans_from_records(SHOP), "shop")
        accept(found, 10, spans_from_records(DATABASE), "database")
        log = LogRecord(
            ts_ns=BEGAN_NS + 130 * MS,
            body="the card was declined",
            attributes={"trace_id": TRACE, "span_id": f"{4:016x}"},
        )
        accept(found, 20, logs_from_records([log]), "shop")
        found.wait_until(
            f"/v1/traces/{TRACE}", lambda read: len((read or {}).get("spans", ())) == 5
        )
        logs = urlencode({"query": f'{{trace_id="{TRACE}"}}', "from": "1h"})
        found.wait_until(f"/v1/histogram?{logs}", lambda read: read["summary"]["results"] == 1)
        yield found


@pytest.fixture
def page(browser: Browser, world: ConsoleWorld) -> Iterator[Page]:
    opened = log_in(browser.new_context(viewport={"width": 1280, "height": 1000}), world)
    errors = watch(opened)
    yield opened
    assert [one for one in errors if "404" not in one] == [], "only unknown traces are missing"
    opened.context.close()


def names(page: Page) -> list[str]:
    found: list[str] = page.locator(".spanrow .name").all_inner_texts()
    return found


def test_a_trace_is_drawn_as_a_tree_with_its_errors_and_logs(
    page: Page, world: ConsoleWorld
) -> None:
    """Children are below their parents, and a missing parent has a separate row."""
    open_place(page, world, f"trace/{TRACE}")
    assert names(page) == [
        "GET /cart", "load cart", "SELECT", "charge", f"missing span {77:016x}", "send mail",
    ]  # fmt: skip
    summary = page.locator(".summary")
    for text in ("5 spans", "2 services", "250 ms in total", "1 error"):
        expect(summary).to_contain_text(text)
    expect(page.locator("main")).to_contain_text("1 span with a parent that is not in the store")
    row = page.get_by_role("treeitem", name="charge, shop, 120 ms, starts after 120 ms, error")
    expect(row).to_have_attribute("aria-level", "2")
    bar = row.locator(".span").evaluate("one => [one.style.left, one.style.width]")
    assert bar == ["48%", "48%"]
    row.click()
    detail = page.get_by_role("region", name="Span", exact=True)
    expect(detail).to_contain_text("card declined")
    assert page.url.endswith(f"span={4:016x}")
    page.get_by_role("treeitem", name="SELECT").click()
    for text in ("db.system", "exception.type", "service.name", f"trace {OTHER}"):
        expect(detail).to_contain_text(text)
    logs = page.get_by_role("region", name="Logs of the trace")
    expect(logs).to_contain_text("the card was declined", timeout=20_000)
    assert accessibility(page) == []
    logs.get_by_role("button").click()
    expect(detail).to_contain_text("card declined")
    page.get_by_role("link", name="Trace of the record").click()
    expect(page.get_by_role("treeitem", name="charge")).to_have_attribute("aria-selected", "true")


def test_the_keyboard_moves_closes_and_opens(page: Page, world: ConsoleWorld) -> None:
    open_place(page, world, f"trace/{TRACE}")
    page.get_by_role("tree").focus()
    for key, wanted in (
        ("ArrowDown", "load cart"), ("ArrowRight", "SELECT"), ("ArrowLeft", "load cart"),
        ("ArrowLeft", "load cart"), ("ArrowDown", "charge"), ("ArrowUp", "load cart"),
        ("ArrowRight", "load cart"), ("End", "send mail"), ("Home", "GET /cart"),
    ):  # fmt: skip
        page.keyboard.press(key)
        expect(page.locator(".spanrow.chosen .name")).to_have_text(wanted)
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".spanrow")).to_have_count(3)
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Span", exact=True)).to_contain_text("GET /cart")


def test_a_trace_is_opened_from_explore_from_an_operation_and_by_its_id(
    page: Page, world: ConsoleWorld
) -> None:
    open_place(page, world, "trace")
    row = page.get_by_role("region", name="Operations").get_by_role("row", name="charge")
    expect(row).to_contain_text("120 ms")
    row.get_by_role("link", name="1", exact=True).click()
    line = page.locator(".line")
    expect(line).to_have_count(1, timeout=20_000)
    for text in ("ERROR", "shop", "120 ms", "charge"):
        expect(line).to_contain_text(text)
    expect(page.locator(".histogram .loud")).to_have_count(1, timeout=20_000)
    line.click()
    page.get_by_role("link", name="Trace of the record").click()
    expect(page.get_by_role("treeitem", name="charge")).to_have_attribute("aria-selected", "true")
    page.get_by_role("link", name="All traces").click()
    page.get_by_label("Trace id").fill(f" {TRACE.upper()} ")
    page.keyboard.press("Enter")
    expect(page.get_by_role("treeitem")).to_have_count(6)


def test_an_unknown_trace_is_one_clear_line(browser: Browser, world: ConsoleWorld) -> None:
    page = log_in(browser.new_context(), world)
    open_place(page, world, f"trace/{OTHER}")
    expect(page.get_by_text("No trace with this id")).to_be_visible()
    expect(page.get_by_text("No query service")).to_have_count(0)
    page.context.close()


def serve(page: Page, spans: list[dict[str, Any]], *, more: bool = False) -> None:
    """Let the query service return these spans as the trace."""
    body = {"trace_id": TRACE, "spans": spans, "more": more, "summary": {"partial": False}}

    def fulfil(route: Route) -> None:
        route.fulfill(status=200, content_type="application/json", body=json.dumps(body))

    page.route("**/v1/traces/*", fulfil)


def shown(number: int, parent: int | None = None, **more: Any) -> dict[str, Any]:
    return {
        "ts": "2026-01-31T12:00:00.000000000Z", "agent_id": "a", "boot_id": "b", "seq": number,
        "name": f"op {number}", "duration_ns": 1_000_000, "span_kind": "server",
        "status": "unset", "trace_id": TRACE, "span_id": f"{number:x}",
        **({} if parent is None else {"parent_id": f"{parent:x}"}), "service": f"s{number % 11}",
        **more,
    }  # fmt: skip


def test_10_000_spans_are_drawn_within_2_s_and_few_are_in_the_page(
    page: Page, world: ConsoleWorld
) -> None:
    serve(page, [shown(n, n // 3 if n else None) for n in range(10_000)], more=True)
    page.goto(f"{world.url}/#trace")
    expect(page.get_by_role("heading", name="Traces")).to_be_visible()
    page.evaluate(
        "window.began = performance.now(); new MutationObserver(() => {"
        " if (!window.drawn && document.querySelector('.spanrow')) requestAnimationFrame(() =>"
        " { window.drawn ||= performance.now(); }); })"
        ".observe(document, { childList: true, subtree: true });"
        f" location.hash = '#trace/{TRACE}'"
    )
    expect(page.get_by_role("treeitem").first).to_be_visible()
    took_ms = page.evaluate("window.drawn - window.began")
    print(f"10 000 spans drawn after {took_ms:.0f} ms")
    assert took_ms < 2_000
    assert page.get_by_role("treeitem").count() < 80
    expect(page.locator("main")).to_contain_text("The trace is cut. The first 10,000 spans")
    page.get_by_role("tree").focus()
    page.keyboard.press("End")
    expect(page.locator(".spanrow.chosen")).to_be_visible()
    assert page.get_by_role("treeitem").count() < 80


@pytest.mark.long
def test_100_000_spans_are_usable_and_later_ones_are_stated(
    page: Page, world: ConsoleWorld
) -> None:
    """Few rows exist at a time, the keyboard reaches the last span, and the next part is a link."""
    serve(
        page,
        [shown(n, n // 3 if n else None, attributes={"n": n}) for n in range(100_000)],
        more=True,
    )
    page.goto(f"{world.url}/#trace/{TRACE}?limit=100000")
    expect(page.locator(".summary")).to_contain_text("100,000 spans", timeout=60_000)
    loaded = "performance.getEntriesByType('resource').find(one => /traces/.test(one.name))"
    took_ms = page.evaluate(f"performance.now() - {loaded}.responseEnd")
    print(f"100 000 spans drawn {took_ms:.0f} ms after their arrival")
    assert took_ms < 20_000
    notice = page.get_by_text("The trace is cut. The first 100,000 spans are shown")
    expect(notice).to_be_visible()
    expect(page.get_by_role("link", name="Read up to")).to_have_count(0)
    page.get_by_role("tree").focus()
    page.keyboard.press("End")
    expect(page.locator(".spanrow.chosen .name")).to_have_text("op 59048")
    assert page.get_by_role("treeitem").count() < 80
    page.get_by_role("button", name="Close all below the first").click()
    expect(page.get_by_role("treeitem")).to_have_count(3)
    page.get_by_role("link", name="Read on from the last of them").click()
    expect(page).to_have_url(re.compile("from=2026-01-31T12"))


def test_a_span_with_1_000_events_shows_some_and_counts_the_others(
    page: Page, world: ConsoleWorld
) -> None:
    events = json.dumps([{"name": f"event {n}", "attributes": {"n": n}} for n in range(1_000)])
    serve(page, [shown(1, events=events, links=json.dumps([{"span_id": "1" * 16}] * 201))])
    open_place(page, world, f"trace/{TRACE}?span=1")
    detail = page.get_by_role("region", name="Span", exact=True)
    for text in ("event 199", "800 later events not shown", "1 later link not shown"):
        expect(detail).to_contain_text(text)
    expect(detail.get_by_text("event 200", exact=True)).to_have_count(0)


def test_integers_and_numbers_keep_the_digits_of_their_sender(
    page: Page, world: ConsoleWorld
) -> None:
    """In attributes of a span, of its events and of its links; a text is not a number."""
    exact = {"large": 2**53 + 1, "word": "9007199254740993", "list": [2**63 + 1, 1.0]}
    one = {"name": "e", "attributes": {"in": 2**53 + 3}}
    link = {"span_id": "1" * 16, "attributes": {"in": 2**53 + 5}}
    serve(
        page,
        [
            shown(
                1,
                attributes=exact,
                events=json.dumps([one]),
                links=json.dumps([link, 2.50]),
                duration_ns=2**53 + 1,
            )
        ],
    )
    open_place(page, world, f"trace/{TRACE}?span=1")
    detail = page.get_by_role("region", name="Span", exact=True)
    for key, text in (
        ("large", "9007199254740993"), ("word", '"9007199254740993"'),
        ("list", "[9223372036854775809,1.0]"),
    ):  # fmt: skip
        expect(detail.locator("dt", has_text=key).locator("+ dd")).to_have_text(text)
    expect(detail.locator("dt", has_text="duration").locator("+ dd")).to_have_text(
        "104 d 9007199254740993 ns"
    )
    for number in (2**53 + 3, 2**53 + 5):
        expect(detail).to_contain_text(str(number))


LONG: Final = "x" * 10_000
ODD: Final = [
    shown(1, 1),
    shown(2, 3),
    shown(3, 2),
    shown(4, 4711),
    shown(5),
    shown(5, name="again"),
    shown(6, 5, duration_ns=-5_000_000),
    shown(7, 5, name=""),
    shown(8, 5, name=LONG, service=LONG),
    shown(9, 5, ts="50000-01-01T00:00:00.000000001Z"),
    shown(10, 5, ts="no time", duration_ns="no number", events="{", links="[1, null]"),
    shown(11, 5, span_id=""),
    *(shown(20 + n, 5, name=text, service=text) for n, text in enumerate(HOSTILE)),
]


def test_odd_and_hostile_spans_are_shown_and_break_nothing(page: Page, world: ConsoleWorld) -> None:
    """Circles, equal ids, negative durations, no names, far times, long and hostile texts."""
    serve(page, ODD)
    open_place(page, world, f"trace/{TRACE}")
    rows = page.get_by_role("treeitem")
    expect(rows).to_have_count(len(ODD) + 1)
    notice = page.locator(".notice")
    expect(notice).to_contain_text("2 spans whose parents form a circle")
    expect(notice).to_contain_text("1 span with the id of another span")
    for text in ("(no name)", "again", "ends before it starts", "without a time", "\\u202e"):
        expect(page.get_by_role("tree")).to_contain_text(text)
    for at in range(len(ODD) + 1):
        rows.nth(at).click()
        expect(page.get_by_role("region", name="Span", exact=True)).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert (
        page.evaluate("document.querySelectorAll('main script, main img, main iframe').length") == 0
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert accessibility(page) == []


def test_a_chain_of_20_000_spans_is_no_problem(page: Page, world: ConsoleWorld) -> None:
    serve(page, [shown(n, n - 1 if n else None) for n in range(20_000)])
    open_place(page, world, f"trace/{TRACE}")
    expect(page.locator(".summary")).to_contain_text("20,000 levels")
    page.get_by_role("button", name="Close all below the first").click()
    expect(page.get_by_role("treeitem")).to_have_count(2)


def open_read(page: Page, world: ConsoleWorld, trace_id: str, spans: int) -> None:
    """Open a trace, and read it again until all of its spans can be queried."""
    deadline_s = time.monotonic() + 60
    open_place(page, world, f"trace/{trace_id}")
    while page.get_by_role("treeitem").count() < spans:
        assert time.monotonic() < deadline_s, "the query service does not find what was sent"
        page.wait_for_timeout(500)
        page.get_by_role("button", name="Read again").click()


def test_no_hostile_string_in_any_field_of_a_trace_runs(
    browser: Browser, world: ConsoleWorld
) -> None:
    page = log_in(browser.new_context(), world)
    span = f"trace/{TRACE}?span={3:016x}"
    number = walk_hostile(page, world, (f"trace/{TRACE}", span, "explore?kind=spans", "trace"))
    assert number > 4_000, "fewer hostile strings were shown than intended"
    page.context.close()


TIMES: Final = {
    0: "0 ns", 999: "999 ns", 1_500: "1.5 µs", 12_345_678: "12.3 ms", 123_456_789: "123.5 ms",
    999_900_000: "1 s", 1_250_000_000: "1.25 s", -5_000_000: "\u22125 ms",
    200 * NS_PER_S: "3 min 20 s",
    7_260 * NS_PER_S: "2 h 1 min", 90_000 * NS_PER_S: "1 d 1 h", 2**63: "106751 d",
}  # fmt: skip
STARTS: Final = {
    "1970-01-01T00:00:00Z": "0",
    "2026-01-31T12:00:00.000000001Z": "1769860800000000001",
    "0001-01-01T00:00:00Z": "-62135596800000000000",
    "50000-01-01T00:00:00.5Z": "1515680380800500000000",
    "999999-01-01T00:00:00Z": None,
    "yesterday": None,
}


def test_durations_are_readable_and_times_exact(page: Page) -> None:
    """Times keep their nanoseconds, far years are times, and what is no time is none."""
    module = "import('./static/trace_rows.js')"
    shown_times = page.evaluate(f"g => {module}.then(m => g.map(m.spanTime))", list(TIMES))
    assert dict(zip(TIMES, shown_times, strict=True)) == TIMES
    read = f"g => {module}.then(m => g.map(one => m.nsOf(one)?.toString() ?? null))"
    assert dict(zip(STARTS, page.evaluate(read, list(STARTS)), strict=True)) == STARTS


def provider_of(service: str, gateways: Fleet) -> TracerProvider:
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    headers = {"Authorization": f"Bearer {gateways.token}"}
    exporter = OTLPSpanExporter(f"http://{gateways.address}/v1/traces", headers=headers)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def send_with_sdk(world: ConsoleWorld, folder: Path) -> tuple[str, str]:
    """Send spans of two services with the SDK; returns the ids of both traces."""
    url = f"file://{world.store_folder}"
    with fleet(folder, "otlp", count=1, store=GatewayStore(url, url)) as gateways:
        web, stock = provider_of("web", gateways), provider_of("stock", gateways)
        front, back = web.get_tracer("front"), stock.get_tracer("back")
        with front.start_as_current_span("nightly job") as before:
            pass
        linked = before.get_span_context()
        with front.start_as_current_span("POST /orders", kind=SpanKind.SERVER) as root:
            root.set_attribute("http.request.method", "POST")
            for number in range(3):
                with back.start_as_current_span(f"reserve {number}", links=[Link(linked)]):
                    time.sleep(0.01)
            with suppress(ValueError), back.start_as_current_span("charge card"):
                raise ValueError("card declined")
        web.shutdown()
        stock.shutdown()
    return format_trace_id(root.get_span_context().trace_id), format_trace_id(linked.trace_id)


def test_spans_of_the_opentelemetry_sdk_are_a_waterfall(
    page: Page, world: ConsoleWorld, tmp_path: Path
) -> None:
    """Two services in one trace: events and links of the SDK are shown, and a link opens."""
    trace_id, linked = in_thread(lambda: send_with_sdk(world, tmp_path))
    open_read(page, world, trace_id, 5)
    assert names(page) == ["POST /orders", "reserve 0", "reserve 1", "reserve 2", "charge card"]
    expect(page.locator(".legend")).to_contain_text("stock 4")
    page.get_by_role("treeitem", name="charge card").click()
    detail = page.get_by_role("region", name="Span", exact=True)
    for text in ("ValueError: card declined", "exception.stacktrace", "error", "internal"):
        expect(detail).to_contain_text(text)
    page.get_by_role("treeitem", name="reserve 1").click()
    detail.get_by_role("link", name=f"trace {linked}").click()
    expect(page.get_by_role("treeitem", name="nightly job")).to_have_attribute(
        "aria-selected", "true"
    )
