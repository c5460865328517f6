"""The list of agents in a real Chromium."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from support.console_pages import CHROMIUM, accessibility, log_in, open_place, watch
from support.console_world import AGENT, ConsoleWorld, frame, lines, served_console

from sluice_console import sampler
from sluice_console.agents import AgentReport, AgentReports, report_of_agents
from sluice_reconciler.completeness import BootReport

pytestmark = [
    pytest.mark.console,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`"),
]

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
    report = report_of_agents(boots, as_of="2026-01-01T00:00:00Z", source="reconciler")

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


def agents(world: ConsoleWorld) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the list of agents, and the boots of one of them, from the API."""
    return world.read("/v1/agents?order=name"), world.read(f"/v1/agents/boots?agent={AGENT}")


def accepted_in_window(world: ConsoleWorld) -> int:
    """Return how many batches of the agent its rate contains; both pages agree."""
    listed, shown = agents(world)
    (row,) = [one for one in listed["agents"] if one["agent_id"] == AGENT]
    counts = []
    for rate, window in ((row["rate"], listed["window"]), (shown["rate"], shown["window"])):
        counts.append(round(rate["batches_per_s"] * window["read_s"], 6) if rate else 0)
    return int(min(counts)) if all(one == int(one) for one in counts) else -1


def test_rates_of_an_agent_and_its_boots_count_each_batch_once(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "ACTIVITY_DELAY_S", 4.0)
    with served_console(tmp_path) as world:
        page = log_in(browser.new_context(), world)
        errors = watch(page)
        world.accept(frame(AGENT, 21, lines(21)))
        world.accept(frame(AGENT, 0, lines(0), boot="b2"))
        deadline_s = time.monotonic() + 60
        while accepted_in_window(world) < 7:
            assert time.monotonic() < deadline_s
            time.sleep(0.5)
        time.sleep(3)
        assert accepted_in_window(world) == 7, "no batch is counted by two samples"
        open_place(page, world, "agents")
        expect(page.locator("main")).to_contain_text("Rates are of the")
        expect(page.locator("main")).not_to_contain_text("were read")
        row = page.get_by_role("row", name=AGENT)
        batches, size = (row.get_by_role("cell").nth(at) for at in (4, 5))
        assert 0 < float(batches.inner_text()) < 1
        assert re.fullmatch(r"[0-9.]+ (B|KiB)", size.inner_text())
        open_place(page, world, f"agents/{AGENT}")
        expect(page.locator("main")).to_contain_text(re.compile(r"All boots: 0\.[0-9]+ batches/s"))
        cards = page.locator("section.card")
        for at in range(cards.count()):
            expect(cards.nth(at)).to_contain_text(re.compile("rate0.[0-9]+ batches/s, [0-9.]+ rec"))
        assert cards.count() >= 1
        assert accessibility(page) == []
        assert errors == []
        page.context.close()


def test_rates_from_an_index_that_may_be_behind_are_marked(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reconciler runs, so later batches may have been accepted and are not indexed."""
    monkeypatch.setattr(sampler, "ACTIVITY_DELAY_S", 0.0)
    with served_console(tmp_path, services=False) as world:
        page = log_in(browser.new_context(), world)
        open_place(page, world, "agents")
        expect(page.locator("main")).to_contain_text("Incomplete: the index was not known")
        page.context.close()
