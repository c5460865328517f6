"""The cost model compared with the requests that real components make in virtual time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.cost_world import CostWorld, audit, count, run_plan

from sluice_cli.costs import lake_requests, service_requests
from sluice_cli.costs.lake_requests import ingest_lines, maintenance_lines
from sluice_cli.costs.plan import CostPlan, FullPlan
from sluice_cli.costs.service_requests import (
    CostLine,
    accept_lines,
    index_lines,
    queue_lines,
    reconciler_lines,
)
from sluice_gc.packed_references import SAMPLE_MAX
from sluice_protocol import keys
from sluice_protocol.prices import DAY_S, RequestCounts

SECONDS = 180.0
TOLERANCE = 0.1
SLACK = 3.0
"""Requests at the two ends of the measured time."""
PAGE_KEYS = 20

PLANS = {
    "seconds": CostPlan(
        rate_bytes_per_s=1e6,
        senders=20,
        freshness_s=5.0,
        gateway_workers=1,
        journal_interval_s=1.0,
        reconciler_freshness_s=0.0,
        trigger_s=10.0,
    ),
    "minute": CostPlan(
        rate_bytes_per_s=1e6,
        senders=150,
        freshness_s=30.0,
        gateway_workers=2,
        journal_interval_s=5.0,
        reconciler_freshness_s=10.0,
        pack_references=True,
        trigger_s=30.0,
    ),
    "shared": CostPlan(
        rate_bytes_per_s=1e6,
        senders=40,
        freshness_s=10.0,
        gateway_workers=3,
        journal_interval_s=2.0,
        reconcilers=2,
        reconciler_freshness_s=4.0,
        lanes=8,
        queues=2,
        pack_by_time=False,
        trigger_s=20.0,
    ),
}

RECORDS = ("manifests/", "queue/", "reconciler/v1/lanes/", "reconciler/v1/lane-parts/")
PASSES = "reconciler/v1/full-pass"


@dataclass
class Compared:
    """One activity: what the model predicts in a second, and what was counted."""

    line: CostLine
    puts: float = 0
    lists: float = 0
    gets: float = 0

    def check(self, seconds: float = SECONDS) -> None:
        predicted = self.line.per_s.times(seconds)
        counted = RequestCounts(puts=self.puts, lists=self.lists, gets=self.gets)
        for name in ("puts", "lists", "gets"):
            expected, seen = getattr(predicted, name), getattr(counted, name)
            assert seen == pytest.approx(expected, rel=TOLERANCE, abs=SLACK), (
                f"{self.line.activity}, {name}"
            )


def compare(world: CostWorld) -> Iterator[Compared]:
    """Yield every activity that runs without the lake."""
    full = world.full
    gateways = world.counted["gateways"].seen
    own = world.counted["reconcilers"].seen
    blobs, journals, checks = accept_lines(full)
    yield Compared(blobs, puts=count(gateways, ["PUT"], keys.RAW_BLOBS, keys.ACCEPTED))
    yield Compared(journals, puts=count(gateways, ["PUT"], keys.GATEWAY_JOURNALS))
    yield Compared(
        checks, lists=count(gateways, ["LIST"], ""), gets=count(gateways, ["GET", "HEAD"], "")
    )
    verify, by_time, references = index_lines(full)
    yield Compared(verify, gets=count(own, ["GET", "HEAD"], keys.ACCEPTED, keys.RAW_BLOBS))
    times = (keys.ACCEPTED_BY_TIME, keys.RAW_BLOBS_BY_TIME)
    yield Compared(by_time, puts=count(own, ["PUT"], *times))
    yield Compared(references, puts=count(own, ["PUT"], keys.ACCEPTED_BY_BLOB))
    appended, upkeep, _ = queue_lines(full)
    reads = count(own, ["GET"], *RECORDS)
    conflicts = SECONDS * appended.per_s.gets
    yield Compared(appended, puts=count(own, ["PUT"], *RECORDS), gets=conflicts)
    # HEAD is of work lists that are removed, mostly after the retry horizon.
    lists = count(own, ["LIST"], *RECORDS)
    yield Compared(upkeep, lists=lists, gets=reads - conflicts)
    read, listed, shared, held, *_ = reconciler_lines(full)
    yield Compared(read, gets=count(own, ["GET"], keys.GATEWAY_JOURNALS))
    yield Compared(
        listed,
        puts=count(own, ["PUT"], "reconciler/v1/discovery"),
        lists=count(own, ["LIST"], keys.GATEWAY_PROCESSES),
        gets=count(own, ["GET"], "reconciler/v1/discovery"),
    )
    members = "reconciler/v1/members/"
    yield Compared(
        shared,
        puts=count(own, ["PUT"], members),
        lists=count(own, ["LIST"], members),
        gets=count(own, ["GET"], members),
    )
    quarantined = (keys.QUARANTINE, keys.QUARANTINE_BY_BLOB, "reconciler/v1/unhealthy/")
    yield Compared(held, lists=count(own, ["LIST"], *quarantined))
    blobs_read, queue, _ = ingest_lines(full)
    consumer = world.counted["ingest"].seen
    yield Compared(blobs_read, gets=count(consumer, ["GET"], keys.RAW_BLOBS))
    rest = (*RECORDS, keys.AUTHORITY)
    yield Compared(
        queue,
        puts=count(consumer, ["PUT"], *rest),
        lists=count(consumer, ["LIST"], *rest),
        gets=count(consumer, ["GET"], *rest),
    )


def check_all(world: CostWorld) -> None:
    for one in compare(world):
        one.check()


@pytest.mark.parametrize(
    "name",
    [name if name == "minute" else pytest.param(name, marks=pytest.mark.long) for name in PLANS],
)
def test_the_model_predicts_the_requests_of_each_activity(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = run_once(name, tmp_path, monkeypatch)
    check_all(world)
    uncounted = [
        (method, key)
        for method, key in world.counted["reconcilers"].seen
        if key and not key.startswith(KNOWN)  # without a key: whether the bucket exists
    ]
    assert uncounted == []


KNOWN = (
    *(keys.ACCEPTED, keys.RAW_BLOBS, keys.ACCEPTED_BY_TIME, keys.RAW_BLOBS_BY_TIME),
    *(keys.ACCEPTED_BY_BLOB, keys.GATEWAY_JOURNALS, keys.GATEWAY_PROCESSES, keys.QUARANTINE),
    *(keys.QUARANTINE_BY_BLOB, "reconciler/v1/", *RECORDS),
)
"""Where a reconciler makes requests that an activity of the model contains."""


def scaled(full: FullPlan, monkeypatch: pytest.MonkeyPatch, batches: float) -> FullPlan:
    """Return the plan whose history has some batches, with small pages."""
    monkeypatch.setattr(lake_requests, "PAGE_OBJECTS", PAGE_KEYS)
    days = batches / full.batches_per_s / DAY_S
    return full.plan.with_changes(history_days=2 * days, audit_every_s=SECONDS).filled()


@pytest.mark.parametrize("name", ["seconds", "minute"])
def test_the_model_predicts_the_requests_of_audits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first audit reads every manifest; listings are compared by small pages."""
    world = run_once(name, tmp_path, monkeypatch)
    packed = world.full.plan.pack_references
    accepted = sum(
        1
        for key, versions in world.bucket._keys.items()
        if key.startswith(keys.ACCEPTED)
        if versions.current is not None
    )
    full = scaled(world.full, monkeypatch, accepted)
    listing, reading, _ = maintenance_lines(full)
    seen = audit(world, PAGE_KEYS, repair=not packed)
    predicted_pages = listing.per_s.lists * SECONDS
    pages = count(seen, ["LIST"], keys.ACCEPTED, keys.RAW_BLOBS, keys.ACCEPTED_BY_BLOB)
    # Four shards end with a page that is not full, and the split into ranges lists a few.
    assert pages == pytest.approx(predicted_pages, rel=TOLERANCE, abs=12)
    read = count(seen, ["GET"], keys.ACCEPTED)
    # A shard with missing references looks for a few of them in packed entries.
    assert accepted <= read <= accepted + 4 * SAMPLE_MAX
    assert reading.per_s.gets == pytest.approx(full.batches_per_s)


@pytest.mark.parametrize(
    "coefficient",
    [
        *("ACCEPT_PUTS", "VERIFY_GETS", "INDEX_PUTS", "REFERENCE_PUTS", "LANE_PUTS"),
        *("GATEWAY_CHECK_S", "MEMBER_S", "UPKEEP_S", "HOLD_LISTS"),
    ],
)
def test_a_coefficient_that_is_off_by_a_third_is_found(
    coefficient: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = run_once("seconds", tmp_path, monkeypatch)
    for factor in (2 / 3, 4 / 3):
        with monkeypatch.context() as planted:
            value = factor * getattr(service_requests, coefficient)
            planted.setattr(service_requests, coefficient, value)
            with pytest.raises(AssertionError):
                check_all(world)


_RUNS: dict[str, CostWorld] = {}


def run_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CostWorld:
    """Return the counted requests of a plan; the tests of this module share the runs."""
    if name not in _RUNS:
        _RUNS[name] = run_plan(PLANS[name].filled(), SECONDS, tmp_path, monkeypatch)
    return _RUNS[name]
