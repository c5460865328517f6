"""The tasks of the cookbook in a real Chromium, each as its page states it."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from support.console_pages import CHROMIUM, log_in, open_place, watch
from support.console_world import ConsoleWorld, frame, served_console
from support.query_lake import log_batch
from support.spark_lake import Deployment

from sluice_protocol.units import NS_PER_S

COOKBOOK = Path(__file__).parents[3] / "docs" / "cookbook.md"
LINES = 40
SERVICES = {
    "shop": ("info", "GET /cart 200 {} ms"),
    "pay": ("error", "payment {} failed: connection reset by peer"),
    "postgres": ("info", "checkpoint complete: wrote {} buffers"),
}

pytestmark = [
    pytest.mark.console,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`"),
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleWorld]:
    with served_console(tmp_path_factory.mktemp("shop"), trouble=False) as found:
        now_ns = time.time_ns()
        batches = [
            log_batch(
                [text.format(n) for n in range(LINES)],
                agent=f"host-{service}",
                from_ns=now_ns - 1800 * NS_PER_S,
                step_ns=40 * NS_PER_S,
                at_ns=now_ns,
                attributes={
                    "service.name": service,
                    "level": level,
                    "status": "500" if level == "error" else "200",
                    "http.path": f"/{service}",
                },
            )
            for service, (level, text) in SERVICES.items()
        ]
        with ThreadPoolExecutor(1) as thread:
            thread.submit(Deployment(root=found.store_folder).deliver, batches).result()
        yield found


@pytest.fixture
def page(browser: Browser, shop: ConsoleWorld) -> Iterator[Page]:
    opened = log_in(browser.new_context(), shop)
    errors = watch(opened)
    open_place(opened, shop, "explore?from=1h")
    yield opened
    assert errors == []
    opened.context.close()


def search(page: Page, query: str) -> None:
    page.get_by_role("combobox", name="Query").fill(query)
    page.keyboard.press("Enter")


def expect_count(page: Page, number: int) -> None:
    expect(page.locator(".summary strong")).to_have_text(str(number), timeout=20_000)


def test_the_latest_lines_a_text_and_what_is_left_out(page: Page) -> None:
    expect(page.locator(".line").first).to_contain_text(f" {LINES - 1} ")
    expect_count(page, 3 * LINES)
    search(page, "reset")
    page.get_by_role("button", name="Search for this text").click(timeout=20_000)
    expect_count(page, LINES)
    expect(page.locator(".lines mark").first).to_have_text("reset")
    search(page, '{} |~ "(?i)CONNECTION reset"')
    expect_count(page, LINES)
    search(page, '{service="shop"} != "GET"')
    expect(page.get_by_text("No record matches")).to_be_visible(timeout=20_000)


def test_the_errors_of_a_service_by_facets_with_what_was_around_one(page: Page) -> None:
    facets = page.get_by_role("complementary", name="Facets")
    facets.get_by_role("button", name="pay", exact=True).click(timeout=20_000)
    facets.get_by_role("button", name="error", exact=True).click(timeout=20_000)
    expect_count(page, LINES)
    query = page.get_by_role("combobox", name="Query")
    expect(query).to_have_value('{service="pay", level="error"}')
    page.locator(".line", has_text="payment 20 ").click()
    page.get_by_role("button", name="Lines around it").click()
    around = page.locator(".around div")
    expect(around).to_have_count(21, timeout=20_000)
    expect(page.locator(".around .here")).to_contain_text("payment 20 ")
    page.get_by_role("button", name="More before").click()
    expect(around).to_have_count(31, timeout=20_000)


def test_attributes_are_compared_and_fields_are_read_out_of_the_line(page: Page) -> None:
    search(page, "{} | status >= 500")
    expect_count(page, LINES)
    facets = page.get_by_role("complementary", name="Facets")
    facets.get_by_role("button", name="Column http_path").click(timeout=20_000)
    expect(page.locator(".line .column").first).to_have_text("/pay", timeout=20_000)
    search(page, '{service="shop"} | pattern "<_> <path> <code> <ms> ms" | ms > 37')
    expect_count(page, 2)
    page.locator(".line").first.click()
    expect(page.locator(".detail .facts")).to_contain_text("of the query")


def test_paths_are_ranked_and_errors_counted_over_time(page: Page) -> None:
    search(page, "topk(2, sum by (http_path) (count_over_time({} [1h])))")
    rows = page.get_by_role("region", name="Series").locator("tbody tr")
    expect(rows.filter(has_text=re.compile("http_path=/"))).not_to_have_count(0, timeout=20_000)
    search(page, 'sum(rate({level="error"} [1h])) / sum(rate({} [1h]))')
    expect(rows).to_have_count(1, timeout=20_000)
    expect(page.locator(".chart canvas")).to_be_visible()
    search(page, '{level="error"}')
    expect(page.locator(".histogram figcaption")).to_contain_text(
        f"{LINES} records", timeout=20_000
    )


def test_fields_and_their_values_are_counted(page: Page) -> None:
    facets = page.get_by_role("complementary", name="Facets")
    facets.get_by_role("button", name="http_path", exact=True).click(timeout=20_000)
    path = facets.get_by_role("listitem").filter(has_text="http_path").last
    for service in SERVICES:
        row = path.get_by_role("listitem").filter(has_text=f"/{service}")
        expect(row).to_contain_text(str(LINES), timeout=20_000)


def test_a_file_for_a_program_and_new_records_as_they_arrive(
    page: Page, shop: ConsoleWorld
) -> None:
    search(page, '{level="error"}')
    expect_count(page, LINES)
    with page.expect_download() as downloading:
        page.get_by_role("link", name="NDJSON").click()
    *records, summary = downloading.value.path().read_text().splitlines()
    assert len(records) == LINES
    assert '"summary"' in summary
    search(page, '{} |= "arrives"')
    expect(page.get_by_text("No record matches")).to_be_visible(timeout=20_000)
    page.get_by_role("button", name="Live tail").click()
    shop.accept(frame("late-1", 0, ["it arrives later"], at_ns=time.time_ns()))
    expect(page.locator(".line")).to_have_count(1, timeout=30_000)


def test_each_task_states_its_path_in_the_console() -> None:
    tasks = COOKBOOK.read_text().split("\n## ")[1:]
    assert [one.splitlines()[0] for one in tasks if "\nConsole: " not in one] == []
