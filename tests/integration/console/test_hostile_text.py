"""Hostile text in a real Chromium: it is shown, and never runs."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect
from support.console_pages import CHROMIUM, PLACES, log_in, open_place
from support.console_world import HOSTILE, ConsoleWorld

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
