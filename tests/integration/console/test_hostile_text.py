"""Hostile text in a real Chromium: it is shown, and never runs."""

import re

import pytest
from playwright.sync_api import Browser, expect
from support.console_pages import CHROMIUM, PLACES, log_in, open_place, walk_hostile
from support.console_world import ConsoleWorld

pytestmark = [
    pytest.mark.console,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`"),
]


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


def test_no_hostile_string_in_any_field_of_any_page_runs(
    browser: Browser, world: ConsoleWorld
) -> None:
    """Every string of every response is replaced, some 10 000 of them."""
    context = browser.new_context()
    number = walk_hostile(log_in(context, world), world, PLACES.values())
    assert number > 10_000, "fewer hostile strings were shown than intended"
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
