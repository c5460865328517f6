"""Steps in a browser that several tests of the console share."""

import shutil
from typing import Any, Final

from playwright.sync_api import BrowserContext, Page, expect
from support.console_world import OPERATOR, ConsoleWorld

CHROMIUM: Final = shutil.which("chromium")
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
