"""Dead letters in a real Chromium."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from support.console_pages import CHROMIUM, log_in, open_place, watch
from support.console_world import served_console
from support.query_lake import log_batch
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

pytestmark = [
    pytest.mark.console,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`"),
]


def test_a_dead_letter_is_listed_with_its_reason_and_its_command(
    browser: Browser, tmp_path: Path
) -> None:
    with served_console(tmp_path, trouble=False) as world:
        lost = log_batch(["x"], agent="host-9")
        place = Deployment(root=world.store_folder)

        def lose() -> None:
            place.accept([lost], blobs=False)
            place.enqueue([lost])
            ingest_locally(place.url)

        with ThreadPoolExecutor(1) as thread:
            thread.submit(lose).result()
        page = log_in(browser.new_context(), world)
        errors = watch(page)
        open_place(page, world, "queue")
        table = page.get_by_role("region", name="Dead letters")
        expect(table).to_contain_text("missing")
        expect(table).to_contain_text("Restore it under its key")
        name = f"host-9/{lost.manifest.boot_id}/0-0"
        expect(table.get_by_role("button", name=f"sluice explain {name}")).to_be_visible()
        expect(page.locator("main")).to_contain_text("sluice query dead-letters --store")
        table.get_by_role("link", name=name).click()
        expect(page.locator("main")).to_contain_text(lost.manifest.frame_sha256[:12])
        assert errors == []
        page.context.close()
