"""One batch as a timeline, from its seal to the rollups, over real tables of the lake."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect
from support.builders import make_identity
from support.console_pages import CHROMIUM, accessibility, log_in, open_place, watch
from support.console_world import ConsoleWorld, in_thread, served_console
from support.query_lake import deployment, log_batch, metric_batch
from support.query_rollups import LakeRollups
from support.spark_lake import Deployment, Sent
from support.spark_local import ingest_locally

from sluice_lake.source_ranges import source_range_key
from sluice_protocol.authority import Authority
from sluice_protocol.keys import accepted_by_time_key, accepted_key, blob_key
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store import open_store, read_authority

BROWSED = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is missing: run `make test-console`"
)


@dataclass
class LakeWorld:
    """A console over a store whose lake has rollups, a backlog and a dead letter."""

    console: ConsoleWorld
    rolled_up: Sent
    logs: Sent
    later: Sent
    lost: Sent
    waiting: Sent

    def path(self, key: str) -> Path:
        return self.console.store_folder / key


def subject(batch: Sent) -> str:
    one = batch.manifest
    return f"{one.agent_id}/{one.boot_id}/{one.seq_start}-{one.seq_end}"


def get(world: LakeWorld, batch: Sent) -> Any:
    path = f"/v1/batches/path?subject={quote(subject(batch), safe='')}"
    (one,) = world.console.read(path)
    return one


async def enqueue(url: str) -> None:
    async with open_store(url) as store:
        settings = ReconcilerSettings(tail_interval_s=0.0)
        await Reconciler(store, await read_authority(store), settings=settings).once()


def deliver(place: Deployment, *batches: Sent) -> None:
    """Accept batches, and enqueue them as the reconciler does."""
    place.accept(batches)
    asyncio.run(enqueue(place.url))


def fill(place: Deployment) -> tuple[Sent, Sent, Sent, Sent]:
    rolled_up, logs = metric_batch(range(50)), log_batch(["a"], agent="host-2")
    deliver(place, rolled_up)
    deliver(place, logs)  # alone, so that its entry by time is an object
    ingest_locally(place.url)
    LakeRollups(place=place).run()
    later, lost = metric_batch([1.0], start=100), metric_batch([1.0], start=200)
    deliver(place, later, lost)
    (place.root / blob_key(lost.manifest.digest)).unlink()
    ingest_locally(place.url)
    return rolled_up, logs, later, lost


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeWorld]:
    folder = tmp_path_factory.mktemp("lake")

    def prepare() -> tuple[tuple[Sent, Sent, Sent, Sent], Sent]:
        made = deployment(folder, lanes=Authority(authority_id="A").lanes)
        filled, waiting = fill(made), log_batch(["waits"], agent="host-3")
        made.accept([waiting])
        return filled, waiting

    filled, waiting = in_thread(prepare)
    with served_console(folder, trouble=False) as console:
        yield LakeWorld(console, *filled, waiting)


def test_the_api_returns_every_object_with_size_hash_clock_and_proof(place: LakeWorld) -> None:
    found = get(place, place.rolled_up)
    assert [one["role"] for one in found["objects"]] == [
        "manifest", "blob", "by_time", "by_blob", "raw_by_time",
    ]  # fmt: skip
    for one in found["objects"]:
        assert one["present"], one
        assert one["right"] is True
        assert one["size_bytes"] > 0
        assert len(one["sha256"]) == 64
        assert one["last_modified_unix_ns"] > 1_700_000_000 * 10**9
        assert one["proof"].endswith(".")
    assert found["sealed"]["sealer"] == "sender"
    assert (
        found["sealed"]["accepted_before_unix_ns"] == place.rolled_up.manifest.accepted_at_unix_ns
    )
    assert found["lake"]["row"]["sequence"] == 1
    assert found["lake"]["rollup"]["source"]["key"] == source_range_key(1)
    states = {
        name: (get(place, batch)["lake"]["state"], get(place, batch)["lake"]["rollup"]["state"])
        for name, batch in (
            ("logs", place.logs), ("later", place.later),
            ("lost", place.lost), ("waiting", place.waiting),
        )
    }  # fmt: skip
    assert states == {
        "logs": ("in_lake", "other_kind"),
        "later": ("in_lake", "not_yet"),
        "lost": ("dead_letter", "not_yet"),
        "waiting": ("not_yet", "other_kind"),
    }


def open_batch(page: Page, place: LakeWorld, batch: Sent) -> None:
    open_place(page, place.console, f"batches/{quote(subject(batch), safe='')}")
    expect(page.get_by_role("heading", name=subject(batch))).to_be_visible()


@pytest.mark.console
@BROWSED
def test_the_timeline_leads_from_the_seal_to_the_rollup(browser: Browser, place: LakeWorld) -> None:
    page = log_in(browser.new_context(), place.console)
    errors = watch(page)
    open_batch(page, place, place.rolled_up)
    steps = page.locator(".timeline li")
    assert [one.split(" ·")[0] for one in steps.locator("h3").all_inner_texts()] == [
        "Recorded", "Sealed by the sender", "Blob verified now", "Accepted", "Indexed by time",
        "Indexed by blob", "Indexed among the blobs of its hour",
        f"Consumed from spark lane {get(place, place.rolled_up)['lake']['row']['lane']}",
        "In the lake", "Rolled up",
    ]  # fmt: skip
    seal = steps.nth(1)
    expect(seal).to_contain_text("time not recorded")
    expect(seal).to_contain_text("when it was accepted, by the store's clock")
    expect(steps.nth(3)).to_contain_text("The store allows one create of this key")
    expect(steps.nth(3)).to_contain_text("by the store's clock, sha256")
    expect(steps.nth(8)).to_contain_text("lake/v1/batches/accepted_hour=")
    rollup = steps.nth(9)
    expect(rollup).to_contain_text("9 windows of the table rollups: 2026-09-21 14:13:00Z")
    expect(rollup).to_contain_text("1 window of the table rollups: 2026-09-21 14:00:00Z")
    expect(rollup).to_contain_text(source_range_key(1))
    for batch, texts in (
        (place.logs, ("In the lake", "Logs are not rolled up")),
        (place.later, ("In the lake", "Not rolled up yet", "up to entry 1; the batch is in entry")),
        (place.lost, ("Blob is not usable", "A dead letter: not in the lake", "missing: ")),
        (place.waiting, ("Waiting in spark lane", "Not in the lake yet", "Logs are not rolled up")),
    ):
        open_batch(page, place, batch)
        for text in texts:
            expect(page.locator(".timeline")).to_contain_text(text)
        assert accessibility(page) == []
    assert errors == []
    page.context.close()


@pytest.mark.console
@BROWSED
def test_damaged_objects_and_tables_are_named(browser: Browser, place: LakeWorld) -> None:
    page = log_in(browser.new_context(), place.console)
    manifest = place.logs.manifest
    entry = place.path(
        accepted_by_time_key(accepted_key(manifest.identity), manifest.accepted_at_ns)
    )
    good = entry.read_bytes()
    entry.chmod(0o600)
    entry.write_bytes(good + b" ")
    open_batch(page, place, place.logs)
    step = page.locator(".timeline li", has_text="Indexed by time")
    expect(step).to_contain_text("Its bytes are not those that it should have")
    expect(step).to_have_class("bad")
    entry.unlink()
    page.get_by_role("button", name="Verify again").click()
    expect(page.locator(".timeline")).to_contain_text("Not indexed yet by time")
    entry.write_bytes(good)
    record = place.path(source_range_key(1))
    kept = record.read_bytes()
    record.unlink()
    open_batch(page, place, place.rolled_up)
    expect(page.locator(".timeline")).to_contain_text("The lake cannot be read")
    expect(page.locator(".timeline")).to_contain_text("contains this range, but it is missing")
    expect(page.locator(".timeline")).to_contain_text("Blob verified now")
    record.write_bytes(kept)
    page.get_by_role("button", name="Verify again").click()
    expect(page.locator(".timeline")).to_contain_text("Rolled up")
    unknown = make_identity(900, count=3, agent="host-9")
    open_place(
        page, place.console, f"batches/{quote(f'host-9/{unknown.boot_id}/900-902', safe='')}"
    )
    expect(page.locator(".timeline")).to_contain_text("Not accepted")
    page.context.close()
