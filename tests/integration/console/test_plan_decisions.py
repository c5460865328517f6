"""Operators approve and stop deletion plans in the console, and viewers cannot."""

import asyncio
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from playwright.sync_api import Browser, expect
from structlog.testing import capture_logs
from support.console_pages import CHROMIUM, accessibility, log_in, open_place, watch
from support.console_world import OPERATOR, VIEWER, ConsoleWorld, served_console

from sluice_cli.deployment.facts import read_facts
from sluice_gc.plan import OPERATOR_RULE, sign_plan, stopped_key
from sluice_protocol.blob_deletion import PlanApproval, approval_key
from sluice_protocol.collection_records import (
    BatchDone,
    Plan,
    PlanStopped,
    PlanSummary,
    SweepFacts,
    VersionTally,
)
from sluice_protocol.keys import digest_of, trash_key
from sluice_protocol.manifests import decode_record, encode_record

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PLANS = [f"01ARZ3NDEKTSV4RRFFQ69G5FA{last}" for last in "VWXYZ"]
TALLY = VersionTally(incarnations=3, bytes=4096)


def put_plan(world: ConsoleWorld, plan_id: str) -> str:
    """Write a signed plan as a planner does; return the sha256 of its bytes."""
    plan = Plan(
        plan_id=plan_id,
        authority_id="A",
        retry_horizon_s=300,
        audit_id="01ARZ3NDEKTSV4RRFFQ69G5FAA",
        certificate_sha256=digest_of(b"certificate"),
        made_at_unix_ns=1_790_000_000_000_000_000,
        summary=PlanSummary(
            blobs=TALLY, orphans=TALLY, superseded=VersionTally(), kept={}, by_size=(), by_age=()
        ),
        candidates=(),
    )
    body = sign_plan(plan, KEY)
    folder = world.store_folder / "gc" / "v1" / "plans" / plan_id
    folder.mkdir(parents=True)
    (folder / "plan.json").write_bytes(body)
    return digest_of(body)


def approval_of(world: ConsoleWorld, plan_id: str) -> PlanApproval | None:
    path = world.store_folder / approval_key(plan_id)
    if not path.exists():
        return None
    return decode_record(approval_key(plan_id), path.read_bytes(), PlanApproval)


def post(world: ConsoleWorld, path: str, body: Any, token: str = OPERATOR, **more: str) -> int:
    fields = {"Content-Type": "application/json"} | more
    if token:
        fields["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(
        world.url + path, data=json.dumps(body).encode(), headers=fields, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as found:
            return int(found.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleWorld]:
    with served_console(tmp_path_factory.mktemp("plans"), trouble=False) as found:
        yield found


def test_a_stopped_newest_plan_is_named_until_there_is_another(tmp_path: Path) -> None:
    """Cycles refuse meanwhile, so nothing is deleted."""
    title = "The newest deletion plan is stopped"
    world = ConsoleWorld(folder=tmp_path)
    url = f"file://{world.store_folder}"
    put_plan(world, PLANS[0])
    stopped = world.store_folder / stopped_key(PLANS[0])
    stopped.write_bytes(
        encode_record(PlanStopped(plan_id=PLANS[0], rule=OPERATOR_RULE, reason="otto: wait"))
    )
    with served_console(tmp_path, trouble=False) as console:
        items = console.read("/v1/overview")["attention"]
    (item,) = [one for one in items if one["title"] == title]
    assert "otto: wait" in item["detail"]
    assert title in {one.title for one in asyncio.run(read_facts(url)).attention}
    put_plan(world, PLANS[1])
    assert title not in {one.title for one in asyncio.run(read_facts(url)).attention}


def test_only_an_operator_who_names_the_plan_approves_it(place: ConsoleWorld) -> None:
    plan = PLANS[0]
    sha256 = put_plan(place, plan)
    path = f"/v1/gc/plans/{plan}/approve"
    wanted = {"typed_plan_id": plan, "plan_sha256": sha256, "note": "checked"}
    assert post(place, path, wanted, VIEWER) == 403
    assert post(place, path, wanted, "") == 401
    assert post(place, path, wanted | {"typed_plan_id": PLANS[1]}) == 400
    assert post(place, path, wanted | {"plan_sha256": digest_of(b"another plan")}) == 400
    assert post(place, path, wanted | {"plan_sha256": "short"}) == 400
    assert post(place, path, wanted | {"note": "x" * 1001}) == 400
    assert post(place, path, wanted | {"force": True}) == 400
    assert post(place, path, wanted, **{"Content-Type": "text/plain"}) == 415
    unknown = "01ARZ3NDEKTSV4RRFFQ69G5FA0"
    given = wanted | {"typed_plan_id": unknown}
    assert post(place, f"/v1/gc/plans/{unknown}/approve", given) == 404
    assert approval_of(place, plan) is None
    with capture_logs() as logged:
        assert post(place, path, wanted) == 200
    (line,) = [one for one in logged if one["event"] == "console_write"]
    assert (line["what"], line["plan"], line["by"], line["outcome"]) == (
        "approve_plan", plan, "otto", "done",
    )  # fmt: skip
    found = approval_of(place, plan)
    assert found is not None
    assert (found.by, found.note, found.plan_sha256) == ("operator:otto", "checked", sha256)
    assert post(place, path, wanted | {"note": "again"}) == 200
    assert approval_of(place, plan) == found, "the first approval is kept"


def test_a_stopped_plan_is_not_approved(place: ConsoleWorld) -> None:
    plan = PLANS[1]
    wanted = {"typed_plan_id": plan, "plan_sha256": put_plan(place, plan)}
    assert post(place, f"/v1/gc/plans/{plan}/stop", {"reason": "wait"}, VIEWER) == 403
    with capture_logs() as logged:
        assert post(place, f"/v1/gc/plans/{plan}/stop", {"reason": "wait"}) == 200
    (line,) = [one for one in logged if one["event"] == "console_write"]
    assert (line["what"], line["plan"], line["by"], line["outcome"]) == (
        "stop_plan", plan, "otto", "done",
    )  # fmt: skip
    assert post(place, f"/v1/gc/plans/{plan}/approve", wanted) == 400
    assert approval_of(place, plan) is None


@pytest.mark.console
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`")
def test_an_operator_types_the_id_to_approve_a_plan(browser: Browser, place: ConsoleWorld) -> None:
    plan = PLANS[2]
    sha256 = put_plan(place, plan)
    page = log_in(browser.new_context(), place)
    errors = watch(page)
    open_place(page, place, "audit")
    card = page.locator(".card", has_text=plan)
    expect(card).to_contain_text("3 versions, 4.0 KiB that no record names")
    expect(card).to_contain_text(f"sluice gc approve {plan} --sha256 {sha256}")
    opener = card.get_by_role("button", name="Approve the plan")
    opener.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label(re.compile("Type .* to confirm"))).to_be_focused()
    page.keyboard.press("Escape")
    expect(opener).to_be_focused()
    opener.press("Enter")
    button = dialog.get_by_role("button", name="Approve the plan")
    expect(button).to_be_disabled()
    dialog.get_by_label(re.compile("Type .* to confirm")).fill(PLANS[0])
    expect(button).to_be_disabled()
    dialog.get_by_label(re.compile("Type .* to confirm")).fill(plan)
    dialog.get_by_label("Note").fill("ticket 17")
    button.click()
    expect(card).to_contain_text("by operator:otto")
    expect(card).to_contain_text("ticket 17")
    expect(card.get_by_role("button", name="Approve the plan")).to_have_count(0)
    found = approval_of(place, plan)
    assert found is not None
    assert found.plan_sha256 == sha256
    assert errors == []
    page.context.close()


@pytest.mark.console
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`")
def test_a_stopped_plan_shows_why_and_what_it_deleted_before(
    browser: Browser, place: ConsoleWorld
) -> None:
    plan = PLANS[4]
    put_plan(place, plan)
    facts = SweepFacts(deleted=7, deleted_bytes=2048, kept={"too_young": 2}, batches=1)
    done = place.store_folder / "gc" / "v1" / "plans" / plan / "done" / "00-000000.json"
    done.parent.mkdir()
    done.write_bytes(encode_record(BatchDone(plan_id=plan, facts=facts)))
    copy = place.store_folder / trash_key(digest_of(b"copy"))
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"copy")
    page = log_in(browser.new_context(), place)
    errors = watch(page)
    open_place(page, place, "audit")
    card = page.locator(".card", has_text=plan)
    card.get_by_role("button", name="Stop the plan").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Note").fill("wait for the backup")
    dialog.get_by_role("button", name="Stop the plan").click()
    expect(card).to_contain_text("operator:otto: wait for the backup")
    card.get_by_text("What was deleted").click()
    expect(card).to_contain_text("7 versions, 2.0 KiB, in 1 finished batch")
    expect(card).to_contain_text("too young: 2 versions")
    copies = page.get_by_role("region", name="Restorable blobs")
    expect(copies).to_contain_text(digest_of(b"copy"))
    undo = copies.get_by_role("button", name=f"sluice gc undo {digest_of(b'copy')}")
    expect(undo).to_be_visible()
    assert accessibility(page) == []
    assert errors == []
    page.context.close()


@pytest.mark.console
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`")
def test_a_browser_needs_its_csrf_token_and_a_viewer_sees_no_way(
    browser: Browser, place: ConsoleWorld
) -> None:
    plan = PLANS[3]
    wanted = {"typed_plan_id": plan, "plan_sha256": put_plan(place, plan), "note": ""}
    page = log_in(browser.new_context(), place)
    status = page.evaluate(
        """([path, body]) => fetch(path, { method: "POST", body: JSON.stringify(body),
             headers: { "Content-Type": "application/json", "X-CSRF-Token": "guessed" } })
             .then((response) => response.status)""",
        [f"/v1/gc/plans/{plan}/approve", wanted],
    )
    assert status == 403
    assert approval_of(place, plan) is None
    page.context.close()
    page = log_in(browser.new_context(), place, VIEWER)
    open_place(page, place, "audit")
    card = page.locator(".card", has_text=plan)
    expect(card.get_by_role("button", name="Approve the plan")).to_be_disabled()
    expect(card.get_by_role("button", name="Stop the plan")).to_be_disabled()
    page.context.close()
