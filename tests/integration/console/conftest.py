"""The browser, and a deployment with planted trouble, once for each file of tests."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright
from support.console_pages import CHROMIUM, FLAGS
from support.console_world import ConsoleWorld, served_console


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleWorld]:
    with served_console(tmp_path_factory.mktemp("console")) as found:
        yield found
