"""Responses of the console's API in which every string is hostile."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from playwright.sync_api import Page, Route
from support.console_world import HOSTILE, ConsoleWorld

NAMES: Final = frozenset({"role", "clause"})
"""Fields whose values are names of the API: pages choose what to show by them."""


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
                poison_key(key): one
                if key in NAMES
                else poisoned(one, strings, rows if key != "boots" else 3)
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


def walk_hostile(page: Page, world: ConsoleWorld, places: Iterable[str]) -> int:
    """Open pages with hostile responses; nothing may run or become an element.

    Returns:
        The number of hostile strings.
    """
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
    for place in places:
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
    assert exceptions == []
    found = re.search(r"[0-9]+$", next(strings))
    assert found is not None
    return int(found[0])
