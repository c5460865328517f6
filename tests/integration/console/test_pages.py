"""The console in a real Chromium, over a real deployment with planted trouble."""

import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from support.builders import make_identity
from support.console_pages import CHROMIUM, log_in, open_place, watch
from support.console_world import (
    AGENT,
    HOSTILE,
    REFUSED,
    VIEWER,
    ConsoleWorld,
    served_console,
)
from support.query_lake import log_batch
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_console.agents import AgentReport, AgentReports, make_report
from sluice_protocol.conflicts import ConflictName
from sluice_protocol.keys import digest_of
from sluice_reconciler.completeness import BootReport

ROOT: Final = Path(__file__).parents[3]
PICTURES: Final = ROOT / "docs" / "pictures"
AXE: Final = (ROOT / "tests" / "support" / "axe" / "axe.min.js").read_text()
SUBJECT: Final = f"{AGENT}/b1/0-2"
CONFLICT: Final = ConflictName(
    identity=make_identity(0, count=3, agent=AGENT), submitted=digest_of(REFUSED)
).id
PICTURED: Final = {"overview", "conflict", "explore", "batch"}
PLACES: Final = {
    "overview": "overview",
    "agents": "agents",
    "agent": f"agents/{AGENT}",
    "conflicts": "conflicts",
    "conflict": f"conflicts/{CONFLICT}",
    "queue": "queue",
    "batches": "batches",
    "batch": f"batches/{SUBJECT.replace('/', '%2F')}",
    "audit": "audit",
    "store": "store",
    "explore": "explore?from=1h",
    "metrics": "metrics",
}

pytestmark = [
    pytest.mark.console,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`"),
]


def accessibility(page: Page) -> list[str]:
    page.evaluate(AXE)
    options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"]}
    found = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_every_page_is_accessible_fits_and_logs_no_error(
    browser: Browser, world: ConsoleWorld, scheme: Any, width: int
) -> None:
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce"
    )
    page = log_in(context, world)
    errors = watch(page)
    problems: list[str] = []
    for name, place in PLACES.items():
        open_place(page, world, place)
        problems += [f"{name}: {one}" for one in accessibility(page)]
        wide = page.evaluate("document.documentElement.scrollWidth")
        problems += [f"{name}: is {wide} wide"] if wide > width else []
        if "SLUICE_TEST_PICTURES" in os.environ and width == 1280 and name in PICTURED:
            PICTURES.mkdir(exist_ok=True)
            page.screenshot(path=PICTURES / f"console-{name}-{scheme}.png")
    assert not problems, "\n".join(problems)
    assert errors == []
    context.close()


def test_the_overview_leads_to_a_decision_in_three_clicks(
    browser: Browser, world: ConsoleWorld
) -> None:
    page = log_in(browser.new_context(), world)
    errors = watch(page)
    page.get_by_role("link", name="Open conflicts", exact=True).click()
    page.get_by_role("link", name=f"Compare the conflict of {AGENT}").click()
    expect(page.get_by_text("GET /orders/1 500 18 ms")).to_be_visible()
    page.get_by_role("button", name="Keep the accepted bytes").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Note").fill("the first upload is right")
    dialog.get_by_role("button", name="Keep the accepted bytes").click()
    expect(page.get_by_text("operator:otto")).to_be_visible()
    expect(page.get_by_text("the first upload is right")).to_be_visible()
    assert errors == []
    page.context.close()


@pytest.mark.parametrize(
    ("link", "cause"),
    [
        ("Open agents", "missing"),
        ("Open queue", "The blob is missing. Restore it under its key."),
    ],
)
def test_each_trouble_links_to_its_cause(
    browser: Browser, world: ConsoleWorld, link: str, cause: str
) -> None:
    page = log_in(browser.new_context(), world)
    page.get_by_role("link", name=link, exact=True).first.click()
    expect(page.locator("main").get_by_text(cause).first).to_be_visible()
    page.context.close()


def test_a_viewer_sees_conflicts_and_cannot_decide(browser: Browser, world: ConsoleWorld) -> None:
    page = log_in(browser.new_context(), world, VIEWER)
    open_place(page, world, "conflicts")
    page.get_by_role("link", name=f"Compare the conflict of {AGENT}").click()
    button = page.get_by_role("button", name="Quarantine the boot")
    expect(button).to_be_disabled()
    page.context.close()


def test_a_dead_letter_is_listed_with_its_reason_and_its_command(
    browser: Browser, tmp_path: Path
) -> None:
    with served_console(tmp_path, trouble=False) as world:
        lost = log_batch(["x"], agent="host-9")
        place = Deployment(root=world.store_folder)

        def lose() -> None:
            place.accept([lost], blobs=False)
            place.enqueue([lost])
            ingest_locally(place.url)

        with ThreadPoolExecutor(1) as thread:
            thread.submit(lose).result()
        page = log_in(browser.new_context(), world)
        errors = watch(page)
        open_place(page, world, "queue")
        table = page.get_by_role("region", name="Dead letters")
        expect(table).to_contain_text("missing")
        expect(table).to_contain_text("Restore it under its key")
        name = f"host-9/{lost.manifest.boot_id}/0-0"
        expect(table.get_by_role("button", name=f"sluice explain {name}")).to_be_visible()
        expect(page.locator("main")).to_contain_text("sluice query dead-letters --store")
        table.get_by_role("link", name=name).click()
        expect(page.locator("main")).to_contain_text(lost.manifest.frame_sha256[:12])
        assert errors == []
        page.context.close()


AGENTS = 100_000


@pytest.mark.parametrize("width", [1280, 400])
def test_a_list_of_100_000_agents_scrolls_and_has_few_elements(
    browser: Browser, world: ConsoleWorld, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    boots = [
        BootReport(
            agent_id=f"agent-{n:06d}",
            boot_id="b",
            batches=1,
            ranges=((0, 9),),
            overlaps=0,
            gaps=(),
            last_accepted_s=float(n),
            high_water=9,
            oldest_gap_s=0.0,
        )
        for n in range(AGENTS)
    ]
    report = make_report(boots, as_of="2026-01-01T00:00:00Z", source="reconciler")

    async def read(_: AgentReports) -> AgentReport:
        return report

    monkeypatch.setattr(AgentReports, "read", read)
    page = log_in(browser.new_context(viewport={"width": width, "height": 900}), world)
    errors = watch(page)
    open_place(page, world, "agents?order=name")
    expect(page.get_by_text("100,000 agents")).to_be_visible()
    table = page.get_by_role("region", name="Agents")
    expect(table.locator("table")).to_have_attribute("aria-rowcount", str(AGENTS + 1))
    expect(page.get_by_role("link", name="agent-000000")).to_be_visible()
    for share, shown in ((0.5, "agent-050000"), (1.0, "agent-099999"), (0.0, "agent-000000")):
        table.evaluate("(box, share) => { box.scrollTop = share * box.scrollHeight }", share)
        expect(page.get_by_role("link", name=shown)).to_be_visible()
        assert table.locator("tr").count() < 60
    top = table.evaluate("box => box.scrollTop = 4000 * 40")
    row = page.get_by_role("row", name="agent-004000")
    expect(row).to_be_visible()
    assert row.get_attribute("aria-rowindex") == "4002"
    assert top == 160_000
    page.get_by_label("Search").fill("09999")
    expect(page.get_by_text("11 agents match")).to_be_visible()
    expect(page.get_by_role("link", name="agent-009999")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert accessibility(page) == []
    assert errors == []
    page.context.close()


def test_an_activity_of_which_only_a_part_was_read_is_marked(
    browser: Browser, world: ConsoleWorld
) -> None:
    page = browser.new_context().new_page()

    def mark(route: Route) -> None:
        sample = json.loads(route.fetch().body()) | {"activity_at_least": True}
        route.fulfill(json=sample)

    page.route("**/v1/overview/stream", lambda route: route.abort())
    page.route("**/v1/overview", mark)
    page.goto(world.url)
    page.get_by_label("Token").fill(VIEWER)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("main")).to_contain_text("At least: more was accepted")
    expect(page.locator(".stages")).to_contain_text("at least")
    page.context.close()


def test_keys_open_pages_search_and_help(browser: Browser, world: ConsoleWorld) -> None:
    page = log_in(browser.new_context(), world)
    page.keyboard.press("g")
    page.keyboard.press("a")
    expect(page.get_by_role("heading", name="Agents")).to_be_focused()
    page.keyboard.press("/")
    field = page.get_by_label("Search")
    expect(field).to_be_focused()
    page.keyboard.type("web-1")
    expect(page.get_by_role("link", name=AGENT)).to_be_visible()
    expect(page.get_by_role("link", name="db-2")).to_have_count(0)
    page.get_by_role("heading", name="Agents").click()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.context.close()


def test_hostile_records_of_a_conflict_are_shown_as_text(
    browser: Browser, world: ConsoleWorld
) -> None:
    page = log_in(browser.new_context(), world)
    open_place(page, world, "conflicts?agent=db-2")
    page.get_by_role("link", name=re.compile("Compare")).click()
    expect(page.locator(".diff")).to_contain_text("<script>window.hacked=1</script>")
    expect(page.locator(".diff")).to_contain_text("\\u202e")
    assert page.evaluate("window.hacked") is None
    page.context.close()


def poisoned(value: Any, strings: Iterator[str], rows: int) -> Any:
    """Return a response whose strings are hostile and whose lists of objects are long."""
    match value:
        case str():
            return next(strings)
        case list() if value and isinstance(value[0], dict):
            return [poisoned(value[at % len(value)], strings, 1) for at in range(rows)]
        case list():
            return [poisoned(one, strings, rows) for one in value]
        case dict():
            return {
                poison_key(key): poisoned(one, strings, rows if key != "boots" else 3)
                for key, one in value.items()
            }
        case _:
            return value


def poison_key(key: str) -> str:
    """Return a key of the API as it is, and a key of the store with hostile text."""
    return key if "/" not in key else f"{key}{HOSTILE[0]}"


def hostile_strings() -> Iterator[str]:
    number = 0
    while True:
        yield f"{HOSTILE[number % len(HOSTILE)]}{number}"
        number += 1


def test_no_hostile_string_in_any_field_of_any_page_runs(
    browser: Browser, world: ConsoleWorld
) -> None:
    """Every string of every response is replaced, some 10 000 of them."""
    context = browser.new_context()
    page = log_in(context, world)
    exceptions: list[str] = []
    page.on("pageerror", lambda error: exceptions.append(str(error)))
    strings = hostile_strings()

    def poison(route: Route) -> None:
        response = route.fetch()
        kind = response.headers.get("content-type", "")
        if "session" in route.request.url or not response.ok or "json" not in kind:
            route.fulfill(response=response)
            return
        documents = [json.loads(line) for line in response.text().splitlines()]
        rows = 300 if len(documents) == 1 else 1
        body = "\n".join(json.dumps(poisoned(one, strings, rows)) for one in documents)
        route.fulfill(status=200, content_type=kind, body=f"{body}\n")

    page.route("**/v1/overview/stream", lambda route: route.abort())
    page.route(re.compile(r"/v1/(?!overview/stream)"), poison)
    for place in PLACES.values():
        page.goto(f"{world.url}/#{place}")
        page.wait_for_timeout(1500)
        assert page.evaluate("window.hacked") is None, place
        made = page.evaluate(
            "document.querySelectorAll('main script, main img, main iframe, main [onerror],"
            " main [onload], main [onmouseover], main [srcdoc]').length"
        )
        assert made == 0, place
        links = page.evaluate("[...document.querySelectorAll('main a')].map(one => one.protocol)")
        assert set(links) <= {"http:"}, place
    page.unroute_all(behavior="ignoreErrors")
    number = int(re.search(r"[0-9]+$", next(strings))[0])  # type: ignore[index]
    assert number > 10_000, "fewer hostile strings were shown than intended"
    assert exceptions == []
    context.close()


def test_html_of_text_is_refused_even_if_a_page_had_a_defect(
    browser: Browser, world: ConsoleWorld
) -> None:
    """Trusted Types and the policy stop what a careless change of a page would do."""
    page = log_in(browser.new_context(), world)
    refused = page.evaluate(
        "() => { try { document.querySelector('main').innerHTML = '<b>x</b>'; return false; }"
        " catch (error) { return error instanceof TypeError; } }"
    )
    assert refused
    refused = page.evaluate(
        "() => { try { document.body.setAttribute('onclick', 'window.hacked=1'); return false; }"
        " catch (error) { return error instanceof TypeError; } }"
    )
    assert refused
    assert page.evaluate("window.hacked") is None
    page.context.close()


def test_an_ended_session_leads_to_the_login(browser: Browser, world: ConsoleWorld) -> None:
    page = log_in(browser.new_context(), world)
    page.context.clear_cookies()
    page.goto(f"{world.url}/#queue")
    expect(page.get_by_label("Token")).to_be_visible(timeout=20_000)
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("Unknown token")
    page.context.close()


def test_a_stopped_console_is_named_and_the_page_recovers(
    browser: Browser, world: ConsoleWorld
) -> None:
    page = log_in(browser.new_context(), world)
    page.route("**/v1/**", lambda route: route.abort())
    page.goto(f"{world.url}/#queue")
    expect(page.get_by_role("alert")).to_contain_text("The console does not respond")
    page.unroute("**/v1/**")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("heading", name="Lanes")).to_be_visible()
    page.context.close()


def test_the_page_starts_at_each_reload(browser: Browser, world: ConsoleWorld) -> None:
    """With cached files, modules are ready before the parser has read the whole page."""
    page = browser.new_context().new_page()
    page.goto(world.url)
    for _ in range(30):
        expect(page.get_by_label("Token")).to_be_visible(timeout=10_000)
        page.reload()
    page.context.close()


def test_the_page_loads_from_this_host_only_and_fast(browser: Browser, world: ConsoleWorld) -> None:
    best_s = 60.0
    for _ in range(3):
        context = browser.new_context()
        page = context.new_page()
        hosts: set[str] = set()
        page.on("request", lambda request, seen=hosts: seen.add(request.url.split("/")[2]))
        began_s = time.monotonic()
        page.goto(world.url)
        expect(page.get_by_label("Token")).to_be_visible(timeout=20_000)
        best_s = min(best_s, time.monotonic() - began_s)
        assert hosts == {world.url.split("/")[2]}
        context.close()
    assert best_s < 1.0


def test_a_million_points_are_drawn_within_100_ms(browser: Browser, world: ConsoleWorld) -> None:
    page = log_in(browser.new_context(), world)
    took = page.evaluate(
        """async () => {
          const { default: UPlot } = await import("/static/vendor/uPlot.mjs");
          const times = new Float64Array(1e6), values = new Float64Array(1e6);
          for (let at = 0; at < 1e6; at += 1) { times[at] = at; values[at] = Math.sin(at / 5e4) }
          const box = document.querySelector("main");
          let best = 1e9;
          for (let round = 0; round < 5; round += 1) {
            const began = performance.now();
            const line = { stroke: "teal", points: { show: false } };
            const options = { width: 900, height: 320, series: [{}, line] };
            const plot = new UPlot(options, [times, values], box);
            await new Promise((done) => setTimeout(done));
            best = Math.min(best, performance.now() - began);
            plot.destroy();
          }
          return best;
        }"""
    )
    assert took < 100
    page.context.close()


def test_an_empty_deployment_leads_on(browser: Browser, tmp_path: Path) -> None:
    with served_console(tmp_path, trouble=False) as world:
        page = log_in(browser.new_context(), world)
        errors = watch(page)
        expect(page.get_by_text("The store was never tested")).to_be_visible()
        for place, text in {
            "agents": "No agent has sent anything yet",
            "conflicts": "No conflicts",
            "batches": "No batches here",
            "audit": "No audit yet",
            "store": "The doctor never ran",
        }.items():
            open_place(page, world, place)
            expect(page.get_by_text(text, exact=True)).to_be_visible()
        assert errors == []
        page.context.close()
