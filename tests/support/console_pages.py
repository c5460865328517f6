"""Steps in a browser that several tests of the console share.

Also here: responses of the console's API in which every string is hostile.
"""

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from playwright.sync_api import BrowserContext, Page, Route, expect
from support.builders import make_identity
from support.console_world import AGENT, HOSTILE, OPERATOR, REFUSED, ConsoleWorld

from sluice_protocol.conflicts import ConflictName
from sluice_protocol.keys import digest_of

CHROMIUM: Final = shutil.which("chromium")
AXE: Final = (Path(__file__).parent / "axe" / "axe.min.js").read_text()
SUBJECT: Final = f"{AGENT}/b1/0-2"
CONFLICT: Final = ConflictName(
    identity=make_identity(0, count=3, agent=AGENT), submitted=digest_of(REFUSED)
).id
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
    "traces": "trace",
    "metrics": "metrics",
}
"""Every page, by name."""
FLAGS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)


def watch(page: Page) -> list[str]:
    """Return the list to which errors of the page are added."""
    errors: list[str] = []

    def on_message(message: Any) -> None:
        if message.type in ("error", "warning"):
            errors.append(f"{message.type}: {message.text}")

    page.on("console", on_message)
    page.on("pageerror", lambda error: errors.append(f"exception: {error}"))
    return errors


def log_in(context: BrowserContext, world: ConsoleWorld, token: str = OPERATOR) -> Page:
    page = context.new_page()
    page.goto(world.url)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible(timeout=20_000)
    return page


def open_place(page: Page, world: ConsoleWorld, place: str) -> None:
    page.goto(f"{world.url}/#{place}")
    expect(page.locator("main h1")).to_be_visible(timeout=20_000)
    expect(page.locator("main .loading, main [aria-busy]")).to_have_count(0, timeout=20_000)
    expect(page.locator(".summary", has_text="searching")).to_have_count(0, timeout=20_000)


def explored(query: str, **more: str) -> str:
    """Return the place of a query in Explore."""
    return f"explore?{urlencode({'query': query, 'from': '1h', **more})}"


def accessibility(page: Page) -> list[str]:
    """Return the rules of accessibility that a page breaks."""
    page.evaluate(AXE)
    options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"]}
    found = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


CONTROLS: Final = """() => {
  const found = [], wanted = "input:not([type=checkbox]), select, button:not(.plain)";
  for (const bar of document.querySelectorAll("main .filters")) {
    const boxes = [...bar.querySelectorAll(wanted)].map((one) => one.getBoundingClientRect());
    boxes.forEach((box, at) => {
      for (const other of boxes.slice(at + 1)) {
        const level = other.top < box.bottom && box.top < other.bottom;
        const apart = Math.abs(other.top - box.top) + Math.abs(other.bottom - box.bottom);
        if (level && apart > 1) found.push(`${box.x},${box.y} and ${other.x},${other.y}`);
      }
    });
  }
  return found;
}"""


def misaligned(page: Page) -> list[str]:
    """Return the controls of a bar that are side by side, but not on one line."""
    found: list[str] = page.evaluate(CONTROLS)
    return found


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
