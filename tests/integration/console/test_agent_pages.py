"""The list of agents in a real Chromium."""

import pytest
from playwright.sync_api import Browser, expect
from support.console_pages import CHROMIUM, accessibility, log_in, open_place, watch
from support.console_world import ConsoleWorld

from sluice_console.agents import AgentReport, AgentReports, make_report
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
