"""The cost model compared with the requests that real components make in virtual time."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.cost_world import CostWorld, audit, count, run_plan

from sluice_cli import cost
from sluice_cli.cost import CostPlan, Load, cost_rows
from sluice_gc.audit_tasks import SAMPLE_MAX
from sluice_protocol import keys
from sluice_protocol.prices import DAY_S, RequestCounts

SECONDS = 180.0
TOLERANCE = 0.1
SLACK = 3.0
"""Requests at the two ends of the measured time."""
PAGE_KEYS = 20

PLANS = {
    "seconds": CostPlan(
        rate="1MB/s",
        agents=20,
        freshness_s=5.0,
        gateway_workers=1,
        journal_interval_s=1.0,
        reconciler_freshness_s=0.0,
        trigger_s=10.0,
    ),
    "minute": CostPlan(
        rate="1MB/s",
        agents=150,
        freshness_s=30.0,
        gateway_workers=2,
        journal_interval_s=5.0,
        reconciler_freshness_s=10.0,
        pack_references=True,
        trigger_s=30.0,
    ),
    "shared": CostPlan(
        rate="1MB/s",
        agents=40,
        freshness_s=10.0,
        gateway_workers=3,
        journal_interval_s=2.0,
        reconciler_freshness_s=4.0,
        lanes=8,
        trigger_s=20.0,
    ),
}

RECORDS = ("manifests/", "queue/", "reconciler/v1/lanes/", "reconciler/v1/lane-parts/")
PASSES = "reconciler/v1/full-pass"


def counted(world: CostWorld) -> dict[str, RequestCounts]:
    """Return the counted requests of every activity that runs without the lake.

    A GET of a record of the queue is due to a conflict, as the model predicts it, or to a check.
    """
    gateways = world.counted["gateways"].seen
    own = world.counted["reconcilers"].seen
    consumer = world.counted["ingest"].seen
    reads, listed = ["GET", "HEAD"], ["LIST"]
    rows = {one.activity: one.per_s for one in cost_rows(world.load)}
    conflicts = SECONDS * rows["queue: lists, states, registers"].gets
    members = "reconciler/v1/members/"
    discovery = "reconciler/v1/discovery"
    held = (keys.QUARANTINE, keys.QUARANTINE_BY_BLOB, "reconciler/v1/held/")
    rest = (*RECORDS, keys.AUTHORITY)
    return {
        "accept: blobs and manifests": RequestCounts(
            puts=count(gateways, ["PUT"], keys.RAW_BLOBS, keys.ACCEPTED)
        ),
        "accept: acceptance journals": RequestCounts(
            puts=count(gateways, ["PUT"], keys.GATEWAY_JOURNALS)
        ),
        "accept: checks": RequestCounts(
            lists=count(gateways, listed, ""), gets=count(gateways, reads, "")
        ),
        "indexes: verification": RequestCounts(
            gets=count(own, reads, keys.ACCEPTED, keys.RAW_BLOBS)
        ),
        "indexes: by-time entries": RequestCounts(
            puts=count(own, ["PUT"], keys.ACCEPTED_BY_TIME, keys.RAW_BLOBS_BY_TIME)
        ),
        "indexes: reverse references": RequestCounts(
            puts=count(own, ["PUT"], keys.ACCEPTED_BY_BLOB)
        ),
        "queue: lists, states, registers": RequestCounts(
            puts=count(own, ["PUT"], *RECORDS), gets=conflicts
        ),
        "queue: checks": RequestCounts(
            lists=count(own, listed, *RECORDS), gets=count(own, ["GET"], *RECORDS) - conflicts
        ),
        "reconciler: journals": RequestCounts(gets=count(own, ["GET"], keys.GATEWAY_JOURNALS)),
        "reconciler: gateways": RequestCounts(
            puts=count(own, ["PUT"], discovery),
            lists=count(own, listed, keys.GATEWAY_PROCESSES),
            gets=count(own, ["GET"], discovery),
        ),
        "reconciler: sharing lanes": RequestCounts(
            puts=count(own, ["PUT"], members),
            lists=count(own, listed, members),
            gets=count(own, ["GET"], members),
        ),
        "reconciler: held, conflicts": RequestCounts(lists=count(own, listed, *held)),
        "ingest: blobs": RequestCounts(gets=count(consumer, ["GET"], keys.RAW_BLOBS)),
        "ingest: queue": RequestCounts(
            puts=count(consumer, ["PUT"], *rest),
            lists=count(consumer, listed, *rest),
            gets=count(consumer, ["GET"], *rest),
        ),
    }


def check_all(world: CostWorld) -> None:
    predicted = {one.activity: one.per_s.times(SECONDS) for one in cost_rows(world.load)}
    for activity, seen in counted(world).items():
        for name in ("puts", "lists", "gets"):
            expected = getattr(predicted[activity], name)
            assert getattr(seen, name) == pytest.approx(expected, rel=TOLERANCE, abs=SLACK), (
                f"{activity}, {name}"
            )


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


@pytest.mark.long
@pytest.mark.parametrize("name", ["seconds", "minute"])
def test_the_model_predicts_the_requests_of_audits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first audit reads every manifest; listings are compared by small pages."""
    world = run_once(name, tmp_path, monkeypatch)
    packed = world.load.plan.pack_references
    accepted = sum(
        1
        for key, versions in world.bucket._keys.items()
        if key.startswith(keys.ACCEPTED)
        if versions.current is not None
    )
    monkeypatch.setattr(cost, "PAGE_OBJECTS", PAGE_KEYS)
    monkeypatch.setattr(cost, "AUDIT_EVERY_S", SECONDS)
    days = 2 * accepted / world.load.batches / DAY_S
    load = Load(replace(world.load.plan, history_days=days))
    predicted = {one.activity: one.per_s for one in cost_rows(load)}
    seen = audit(world, PAGE_KEYS, repair=not packed)
    pages = count(seen, ["LIST"], keys.ACCEPTED, keys.RAW_BLOBS, keys.ACCEPTED_BY_BLOB)
    # Four shards end with a page that is not full, and the split into ranges lists a few.
    listed = predicted["audits: listing"].lists * SECONDS
    assert pages == pytest.approx(listed, rel=TOLERANCE, abs=12)
    read = count(seen, ["GET"], keys.ACCEPTED)
    # A shard with missing references looks for a few of them in packed entries.
    assert accepted <= read <= accepted + 4 * SAMPLE_MAX
    assert predicted["audits: new manifests"].gets == pytest.approx(load.batches)


_RUNS: dict[str, CostWorld] = {}


def run_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CostWorld:
    """Return the counted requests of a plan; the tests of this module share the runs."""
    if name not in _RUNS:
        _RUNS[name] = run_plan(Load(PLANS[name]), SECONDS, tmp_path, monkeypatch)
    return _RUNS[name]
