"""Each trouble of the runbook is planted, and the overview leads to its cause and remedy.

One click opens the page of an item, and a second one a detail of it. So an operator needs at most
three clicks from the overview.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, expect
from support.console_pages import CHROMIUM, log_in, open_place, watch
from support.console_world import (
    PROOF_MS,
    SETTINGS,
    ConsoleWorld,
    TroubledWorld,
    applied,
    in_thread,
    plant_in_gateway,
    served_console,
    stop_everything,
    troubled_console,
)
from support.documented_blocks import check_command
from support.policies_moto import drop_statement

RUNBOOK: Final = Path(__file__).parents[3] / "docs" / "runbook.md"
ITEMS: Final = {
    # heading of the runbook: title of the item, its remedy, and what its page shows
    "SluiceUploadsRefused": ("refuses 100% of the uploads", "compare both sides", "Compare"),
    "SluiceStoreSlow": ("The store is slow for a gateway", "status page of the provider", "Doctor"),
    "SluiceJournalOld": ("cannot write its journal", "rights for gateways/", "45 s"),
    "SluiceSpoolNearlyFull": (
        "spool of a gateway",
        "delete no file of the spool",
        "of its capacity is used",
    ),
    "SluicePrincipalsStale": (
        "invalid principals file",
        "without a restart",
        "An invalid principals file",
    ),
    "SluiceRegisterLost": ("is lost", "sluice rebuild", "is lost"),
    "SluiceBatchesHeld": ("held back", "Restore the blobs", "Restore it under its key"),
    "SluiceAgentGap": ("has gaps", "spool of the agent", "missing"),
    "SluiceTaskOverdue": ("task compact", "no process runs it", "overdue"),
    "SluiceTaskHalted": ("task gc", "sluice maintain resume gc", "the plan names an accepted blob"),
    "SluiceTaskFailing": ("task rollup", "access denied to lake/", "access denied to lake/"),
    "SluiceHoldDue": ("1 hold to review", "sluice hold lift", "litigation of a supplier"),
    "SluiceAuditFindings": ("found 2 missing blobs", "sluice rebuild", "2 missing blobs"),
}
STOPPED: Final = {
    "SluiceNoGateway": ("No gateway is running", "Start one", "No gateway has registered"),
    "SluiceNotEnqueued": ("are enqueued 60 min late", "reconciler is stopped", "behind"),
    "SluiceLaneWithoutOwner": ("has no owner", "start `sluice reconciler`", "unowned"),
}
WITHOUT_ITEM: Final = {"SluiceQueueLarge", "SluiceManyListings"}
"""Alerts about cost; nothing in the store is wrong, so the console shows no item."""
WITH_A_LAKE: Final = {"SluiceDeadLetters"}
"""Counted in tables, which are not part of this deployment: see `path/test_ways_back.py`."""
BY_A_COMMAND: Final = {"SluiceErasureLate"}
"""The item names the command that lists erasures; the console has no page of them."""
DENIALS: Final = {
    "SluiceDenialLost": (
        "1 denial of the policies is lost",
        "missing or changed: CreateOnly",
        "silently replaces the earlier one",
    ),
}

pytestmark = [
    pytest.mark.console,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`"),
]


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TroubledWorld]:
    with troubled_console(tmp_path_factory.mktemp("troubled")) as found:
        yield found


@pytest.fixture(scope="module")
def page(browser: Browser, troubled: TroubledWorld) -> Page:
    page = log_in(browser.new_context(), troubled.console)
    expect(page.locator(".attention")).to_contain_text("held back")
    plant_in_gateway(troubled.metrics)
    expect(page.locator(".attention")).to_contain_text("principals file", timeout=20_000)
    return page


def test_each_entry_of_the_runbook_has_a_planted_trouble() -> None:
    entries = re.findall(r"^## (Sluice\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    planted = set(ITEMS) | set(STOPPED) | set(DENIALS) | WITH_A_LAKE | BY_A_COMMAND
    assert set(entries) == planted | WITHOUT_ITEM


def follow(page: Page, world: ConsoleWorld, title: str, remedy: str, cause: str) -> None:
    open_place(page, world, "overview")
    item = page.locator(".attention li", has_text=title)
    expect(item).to_have_count(1, timeout=20_000)
    expect(item).to_contain_text(remedy)
    for command in item.locator(".command code").all_inner_texts():
        program, *words = shlex.split(command)
        if program == "sluice":
            check_command(words)
        else:
            assert (program, len(words)) == ("curl", 1)
    item.get_by_role("link", name=re.compile("^Open ")).click()
    expect(page.locator("main h1")).not_to_have_text("Overview")
    expect(page.locator("main").get_by_text(cause).first).to_be_visible(timeout=20_000)


@pytest.mark.parametrize("entry", ITEMS)
def test_the_overview_leads_to_cause_and_remedy(
    page: Page, troubled: TroubledWorld, entry: str
) -> None:
    errors = watch(page)
    follow(page, troubled.console, *ITEMS[entry])
    assert errors == []


def test_stopped_services_are_named(browser: Browser, tmp_path: Path) -> None:
    with served_console(tmp_path, services=False, plant=stop_everything) as world:
        page = log_in(browser.new_context(), world)
        for entry in STOPPED.values():
            follow(page, world, *entry)
        page.context.close()


def test_a_lost_denial_of_the_bucket_is_named_with_its_remedy(
    browser: Browser, tmp_path: Path, endpoint: str
) -> None:
    used = replace(SETTINGS, policies=applied(tmp_path))
    in_thread(lambda: drop_statement(endpoint, "CreateOnly"))
    with served_console(tmp_path / "world", used, trouble=False) as world:
        page = log_in(browser.new_context(), world)
        expect(page.locator(".attention")).to_contain_text("policies", timeout=PROOF_MS)
        for entry in DENIALS.values():
            follow(page, world, *entry)
        expect(page.locator("main .problem")).to_contain_text("sluice policies diff")
        page.context.close()


def test_a_gateway_that_died_is_named_with_what_follows(browser: Browser, tmp_path: Path) -> None:
    with served_console(tmp_path, services=False) as world:
        page = log_in(browser.new_context(), world)
        item = page.locator(".attention li", has_text="Gateway gw-test stopped reporting")
        expect(item).to_contain_text("Start it again, or wait for the full pass")
        item.get_by_role("link", name="Open queue").click()
        expect(page.locator("main").get_by_text("lapsed").first).to_be_visible()
        page.context.close()
