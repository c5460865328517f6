"""What pages show if the store is lost, a clock is wrong, or a side of a conflict is damaged."""

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, expect
from support.builders import make_identity
from support.console_pages import CHROMIUM, log_in, open_place
from support.console_world import AGENT, REFUSED, SETTINGS, ConsoleWorld, served_console

from sluice_protocol.conflicts import ConflictName
from sluice_protocol.keys import blob_key, digest_of

pytestmark = [
    pytest.mark.console,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`"),
]


def test_each_page_names_a_lost_store(browser: Browser, tmp_path: Path) -> None:
    with served_console(tmp_path, services=False) as world:
        page = log_in(browser.new_context(), world)
        world.store_folder.rename(tmp_path / "away")
        world.store_folder.write_text("not a directory")
        expect(page.locator(".attention")).to_contain_text("Cannot read", timeout=20_000)
        for place in ("queue", "batches", "conflicts", "audit", "store", f"agents/{AGENT}"):
            open_place(page, world, place)
            problem = page.locator("main [role=alert], main .problem, main .notice").first
            expect(problem).to_be_visible(timeout=20_000)
            assert len(problem.inner_text()) > 20, place
        page.context.close()


NOWHERE: Final = "http://127.0.0.1:9"
UNREACHABLE: Final = {
    "overview": "The reconciler service does not respond",
    "explore?from=1h": "query",
    "metrics": "query",
    "queue": "query",
}
"""What the pages name that need another service; the others read the store."""


def test_each_page_names_an_unreachable_service(browser: Browser, tmp_path: Path) -> None:
    lost = replace(SETTINGS, reconciler=NOWHERE, query=NOWHERE, gateways=NOWHERE)
    with served_console(tmp_path, lost, services=False) as world:
        page = log_in(browser.new_context(), world)
        for place, named in UNREACHABLE.items():
            open_place(page, world, place)
            problem = page.locator("main [role=alert], main .attention").first
            expect(problem).to_contain_text(named, timeout=20_000)
            expect(problem).to_contain_text(re.compile("unreachable|does not respond"))
            expect(problem).to_contain_text(re.compile("start", re.IGNORECASE))
        open_place(page, world, "overview")
        expect(page.locator(".attention")).to_contain_text("No gateway responds")
        expect(page.locator(".stages")).to_contain_text("unknown: no reconciler responds")
        open_place(page, world, "agents")
        expect(page.locator("main")).to_contain_text("from a listing of the store")
        for place in ("batches", "conflicts", "audit", "store"):
            open_place(page, world, place)
            expect(page.locator("main [role=alert]")).to_have_count(0)
        page.context.close()


def test_pages_name_the_settings_of_services_that_the_console_does_not_know(
    browser: Browser, tmp_path: Path
) -> None:
    with served_console(tmp_path, services=False) as world:
        page = log_in(browser.new_context(), world)
        expect(page.locator(".stages")).to_contain_text("unknown: set reconciler of the console")
        for place in ("explore?from=1h", "trace", "trace/0af7651916cd43dd", "metrics"):
            open_place(page, world, place)
            expect(page.get_by_text("No query service", exact=True)).to_be_visible(timeout=20_000)
            expect(page.locator("main")).to_contain_text("sluice query serve --store")
            expect(page.locator("main")).to_contain_text("--query URL")
            assert page.locator("main [role=alert]").count() == 0
        open_place(page, world, "queue")
        expect(page.locator("main")).to_contain_text("Set query of the console")
        expect(page.locator("main")).to_contain_text("Set gateways of the console")
        page.context.close()


@pytest.mark.parametrize(("hours", "words"), [(1, "60 min ahead of"), (-3, "3 h behind")])
def test_a_wrong_clock_of_the_browser_is_named(
    browser: Browser, world: ConsoleWorld, hours: int, words: str
) -> None:
    context = browser.new_context()
    page = log_in(context, world)
    expect(page.locator("main")).not_to_contain_text("The clock of this browser")
    page.clock.install(time=dt.datetime.now(dt.UTC) + dt.timedelta(hours=hours))
    page.reload()
    expect(page.locator("main")).to_contain_text(
        f"The clock of this browser is {words} the clock of the console", timeout=20_000
    )
    context.close()


def test_a_damaged_side_of_a_conflict_is_named_on_its_page(
    browser: Browser, tmp_path: Path
) -> None:
    with served_console(tmp_path) as world:
        path = world.store_folder / blob_key(digest_of(REFUSED))
        path.chmod(0o600)
        path.write_bytes(b"x" + path.read_bytes()[1:])
        name = ConflictName(
            identity=make_identity(0, count=3, agent=AGENT), submitted=digest_of(REFUSED)
        )
        page = log_in(browser.new_context(), world)
        open_place(page, world, f"conflicts/{name.id}")
        expect(page.locator("main")).to_contain_text("The refused side cannot be compared")
        expect(page.locator("main .problem")).to_contain_text("damaged")
        page.context.close()
