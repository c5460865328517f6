"""The console in a real Chromium, over a real deployment with planted trouble.

The pictures of the documentation: written by the tests, and compared with the pages.
"""

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect
from support.console_pages import (
    CHROMIUM,
    PLACES,
    accessibility,
    log_in,
    misaligned,
    open_place,
    watch,
)
from support.console_world import (
    AGENT,
    VIEWER,
    ConsoleWorld,
    served_console,
)
from support.constants import settings_with

from sluice_console.settings import ConsoleSettings

PICTURES: Final = Path(__file__).parents[3] / "docs" / "pictures"
PICTURED: Final = frozenset({"overview", "conflict", "explore", "batch"})
WRITTEN: Final = "SLUICE_TEST_PICTURES" in os.environ
DIFFERENT_MAX: Final = 0.05
"""Share of the pixels that may differ: times, ages and lines of the last hour are never equal."""
_SETTLE: Final = """() => {
  const late = {
    ".attention li": /enqueued .* late|is .* behind/,
    ".notice div": /has not reported/,
  };
  for (const [place, words] of Object.entries(late)) {
    for (const one of document.querySelectorAll(place)) one.hidden ||= words.test(one.textContent);
  }
  for (const one of document.querySelectorAll(".stage.late")) one.classList.remove("late");
}"""
"""Hides what appears when a deployment without uploads is older than a minute."""
_COMPARE: Final = """async (pictures) => {
  const [one, other] = await Promise.all(pictures.map(async (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
    const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
    canvas.drawImage(image, 0, 0);
    return canvas.getImageData(0, 0, image.width, image.height);
  }));
  if (one.width !== other.width || one.height !== other.height) return 1;
  let different = 0;
  for (let at = 0; at < one.data.length; at += 4) {
    const most = Math.max(...[0, 1, 2].map((n) => Math.abs(one.data[at + n] - other.data[at + n])));
    if (most > 8) different += 1;
  }
  return different * 4 / one.data.length;
}"""


def check_picture(browser: Browser, page: Page, name: str) -> list[str]:
    """Compare a page with its picture, or write the picture if that was requested."""
    path = PICTURES / f"console-{name}.png"
    page.evaluate(_SETTLE)
    shown = page.screenshot()
    if WRITTEN:
        path.write_bytes(shown)
        return []
    share = differing_share(browser, path.read_bytes(), shown)
    print(f"{path.name}: {share:.2%} of the pixels differ")
    if share <= DIFFERENT_MAX:
        return []
    return [
        f"{path.name} differs in {share:.0%} of its pixels: write it with SLUICE_TEST_PICTURES=1"
    ]


def differing_share(browser: Browser, one: bytes, other: bytes) -> float:
    """Return the share of the pixels in which two pictures differ visibly."""
    page = browser.new_page()
    try:
        encoded = [base64.b64encode(picture).decode() for picture in (one, other)]
        return float(page.evaluate(_COMPARE, encoded))
    finally:
        page.close()


pytestmark = [
    pytest.mark.console,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`"),
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
        problems += [f"{name}: not aligned: {one}" for one in misaligned(page)]
        wide = page.evaluate("document.documentElement.scrollWidth")
        problems += [f"{name}: is {wide} wide"] if wide > width else []
        if width == 1280 and name in PICTURED:
            problems += check_picture(browser, page, f"{name}-{scheme}")
    assert not problems, "\n".join(problems)
    assert errors == []
    context.close()


def test_a_moved_page_differs_from_its_picture(browser: Browser, world: ConsoleWorld) -> None:
    """The comparison above finds a page without its menu, and nothing between equal pictures."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page = log_in(context, world)
    open_place(page, world, "conflicts")
    before = page.screenshot()
    while (again := page.screenshot()) != before:  # fonts and counts may still arrive
        before = again
    assert differing_share(browser, before, page.screenshot()) < 0.001
    page.evaluate("document.querySelector('.menu').remove()")
    assert differing_share(browser, before, page.screenshot()) > DIFFERENT_MAX
    page.context.close()


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


def test_a_held_batch_leads_to_its_objects(browser: Browser, world: ConsoleWorld) -> None:
    page = log_in(browser.new_context(), world)
    open_place(page, world, "queue")
    page.get_by_role("region", name="Held batches").get_by_role("link").click()
    expect(page.get_by_role("heading", name="web-2/b1/0-2")).to_be_visible()
    expect(page.locator(".timeline")).to_contain_text("Blob is not usable")
    page.context.close()


def test_a_viewer_sees_conflicts_and_cannot_decide(browser: Browser, world: ConsoleWorld) -> None:
    page = log_in(browser.new_context(), world, VIEWER)
    open_place(page, world, "conflicts")
    page.get_by_role("link", name=f"Compare the conflict of {AGENT}").click()
    button = page.get_by_role("button", name="Quarantine the boot")
    expect(button).to_be_disabled()
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


def test_an_ended_session_leads_to_the_login(browser: Browser, world: ConsoleWorld) -> None:
    page = log_in(browser.new_context(), world)
    page.context.clear_cookies()
    page.goto(f"{world.url}/#queue")
    expect(page.get_by_label("Token")).to_be_visible(timeout=20_000)
    expect(page.locator("main")).to_contain_text("Your login has ended")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("Unknown token")
    page.get_by_label("Token").fill(VIEWER)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Queue")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    expect(page.locator("main")).not_to_contain_text("has ended")
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


def test_the_page_loads_from_this_host_only(browser: Browser, world: ConsoleWorld) -> None:
    visit(browser, world, lambda page: page.get_by_label("Token"))


def test_the_overview_is_open_without_logins(browser: Browser, tmp_path: Path) -> None:
    visited = settings_with(ConsoleSettings, listen="127.0.0.1:0", sample_s=1.0)
    with served_console(tmp_path, visited, services=False) as world:
        visit(browser, world, lambda page: page.get_by_text("1 batch held back"))


def visit(browser: Browser, world: ConsoleWorld, wanted: Callable[[Page], Locator]) -> None:
    """Open the page without a cache until something is shown, all of it from this host."""
    page = browser.new_context().new_page()
    hosts: set[str] = set()
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    page.goto(world.url)
    expect(wanted(page)).to_be_visible(timeout=20_000)
    assert hosts == {world.url.split("/")[2]}
    page.context.close()


def test_an_empty_deployment_leads_on(browser: Browser, tmp_path: Path) -> None:
    with served_console(tmp_path, trouble=False) as world:
        page = log_in(browser.new_context(), world)
        errors = watch(page)
        expect(page.get_by_text("The store was never tested")).to_be_visible()
        for place, text in {
            "overview": "No gateway is running",
            "explore": "No record matches",
            "metrics": "No metric is chosen",
            "queue": "Nothing is held back",
            "agents": "No agent has sent anything yet",
            "conflicts": "No conflicts",
            "batches": "No batches here",
            "audit": "No audit yet",
            "store": "The doctor never ran",
        }.items():
            open_place(page, world, place)
            expect(page.get_by_text(text, exact=True)).to_be_visible(timeout=20_000)
            assert accessibility(page) == []
        assert errors == []
        page.context.close()
