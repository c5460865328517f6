"""The candidates of a deletion plan in the console: why each qualifies, and what was proved."""

import asyncio
import json
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from support.console_pages import (
    CHROMIUM,
    accessibility,
    log_in,
    misaligned,
    open_place,
    walk_hostile,
    watch,
)
from support.console_world import VIEWER, ConsoleWorld, in_thread, served_console
from support.gc_world import open_world

from sluice_gc.plan import plan_key
from sluice_gc.settings import PlanSettings
from sluice_protocol.collection_records import Plan
from sluice_protocol.distribution import install_command
from sluice_protocol.keys import blob_key
from sluice_protocol.units import Digest

BROWSED = (
    pytest.mark.console,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`"),
)
ORPHANS = 120
UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
ALL = PlanSettings(max_delete_ratio=1.0)


@dataclass
class PlannedWorld:
    """A console over a store with two plans; a run of the first one deleted its candidates."""

    console: ConsoleWorld
    done: Plan
    planned: Plan
    orphans: list[Digest]
    later: list[Digest]
    named: Digest

    def get(self, path: str, token: str = VIEWER) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"{self.console.url}/v1/gc/plans/{path}", headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as found:
                return found.status, json.loads(found.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def path(self, key: str) -> Path:
        return self.console.store_folder / key


async def make_plans(root: Path) -> tuple[Plan, Plan, list[Digest], list[Digest], Digest]:
    async with open_world(root) as world:
        named = await world.accept(0)
        orphans = sorted([await world.orphan(300 + 3 * at) for at in range(ORPHANS)])
        world.clock.pass_s(9 * 86_400)
        await world.audit()
        done = await world.plan(ALL)
        await world.run(done)
        later = sorted([await world.orphan(start, salt="later") for start in (3000, 3003)])
        world.clock.pass_s(9 * 86_400)
        await world.audit()
        return done, await world.plan(ALL), orphans, later, named


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlannedWorld]:
    folder = tmp_path_factory.mktemp("candidates")
    made = in_thread(lambda: asyncio.run(make_plans(folder / "planned")))
    done, planned, orphans, later, named = made
    with served_console(folder, trouble=False) as console:
        for name in ("gc", "audit"):
            shutil.copytree(folder / "planned" / name, console.store_folder / name)
        yield PlannedWorld(console, done, planned, orphans, later, named)


@pytest.mark.long
def test_the_api_lists_searches_and_explains_candidates(place: PlannedWorld) -> None:
    plan = place.done.plan_id
    status, page = place.get(f"{plan}/candidates?after=50&limit=50")
    assert (status, page["total"], page["more"]) == (200, ORPHANS, True)
    assert [one["sha256"] for one in page["candidates"]] == place.orphans[50:100]
    assert page["candidates"][0]["key"] == blob_key(place.orphans[50])
    assert {one["clause"] for one in page["candidates"][0]["clauses"]} == {
        "versioning", "incarnation", "age", "certificate", "audit",
    }  # fmt: skip
    _, found = place.get(f"{plan}/candidates?prefix={place.orphans[7][:9]}")
    assert [one["sha256"] for one in found["candidates"]] == [place.orphans[7]]
    _, one = place.get(f"{plan}/candidates/{place.orphans[7]}")
    assert [proof["verdict"] for proof in one["proofs"]] == ["may_go"]
    status, kept = place.get(f"{plan}/candidates/{place.named}")
    assert (status, kept["candidates"]) == (200, [])
    assert [version["finding"]["clause"] for version in kept["kept"]] == ["audit"]


def test_bad_requests_are_refused_with_the_reason(place: PlannedWorld) -> None:
    plan = place.done.plan_id
    for path, status, reason in (
        (f"{UNKNOWN}/candidates", 404, "no such plan"),
        (f"{UNKNOWN}/candidates/{place.named}", 404, "no such plan"),
        ("x/candidates", 400, "named by its ULID"),
        (f"{plan}/candidates?prefix=zz", 400, "hex digits"),
        (f"{plan}/candidates?prefix=a", 400, "hex digits"),
        (f"{plan}/candidates?after=-1", 400, "after must be a number"),
        (f"{plan}/candidates?limit=501", 400, "limit must be a number"),
        (f"{plan}/candidates/abc", 400, "64 lower-case hex digits"),
    ):
        found, problem = place.get(path)
        assert (found, reason in problem["detail"]) == (status, True), (path, problem)
    assert place.get(f"{plan}/candidates", token="wrong")[0] == 401


def test_without_pyarrow_the_extra_is_named(
    place: PlannedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sluice_gc.plan_candidates", None)
    for path in (f"{place.done.plan_id}/candidates", f"{place.done.plan_id}/candidates/{'0' * 64}"):
        status, problem = place.get(path)
        assert (status, install_command("query") in problem["detail"]) == (404, True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@BROWSED[0]
@BROWSED[1]
def test_pages_of_candidates_are_accessible_and_fit(
    browser: Browser, place: PlannedWorld, scheme: Any, width: int
) -> None:
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce"
    )
    page = log_in(context, place.console)
    errors = watch(page)
    plan = f"audit/{place.done.plan_id}"
    for where, title in (
        (plan, "Candidates"),
        (f"{plan}?prefix={place.orphans[0][:2]}", "Candidates"),
        (f"{plan}/{place.orphans[0]}", "A blob in a plan"),
        (f"{plan}/{place.named}", "A blob in a plan"),
    ):
        open_place(page, place.console, where)
        expect(page.get_by_role("heading", name=title)).to_be_visible()
        assert accessibility(page) == [], where
        assert misaligned(page) == [], where
        assert page.evaluate("document.documentElement.scrollWidth") <= width, where
    assert errors == []
    context.close()


@BROWSED[0]
@BROWSED[1]
def test_an_operator_finds_why_each_candidate_qualifies(
    browser: Browser, place: PlannedWorld
) -> None:
    page = log_in(browser.new_context(viewport={"width": 1280, "height": 900}), place.console)
    open_place(page, place.console, "audit")
    card = page.locator(".card", has_text=place.done.plan_id)
    card.get_by_role("link", name="Candidates, and why each qualifies").click()
    expect(page.locator(".summary")).to_contain_text(f"{ORPHANS} candidates")
    table = page.get_by_role("region", name="Candidates")
    first = table.get_by_role("row", name=place.orphans[0])
    expect(first).to_contain_text("9 days")
    expect(first).to_contain_text("no record names it")
    expect(first).to_contain_text("the retry horizon is 0.1 hours")
    expect(first).to_contain_text(f"no record named it in audit {place.done.audit_id}")
    rows = page.locator(".long tbody tr").count()
    assert rows < 60, "only the rows in view exist"
    table.evaluate("box => box.scrollTo(0, box.scrollHeight)")
    expect(table.get_by_role("row", name=place.orphans[-1])).to_be_visible()
    field = page.get_by_label("SHA-256, or its first digits")
    field.fill(place.orphans[5][:10].upper())
    field.press("Enter")
    expect(page.locator(".summary")).to_contain_text(f"1 of {ORPHANS} candidates")
    page.get_by_role("link", name=place.orphans[5]).click()
    expect(page.get_by_role("heading", name="Proved: it may be deleted")).to_be_visible()
    proof = page.get_by_role("region", name="Clauses of the proof")
    expect(proof.get_by_role("row", name="references")).to_contain_text("0 reverse references")
    expect(proof.get_by_role("row", name="envelope")).to_contain_text("absent")
    field.fill(place.named)
    field.press("Enter")
    expect(page.get_by_text("Not a candidate", exact=True)).to_be_visible()
    expect(page.locator("main")).to_contain_text("a record named it in audit")
    expect(page.locator(".command")).to_contain_text(
        f"sluice gc candidates {place.done.plan_id} --sha256 {place.named}"
    )
    open_place(page, place.console, f"audit/{place.planned.plan_id}/{place.later[0]}")
    expect(page.locator("main")).to_contain_text("No run of this plan has proved it yet")
    expect(page.get_by_role("row", name="references")).to_contain_text("read by the run")
    page.context.close()


@BROWSED[0]
@BROWSED[1]
def test_hostile_strings_in_candidates_do_not_run(browser: Browser, place: PlannedWorld) -> None:
    page = log_in(browser.new_context(), place.console)
    plan = f"audit/{place.done.plan_id}"
    blobs = (f"{plan}/{place.orphans[0]}", f"{plan}/{place.named}", f"{plan}?prefix=00")
    assert walk_hostile(page, place.console, (plan, *blobs)) > 2_000
    page.context.close()


@BROWSED[0]
@BROWSED[1]
def test_damaged_and_missing_files_are_named_on_the_page(
    browser: Browser, place: PlannedWorld
) -> None:
    page = log_in(browser.new_context(), place.console)
    plan = f"audit/{place.planned.plan_id}"
    problem = page.get_by_role("alert")
    file = place.path(place.planned.candidates[0].key)
    good = file.read_bytes()
    file.chmod(0o600)
    file.write_bytes(good[:-30])
    open_place(page, place.console, plan)
    expect(problem).to_contain_text("the file is damaged or of another version: make a new plan")
    file.unlink()
    problem.get_by_role("button", name="Try again").click()
    expect(problem).to_contain_text("removed by rule or are lost: make a new plan")
    file.write_bytes(good)
    record = place.path(plan_key(place.planned.plan_id))
    signed = record.read_bytes()
    record.chmod(0o600)
    record.write_bytes(signed.replace(b"sluice.gc_plan.v1", b"sluice.gc_plan.v2"))
    problem.get_by_role("button", name="Try again").click()
    expect(problem).to_contain_text("a newer version of sluice made it: update this one")
    record.unlink()
    problem.get_by_role("button", name="Try again").click()
    expect(problem).to_contain_text("no such plan: it was removed or never made")
    record.write_bytes(signed)
    problem.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("region", name="Candidates")).to_be_visible()
    open_place(page, place.console, f"{plan}?prefix=xyz")
    expect(problem).to_contain_text("2 to 64 lower-case hex digits")
    page.context.close()
