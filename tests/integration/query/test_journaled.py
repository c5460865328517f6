"""Queries over batches that gateways journaled and that no reconciler has enqueued yet."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as copy_with
from support.constants import settings_with
from support.query_lake import (
    JournalWriter,
    bodies,
    deployment,
    log_batch,
    make_query,
    put_delete,
    run_query,
)
from support.spark_lake import Deployment, Sent
from support.spark_local import ingest_locally

from sluice_protocol.keys import accepted_key
from sluice_protocol.manifests import RequestPart, encode_parts
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import UnixNs
from sluice_query import search
from sluice_query.settings import QuerySettings

STEPS = (
    "read_coverage",
    "read_pending",
    "read_active_deletes",
    "read_ingested",
    "select_files",
    "choose_pending",
    "read_pending 2",
    "read_ingested 2",
    "choose_unqueued",
    "confirm_named",
    "fetch_batches",
)
"""The steps of one query in their order."""
DAILY = {
    "ingested": (
        *("read_pending", "read_ingested", "select_files"),
        *("read_pending 2", "read_ingested 2", "confirm_named", "fetch_batches"),
    ),
    "enqueued": ("read_pending", "read_pending 2", "confirm_named"),
}
"""The steps that read what moves. Before another step, a move is one before the next of these."""
MOVES = [
    pytest.param(step, end, marks=[] if step in daily else [pytest.mark.long])
    for end, daily in DAILY.items()
    for step in STEPS
]


@pytest.fixture
def place(tmp_path: Path) -> Deployment:
    return deployment(tmp_path)


@pytest.fixture
def gateway(place: Deployment) -> JournalWriter:
    writer = JournalWriter(place=place).register()
    writer.publish()
    return writer


def test_an_accepted_batch_is_shown_while_the_reconciler_is_stopped(
    place: Deployment, gateway: JournalWriter
) -> None:
    first, second = log_batch(["a"]), log_batch(["b"], start=1)
    place.accept([first, second])
    through_ns = gateway.journal([first, second])
    result = run_query(place, make_query())
    assert bodies(result) == ["a", "b"]
    assert not result.summary.partial, result.summary.reasons
    assert result.summary.waiting_batches == 2
    assert result.summary.accepted_until is not None
    assert parse_rfc3339(result.summary.accepted_until) == through_ns
    assert (result.summary.complete_now, result.summary.held_by) == (False, None)
    place.enqueue([first])
    assert bodies(run_query(place, make_query())) == ["a", "b"]
    ingest_locally(place.url)
    assert bodies(run_query(place, make_query())) == ["a", "b"]


def test_an_entry_without_a_manifest_is_not_shown(
    place: Deployment, gateway: JournalWriter
) -> None:
    batch = log_batch(["a"])
    place.put_blob(batch)
    gateway.journal([batch])
    result = run_query(place, make_query())
    assert bodies(result) == []
    assert not result.summary.partial


def test_a_batch_without_a_blob_makes_the_answer_partial(
    place: Deployment, gateway: JournalWriter
) -> None:
    batch = log_batch(["a"])
    place.accept([batch], blobs=False)
    gateway.journal([batch])
    result = run_query(place, make_query())
    assert bodies(result) == []
    assert "the blob is missing" in result.summary.reasons[0]


def test_deletes_and_bounds_apply_to_journaled_batches(
    place: Deployment, gateway: JournalWriter
) -> None:
    batches = [log_batch([f"{n}"], start=n) for n in range(3)]
    place.accept(batches)
    gateway.journal(batches)
    record = DeleteRecord(
        delete_id="0" * 26, kind="logs", accepted_until_unix_ns=2**62, contains="1"
    )
    put_delete(place, record)
    assert bodies(run_query(place, make_query())) == ["0", "2"]
    few = run_query(place, make_query(), settings_with(QuerySettings, threads=2, tail_frames_max=1))
    assert bodies(few) == ["2"]
    assert few.summary.reasons[0].startswith("2 older batches that are not enqueued yet were left")


def test_a_silent_gateway_makes_the_answer_partial(
    place: Deployment, gateway: JournalWriter
) -> None:
    """Unless a listing shows that it accepted nothing else."""
    present = make_query(to_ns=UnixNs(2**62))
    strict = settings_with(QuerySettings, threads=2, max_staleness_s=0)
    assert not run_query(place, present, strict).summary.partial
    unlisted = settings_with(QuerySettings, threads=2, max_staleness_s=0, accepted_list_max=-1)
    summary = run_query(place, present, unlisted).summary
    assert summary.partial
    assert f"gateway gw-1 (process {gateway.process}) has not reported" in summary.reasons[0]


def one_request(batch: Sent) -> Sent:
    """Return a batch as a gateway combines one: with the identity of its request."""
    part = RequestPart(request=b"r".ljust(16), start=0, count=batch.manifest.record_count)
    return replace(batch, manifest=copy_with(batch.manifest, parts=encode_parts([part])))


def _move_before(monkeypatch: pytest.MonkeyPatch, step: str, move: Callable[[], None]) -> list[str]:
    """Call `move` immediately before one step of the next query."""
    name, _, nth = step.partition(" ")
    real: Any = getattr(search, name)
    visits: list[str] = []

    def moved(*arguments: Any, **named: Any) -> Any:
        visits.append(step)
        if len(visits) == int(nth or "1"):
            worker = threading.Thread(target=move)
            worker.start()
            worker.join()
        return real(*arguments, **named)

    monkeypatch.setattr(search, name, moved)
    return visits


@pytest.mark.daily(2)
@pytest.mark.parametrize(("step", "end"), MOVES)
def test_a_journaled_batch_that_moves_between_two_reads_is_found_once(
    place: Deployment,
    gateway: JournalWriter,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    end: str,
) -> None:
    old, batch = log_batch(["old"]), one_request(log_batch(["moving"], start=1))
    place.accept([old])
    place.enqueue([old])
    ingest_locally(place.url)
    place.accept([batch])
    gateway.journal([batch])

    def move() -> None:
        place.enqueue([batch])
        if end == "ingested":
            ingest_locally(place.url)
        gateway.publish(age_s=0)

    visits = _move_before(monkeypatch, step, move)
    result = run_query(place, make_query())
    assert sorted(map(str, bodies(result))) == ["moving", "old"]
    assert not result.summary.partial, result.summary.reasons
    assert visits


def test_the_manifest_of_a_journaled_batch_is_read(
    place: Deployment, gateway: JournalWriter
) -> None:
    """A damaged manifest is not a batch; the reconciler holds it."""
    batch = log_batch(["a"])
    place.accept([batch])
    gateway.journal([batch])
    gateway.put(accepted_key(batch.manifest.identity), b"{}")
    assert bodies(run_query(place, make_query())) == []
