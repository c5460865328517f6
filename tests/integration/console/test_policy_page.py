"""The page of the policies: each denial with its proof, and what a weaker policy allows."""

import json
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from support.console_pages import CHROMIUM, accessibility, log_in, misaligned, open_place, watch
from support.console_world import (
    PROOF_MS,
    SETTINGS,
    VIEWER,
    ConsoleWorld,
    applied,
    in_thread,
    served_console,
)
from support.policies_live import settings_file
from support.policies_moto import drop_statement

from sluice_cli.main import run
from sluice_console.settings import PolicySettings

pytestmark = [
    pytest.mark.console,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`"),
]


def denials(page: Page, world: ConsoleWorld) -> Locator:
    open_place(page, world, "store")
    table = page.get_by_role("region", name="Requests that must be denied")
    expect(table).to_be_visible(timeout=PROOF_MS)
    return table.get_by_role("row")


def test_each_denial_has_its_statement_and_proof(
    browser: Browser, tmp_path: Path, endpoint: str
) -> None:
    used = replace(SETTINGS, policies=applied(tmp_path))
    with served_console(tmp_path / "world", used, trouble=False) as world:
        page = log_in(browser.new_context(), world)
        errors = watch(page)
        rows = denials(page, world)
        created = rows.filter(has_text="accepted-created-once")
        expect(created).to_have_count(1)
        for text in ("denied", "every caller", "s3:PutObject", "CreateOnly", "overrides every"):
            expect(created).to_contain_text(text)
        expect(created).to_contain_text("unless s3:if-none-match is *")
        expect(page.locator("main [role=alert]")).to_have_count(0)
        assert misaligned(page) == []
        page.get_by_role("combobox", name="Role").select_option("gateway")
        expect(rows.filter(has_text="spark-nothing-else")).to_have_count(0)
        expect(rows.filter(has_text="gateway-nothing-else").first).to_be_visible()
        page.get_by_role("combobox", name="Action").fill("s3:DeleteObjectVersion")
        expect(created).to_have_count(0)
        expect(rows.filter(has_text="accepted-never-deleted")).to_have_count(1)
        assert "role=gateway&action=s3%3ADeleteObjectVersion" in page.url
        page.reload()
        expect(rows.filter(has_text="accepted-never-deleted")).to_have_count(1, timeout=PROOF_MS)
        expect(created).to_have_count(0)
        page.get_by_role("combobox", name="Action").fill("s3:NoSuchAction")
        expect(page.get_by_text("No denial matches")).to_be_visible()
        assert errors == []
        page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_weakened_policy_is_named_with_what_it_allows(
    browser: Browser, tmp_path: Path, endpoint: str, scheme: Any
) -> None:
    used = replace(SETTINGS, policies=applied(tmp_path))
    in_thread(lambda: drop_statement(endpoint, "CreateOnly"))
    with served_console(tmp_path / "world", used, trouble=False) as world:
        size = {"width": 400, "height": 900}
        page = log_in(browser.new_context(color_scheme=scheme, viewport=size), world)
        item = page.locator(".attention li").filter(has_text="1 denial of the policies is lost")
        expect(item).to_contain_text("missing or changed: CreateOnly", timeout=PROOF_MS)
        item.get_by_role("link").first.click()
        lost = page.get_by_role("alert").filter(has_text="lost")
        expect(lost).to_contain_text("Allowed, for example")
        expect(lost).to_contain_text("Missing or changed: CreateOnly")
        expect(lost).to_contain_text("silently replaces the earlier one")
        expect(lost).to_contain_text("sluice policies diff")
        first = denials(page, world).nth(1)
        expect(first).to_contain_text("allowed")
        expect(first).to_contain_text("accepted-created-once")
        assert accessibility(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        page.context.close()


def test_policies_that_cannot_be_read_are_named_with_the_reason(
    browser: Browser, tmp_path: Path, endpoint: str
) -> None:
    used = replace(SETTINGS, policies=applied(tmp_path))
    file = Path(used.policies.file)
    mark = "[roles.auditor]\n"
    file.write_text(file.read_text().replace(mark, f'{mark}profile = "unknown-profile"\n'))
    with served_console(tmp_path / "world", used, trouble=False) as world:
        page = log_in(browser.new_context(), world)
        open_place(page, world, "store")
        problem = page.get_by_role("alert").filter(has_text="The policies cannot be proved")
        expect(problem).to_contain_text("unknown-profile", timeout=PROOF_MS)
        page.context.close()


def test_without_policies_the_page_says_how_to_set_them(browser: Browser, tmp_path: Path) -> None:
    with served_console(tmp_path, trouble=False) as world:
        page = log_in(browser.new_context(), world)
        open_place(page, world, "store")
        expect(page.get_by_text("The console does not know the policies")).to_be_visible()
        expect(page.locator("main")).to_contain_text("[console.policies]")
        page.context.close()


def test_the_json_is_that_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = settings_file(tmp_path, "aws", tls=True, profiles=False)
    words = ["--settings", str(file), "--role", "gateway", "--action", "PutObject", "--json"]
    assert in_thread(lambda: run(["policies", "denials", *words])) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["denied"] == len(printed["denials"]) > 0
    used = replace(SETTINGS, policies=PolicySettings(file=str(file)))
    with served_console(tmp_path / "world", used, trouble=False) as world:
        path = f"{world.url}/v1/policies?role=gateway&action=PutObject"
        request = urllib.request.Request(path, headers={"Authorization": f"Bearer {VIEWER}"})
        end_s = time.monotonic() + PROOF_MS / 1000
        while True:
            view = json.loads(urllib.request.urlopen(request, timeout=60).read())
            if view["report"] is not None:
                break
            assert view["problem"] == ""
            assert time.monotonic() < end_s
            time.sleep(0.5)
    assert view["report"] == printed
    assert (view["live"], view["total"] > len(printed["denials"])) == (False, True)
