"""The browser, and a deployment with planted trouble, once for each file of tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright
from support.console_pages import CHROMIUM, FLAGS
from support.console_world import ConsoleWorld, in_thread, served_console
from support.policies_live import ADMIN_PROFILE, write_profiles
from support.policies_moto import moto_with_bucket


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


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a server with a bucket for policies."""
    write_profiles(tmp_path, monkeypatch)
    moto = moto_with_bucket()
    address = in_thread(moto.__enter__)
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_PROFILE", ADMIN_PROFILE)
    yield address
    in_thread(lambda: moto.__exit__(None, None, None))
