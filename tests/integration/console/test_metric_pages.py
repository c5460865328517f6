"""Metrics in a real Chromium: series by name and attribute, several in one chart."""

import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect
from support.builders import make_identity, salted_frame
from support.console_pages import CHROMIUM, accessibility, log_in, open_place, watch
from support.console_world import ConsoleWorld, served_console
from support.documented_blocks import check_command

from sluice_protocol.records import MetricPoint, metrics_from_records
from sluice_protocol.units import NS_PER_S

POINTS = 20
SPAN_NS = 600 * NS_PER_S

pytestmark = [
    pytest.mark.console,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`"),
]


def metric_frame(agent: str, name: str, start: int, device: str) -> bytes:
    """Return a batch with two points a minute, which are in one span of ten minutes."""
    end_ns = time.time_ns() // SPAN_NS * SPAN_NS
    points = [
        MetricPoint(
            ts_ns=end_ns - (POINTS - place) * 30 * NS_PER_S,
            name=name,
            value=float(place),
            attributes={"device": device},
        )
        for place in range(POINTS)
    ]
    who = make_identity(start, count=POINTS, agent=agent, boot="b1")
    return salted_frame(who, metrics_from_records(points))


def counter_frame(agent: str, start: int) -> bytes:
    """Return a batch with the samples of two counters, which rise by 3 in each half minute."""
    end_ns = time.time_ns() // SPAN_NS * SPAN_NS
    points = [
        MetricPoint(
            ts_ns=end_ns - (POINTS - place) * 30 * NS_PER_S,
            name="requests_total",
            value=float(place * 3),
            type=2,
            attributes={"path": path},
        )
        for path in ("/pay", "/cart")
        for place in range(POINTS)
    ]
    who = make_identity(start, count=2 * POINTS, agent=agent, boot="b1")
    return salted_frame(who, metrics_from_records(points))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleWorld]:
    with served_console(tmp_path_factory.mktemp("metrics"), trouble=False) as found:
        found.accept(metric_frame("web-1", "disk.reads", 0, "sda"))
        found.accept(counter_frame("web-1", POINTS))
        found.accept(metric_frame("db-2", "disk.reads", 0, "sdb"))
        wanted = {"disk.reads": 2 * POINTS, "requests_total": 2 * POINTS}
        found.wait_until("/v1/metrics?from=1h", lambda read: samples_of(read) == wanted)
        yield found


def samples_of(read: Any) -> dict[str, int]:
    """Return the number of samples of each metric in a response."""
    return {one["name"]: one["samples"] for one in read["metrics"]}


def test_what_is_typed_stays_when_series_arrive(browser: Browser, world: ConsoleWorld) -> None:
    page = log_in(browser.new_context(), world)
    open_place(page, world, "metrics")
    series = page.get_by_role("region", name="Series").locator("tbody tr")
    names = page.get_by_role("complementary", name="Metrics")
    names.get_by_role("button", name="disk.reads").click(timeout=60_000)
    expect(series).to_have_count(2, timeout=20_000)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/v1/query?*", hold)
    with page.expect_request("**/v1/query?*"):
        page.get_by_role("combobox", name="Aggregation").select_option("max")
    step = page.get_by_role("textbox", name="Step")
    step.fill("10m")
    for one in held:
        one.continue_()
    page.unroute("**/v1/query?*", hold)
    expect(series).to_have_count(2, timeout=20_000)
    expect(step).to_have_value("10m")
    page.keyboard.press("Tab")
    page.wait_for_url("**step=10m**")
    page.context.close()


def test_series_are_drawn_by_type_label_and_attribute(
    browser: Browser, world: ConsoleWorld
) -> None:
    page = log_in(browser.new_context(viewport={"width": 1280, "height": 900}), world)
    errors = watch(page)
    open_place(page, world, "metrics")
    series = page.get_by_role("region", name="Series").locator("tbody tr")
    names = page.get_by_role("complementary", name="Metrics")
    names.get_by_role("button", name="disk.reads").click(timeout=60_000)
    # Each set of labels is a series, and a gauge is drawn as its average.
    expect(series).to_have_count(2, timeout=20_000)
    expect(page.get_by_label("Aggregation")).to_contain_text("by type: avg")
    expect(page.locator(".chart canvas")).to_be_visible()
    names.get_by_role("button", name="requests_total").click()
    expect(page.get_by_label("Aggregation")).to_contain_text("by type: avg, rate")
    expect(series.filter(has_text="metric=requests_total")).to_have_count(2, timeout=20_000)
    expect(series.filter(has_text="path=/pay").locator("td").nth(3)).to_have_text("0.1")
    names.get_by_role("button", name="disk.reads").click()
    page.get_by_role("group", name="Combine by").get_by_role("button", name="agent_id").click()
    expect(series).to_have_count(1, timeout=20_000)
    expect(series.locator("td").nth(3)).to_have_text("0.2")
    shown = shlex.split(page.locator(".command code").first.inner_text())
    assert shown[:5] == ["sluice", "metrics", "requests_total", "--by", "agent_id"]
    check_command(shown[1:])
    names.get_by_role("button", name="requests_total").click()
    names.get_by_role("button", name="disk.reads").click()
    expect(series).to_have_count(2, timeout=20_000)
    page.get_by_role("textbox", name="Attribute").fill("device=sdb")
    page.get_by_role("button", name="Add").click()
    expect(series).to_have_count(1, timeout=20_000)
    expect(series).to_contain_text("agent_id=db-2")
    assert "attribute=device%3Dsdb" in page.url
    page.get_by_role("combobox", name="Aggregation").select_option("max")
    page.get_by_role("textbox", name="Step").fill("10m")
    page.keyboard.press("Tab")
    expect(series.locator("td").last).to_have_text("1", timeout=20_000)
    # No command has this result: `sluice metrics` does not filter by attributes.
    expect(page.locator(".command code")).to_have_count(0)
    shared = page.context.new_page()
    shared.goto(page.url)
    expect(shared.get_by_role("region", name="Series").locator("tbody tr")).to_have_count(
        1, timeout=20_000
    )
    page.get_by_role("button", name="Remove device=sdb").click()
    expect(series).to_have_count(2, timeout=20_000)
    assert accessibility(page) == []
    assert errors == []
    page.context.close()


def test_the_series_that_are_not_drawn_are_named(browser: Browser, world: ConsoleWorld) -> None:
    """Whole numbers keep their digits, so that JavaScript has them as objects."""
    page = log_in(browser.new_context(), world)
    errors = watch(page)
    open_place(page, world, "metrics?metric=disk.reads&step=10m&by=value&by=agent_id")
    series = page.get_by_role("region", name="Series").locator("tbody tr")
    expect(series.filter(has_text="value=1.0, agent_id=db-2")).to_have_count(1, timeout=20_000)
    expect(page.get_by_text("The 8 series with the largest averages of")).to_be_visible()
    assert errors == []
    page.context.close()


def test_a_wrong_step_is_named(browser: Browser, world: ConsoleWorld) -> None:
    page = log_in(browser.new_context(), world)
    open_place(page, world, "metrics?metric=disk.reads&step=never")
    expect(page.get_by_role("alert")).to_contain_text("step", timeout=20_000)
    page.context.close()


def test_the_first_metrics_appear_on_an_open_page(browser: Browser, tmp_path: Path) -> None:
    with served_console(tmp_path, trouble=False) as world:
        page = log_in(browser.new_context(), world)
        open_place(page, world, "metrics")
        expect(page.get_by_text("No metrics in this time")).to_be_visible(timeout=20_000)
        world.accept(metric_frame("web-1", "disk.reads", 0, "sda"))
        expect(page.get_by_role("button", name="disk.reads")).to_be_visible(timeout=60_000)
        page.context.close()
