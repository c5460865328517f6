"""Owners and consumers of lanes in a real Chromium: known, unknown, missing, disputed."""

import asyncio
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as changed
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Locator, Page, expect
from support.console_pages import CHROMIUM, accessibility, log_in, open_place, watch
from support.console_world import (
    AGENT,
    SERVICE_TOKEN,
    SETTINGS,
    ConsoleWorld,
    frame,
    lines,
    served_console,
)

from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.units import ObjectKey
from sluice_queue.consumer import Consumer
from sluice_queue.lane import list_lanes
from sluice_reconciler.lanes.membership import MEMBERS, MemberRecord, member_key
from sluice_reconciler.lanes.state import OwnerClaim, decode_lane, encode_lane
from sluice_store.local import open_local_store

pytestmark = [
    pytest.mark.console,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`"),
]

FIRST, OTHER = "01ARZ3NDEKTSV4RRFFQ69G5FAU", "01ARZ3NDEKTSV4RRFFQ69G5FAV"
HOSTILE = "<img src=x onerror=window.hacked=1>"


def put(world: ConsoleWorld, key: str, body: bytes) -> None:
    path = world.store_folder / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(body)


def claim_all(world: ConsoleWorld, claim: OwnerClaim | None) -> None:
    """Write the state of each lane as an owner that is still in charge."""
    folder = world.store_folder / "reconciler/v1/lanes"
    for path in folder.iterdir():
        key = f"reconciler/v1/lanes/{path.name}"
        record = decode_lane(ObjectKey(key), path.read_bytes())
        put(world, key, encode_lane(replace(record, released=False, owner=claim)))


async def open_lanes(world: ConsoleWorld) -> None:
    """Open each lane of the queue as another consumer."""
    async with open_local_store(world.store_folder) as store:
        for one in await list_lanes(store, "sink"):
            await Consumer.open(store, queue=one.queue, lane=one.lane)


def lanes_of(page: Page, world: ConsoleWorld) -> Locator:
    """Open the page, or load it again."""
    open_place(page, world, "overview")
    open_place(page, world, "queue")
    return page.get_by_role("region", name="Lanes")


def test_the_owner_of_each_lane_is_named(browser: Browser, tmp_path: Path) -> None:
    with served_console(tmp_path) as world:
        page = log_in(browser.new_context(), world)
        errors = watch(page)
        table = lanes_of(page, world)
        for row in table.locator("tbody tr").all():
            expect(row).to_contain_text(world.reconciler_url)
        (mine,) = (world.store_folder / MEMBERS).iterdir()
        record = decode_record(mine.name, mine.read_bytes(), MemberRecord)
        assert record.process is not None
        expect(table).to_contain_text(f"{record.host} (pid {record.process.pid})")
        expect(table).to_contain_text("it claims the lane with the next batch")
        world.accept(frame(AGENT, 21, lines(21)))
        expect(table).to_contain_text("since 20", timeout=30_000)
        assert accessibility(page) == []
        assert errors == []
        page.context.close()


def test_lanes_without_an_owner_and_with_an_unknown_one_are_shown_as_such(
    browser: Browser, tmp_path: Path
) -> None:
    with served_console(tmp_path, services=False) as world:
        page = log_in(browser.new_context(), world)
        expect(lanes_of(page, world)).to_contain_text("no reconciler works on this lane")
        expect(page.get_by_text("unowned").first).to_be_visible()
        expect(page.locator("main")).to_contain_text("Set reconciler of the console")
        claim_all(world, None)
        expect(lanes_of(page, world)).to_contain_text("does not name who claimed it")
        expect(page.get_by_text("unknown", exact=True).first).to_be_visible()
        gone = OwnerClaim(member=OTHER, host="host-7", pid=9, sharing=True, since_unix_ns=10**18)
        claim_all(world, gone)
        expect(lanes_of(page, world)).to_contain_text("did not release the lane")
        expect(page.get_by_text("lapsed").first).to_be_visible()
        expect(lanes_of(page, world)).to_contain_text("host-7 (pid 9)")
        expect(lanes_of(page, world)).to_contain_text("since 2001-09-09 01:46:40Z")
        put(world, member_key(OTHER), b"{")
        expect(lanes_of(page, world)).to_contain_text("1 member records cannot be read")
        page.context.close()


def test_two_reconcilers_that_report_one_lane_are_both_named(
    browser: Browser, tmp_path: Path
) -> None:
    """No reconciler runs, so the planted records are not answered by a smaller share of lanes."""
    with served_console(tmp_path, services=False) as world:
        page = log_in(browser.new_context(), world)
        errors = watch(page)
        for member, url, host in ((FIRST, "http://one:8081", "host-1"), (OTHER, HOSTILE, "host-2")):
            record = MemberRecord(member=member, url=url, host=host, lanes=tuple(range(64)))
            put(world, member_key(member), encode_record(record))
        table = lanes_of(page, world)
        row = table.locator("tbody tr").first
        for text in ("disputed", "http://one:8081", "host-1", HOSTILE, "host-2"):
            expect(row).to_contain_text(text)
        expect(row).to_contain_text("2 reconcilers report this lane")
        assert page.evaluate("window.hacked") is None
        assert accessibility(page) == []
        assert [one for one in errors if "404" not in one] == [], "only dead letters are missing"
        page.context.close()


def test_consumers_over_http_are_named_with_their_leases(browser: Browser, tmp_path: Path) -> None:
    with served_console(tmp_path, http_queues="sink") as world:
        page = log_in(browser.new_context(), world)
        table = page.get_by_role("region", name="Leases")
        open_place(page, world, "queue")
        expect(page.locator("main")).to_contain_text("No consumer holds a lease.")
        request = urllib.request.Request(
            f"{world.reconciler_url}/v1/queue/next?max=2&consumer=%3Cb%3Eworker-a",
            headers={"Authorization": f"Bearer {SERVICE_TOKEN}"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            assert response.status == 200
        lanes = lanes_of(page, world)
        expect(table).to_contain_text("<b>worker-a")
        expect(table).to_contain_text(world.reconciler_url)
        expect(table).not_to_contain_text("fenced")
        expect(lanes).to_contain_text("over HTTP by")
        with ThreadPoolExecutor(1) as thread:  # the driver of the browser runs a loop in this one
            thread.submit(asyncio.run, open_lanes(world)).result()
        lanes = lanes_of(page, world)
        expect(table).to_contain_text("fenced")
        expect(table).to_contain_text("these entries are delivered again")
        expect(lanes).not_to_contain_text("over HTTP by")
        expect(lanes).to_contain_text("epoch 2")
        assert accessibility(page) == []
        page.context.close()


def test_a_reconciler_that_does_not_respond_hides_no_lane(browser: Browser, tmp_path: Path) -> None:
    settings = changed(SETTINGS, reconciler="http://127.0.0.1:9")
    with served_console(tmp_path, settings, services=False) as world:
        page = log_in(browser.new_context(), world)
        expect(lanes_of(page, world)).to_contain_text("unowned")
        notice = page.locator(".notice", has_text="The leases of http://127.0.0.1:9 are not known")
        expect(notice).to_contain_text("start the reconciler or correct its URL")
        page.context.close()
