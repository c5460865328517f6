"""Streams over a lake and pending batches: waves, the order of records, and what fails."""

import asyncio
from pathlib import Path
from typing import Any

import duckdb
import pytest
from support.query_lake import (
    DAY0_NS,
    QueryClient,
    deployment,
    log_batch,
    overlapping_ingestions,
    records,
    talk,
)
from support.spark_lake import Deployment, Sent
from support.spark_local import ingest_locally

from sluice_lake.blobs import RejectedBlob, fetch_frame
from sluice_lake.data_files import DataFile
from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.frame import Frame
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S
from sluice_query.engine import QueryEngine
from sluice_query.pending import FetchedBatches, fetch_batches


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return overlapping_ingestions(tmp_path_factory.mktemp("views"))


@pytest.mark.daily(2)
@pytest.mark.parametrize("limit", [1, 7, 80, 319, 320, 10_000])
def test_a_stream_has_the_records_of_the_search(place: Deployment, limit: int) -> None:
    async def story(client: QueryClient) -> None:
        for more in ([], [("query", '{} |= "error"'), ("highlight", "true")]):
            given = {"limit": limit, "newest_first": "true"}
            *wanted, last = await client.lines("/v1/query", *more, **given)
            lines = await client.lines("/v1/query/stream", *more, limit=limit)
            assert records(lines) == wanted
            assert "progress" in lines[-2]
            summary = lines[-1]["summary"]
            for name in ("results", "more", "partial", "waiting_batches"):
                assert summary[name] == last["summary"][name], name

    talk(place, story)


def test_small_files_are_not_divided_and_the_engine_serves_the_next_query(
    place: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their footers and another engine cost more than reading them."""
    opened, divided = [], []
    connect, footers = duckdb.connect, QueryEngine.with_row_groups

    def counting_connect(*given: Any, **named: Any) -> Any:
        opened.append(connect(*given, **named))
        return opened[-1]

    def counting_footers(*given: Any) -> DataFile:
        divided.append(given[-1])
        return footers(*given)

    monkeypatch.setattr(duckdb, "connect", counting_connect)
    monkeypatch.setattr(QueryEngine, "with_row_groups", counting_footers)

    async def story(client: QueryClient) -> None:
        for _ in range(2):
            assert await client.lines("/v1/query", limit=5, newest_first="true")
            assert await client.lines("/v1/query/stream", limit=5)
        assert (len(opened), divided) == (1, [])
        monkeypatch.setattr("sluice_query.streaming.FIRST_PART_BYTES", 1)
        assert await client.lines("/v1/query", limit=5, newest_first="true")
        assert divided

    talk(place, story)


def test_a_stream_does_not_read_files_that_are_too_old(
    place: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_query.streaming.FIRST_WAVE_BYTES", 1)

    async def story(client: QueryClient) -> None:
        lines = await client.lines("/v1/query/stream", limit=15)
        progress = lines[-2]["progress"]
        assert progress["segments_read"] < progress["segments"]
        summary = lines[-1]["summary"]
        assert summary["segments_read"] == progress["segments_read"]
        assert summary["segments_read"] + summary["segments_pruned"] == progress["segments"]
        *wanted, _ = await client.lines("/v1/query", limit=15, newest_first="true")
        assert records(lines) == wanted
        parts = [line for line in await client.lines("/v1/query/stream") if "progress" in line]
        last = parts[-1]["progress"]
        assert (last["batches_read"], last["batches"]) == (2, 2)
        assert len(parts) == last["segments"] + last["batches"]

    talk(place, story)


def test_the_oldest_records_are_found_without_reading_later_files(
    place: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_query.streaming.FIRST_WAVE_BYTES", 1)
    monkeypatch.setattr("sluice_query.streaming.FIRST_PART_BYTES", 1)

    async def story(client: QueryClient) -> None:
        *every, last = await client.lines("/v1/query", newest_first="true")
        segments = last["summary"]["segments_read"]
        for limit in (1, 4, 15, len(every) - 1, len(every)):
            *found, last = await client.lines("/v1/query", limit=limit)
            assert found == every[::-1][:limit]
            assert last["summary"]["more"] == (limit < len(every))
            read, pruned = (last["summary"][f"segments_{name}"] for name in ("read", "pruned"))
            assert read + pruned == segments
            assert (read < segments) == (limit <= 15)

    talk(place, story)


def test_a_damaged_file_after_the_first_records_is_a_reason_in_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_query.streaming.FIRST_WAVE_BYTES", 1)
    made = deployment(tmp_path)
    for part in range(2):
        made.deliver([log_batch(["x"], start=part, from_ns=DAY0_NS + part * NS_PER_S)])
        ingest_locally(made.url)
    old = min((made.root / "lake/v1/logs").rglob("*.parquet"), key=lambda one: one.stat().st_mtime)
    old.write_bytes(b"damaged")

    async def story(client: QueryClient) -> None:
        first, *_, last = await client.lines("/v1/query/stream")
        assert first["seq"] == 1
        summary = last["summary"]
        assert (summary["results"], summary["partial"], len(summary["reasons"])) == (1, True, 1)
        assert old.name in summary["reasons"][0]
        assert "restore this file from a backup" in summary["reasons"][0]

    talk(made, story)


def pending_lines(tmp_path: Path) -> tuple[Deployment, list[Sent]]:
    """Return a deployment with one ingested line, and six pending batches of a later line each."""
    made = deployment(tmp_path)
    batches = [
        log_batch([f"line {n}"], start=n, agent=f"host-{n}", from_ns=DAY0_NS + n * NS_PER_S)
        for n in range(7)
    ]
    made.deliver(batches[:1])
    ingest_locally(made.url)
    made.deliver(batches[1:])
    return made, batches


def test_the_first_records_are_sent_before_older_pending_batches_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that is reached ends the reading of blobs; the records are those of the search."""
    monkeypatch.setattr("sluice_query.streaming.FIRST_WAVE_BYTES", 1)
    made, _ = pending_lines(tmp_path)

    async def story(client: QueryClient) -> None:
        lines = await client.lines("/v1/query/stream")
        bodies = [one["body"] for one in records(lines)]
        assert bodies == [f"line {n}" for n in reversed(range(7))]
        assert "progress" in lines[1], "the first record was sent with those of later waves"
        assert lines[1]["progress"]["batches_read"] == 1
        assert lines[-1]["summary"]["waiting_batches"] == 6
        few = await client.lines("/v1/query/stream", limit=2)
        assert [one["body"] for one in records(few)] == ["line 6", "line 5"]
        summary = few[-1]["summary"]
        assert (summary["waiting_batches"], summary["more"], summary["partial"]) == (3, True, False)
        *_, every = await client.lines("/v1/query", limit=2, newest_first="true")
        # The store is listed for both, the second time later.
        assert summary["accepted_until"] <= every["summary"]["accepted_until"]

    talk(made, story)


def test_a_lost_blob_in_a_later_wave_makes_the_stream_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_query.streaming.FIRST_WAVE_BYTES", 1)
    made, batches = pending_lines(tmp_path)
    (made.root / batches[3].manifest.raw_blob_key).unlink()

    async def story(client: QueryClient) -> None:
        lines = await client.lines("/v1/query/stream")
        assert [one["body"] for one in records(lines)] == [f"line {n}" for n in (6, 5, 4, 2, 1, 0)]
        summary = lines[-1]["summary"]
        assert (summary["partial"], len(summary["reasons"])) == (True, 1)
        assert batches[3].manifest.raw_blob_key in summary["reasons"][0]
        *_, last = await client.lines("/v1/query", newest_first="true")
        assert last["summary"]["reasons"] == summary["reasons"]
        few = (await client.lines("/v1/query/stream", limit=1))[-1]["summary"]
        assert not few["partial"], "the lost batch is older than the only record of the limit"

    talk(made, story)


@pytest.mark.daily(1)
@pytest.mark.parametrize("wave", [1, 3, 6])
def test_a_store_that_fails_in_a_wave_is_named_and_the_rest_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wave: int
) -> None:
    monkeypatch.setattr("sluice_query.streaming.FIRST_WAVE_BYTES", 1)
    made, _ = pending_lines(tmp_path)
    calls = 0

    async def failing(stores: object, manifest: AcceptedManifest) -> Frame | RejectedBlob:
        nonlocal calls
        calls += 1
        if calls == wave:
            raise StoreUnavailable("get", manifest.raw_blob_key, "connection reset")
        return await fetch_frame(stores, manifest)  # type: ignore[arg-type]

    monkeypatch.setattr("sluice_lake.blobs.fetch_frame", failing)

    async def story(client: QueryClient) -> None:
        lines = await client.lines("/v1/query/stream")
        lost = 7 - wave
        wanted = [f"line {n}" for n in (6, 5, 4, 3, 2, 1, 0) if n != lost]
        assert [one["body"] for one in records(lines)] == wanted
        summary = lines[-1]["summary"]
        assert summary["partial"]
        assert "connection reset" in summary["reasons"][0]

    talk(made, story)


@pytest.mark.daily(1)
@pytest.mark.parametrize("moved_after", [1, 4])
def test_batches_that_are_ingested_between_waves_are_returned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved_after: int
) -> None:
    monkeypatch.setattr("sluice_query.streaming.FIRST_WAVE_BYTES", 1)
    made, _ = pending_lines(tmp_path)
    calls = 0

    async def moving(*given: Any) -> FetchedBatches:
        nonlocal calls
        calls += 1
        if calls == moved_after + 1:
            await asyncio.to_thread(ingest_locally, made.url)
        return await fetch_batches(*given)

    monkeypatch.setattr("sluice_query.search.fetch_batches", moving)

    async def story(client: QueryClient) -> None:
        lines = await client.lines("/v1/query/stream")
        assert [one["body"] for one in records(lines)] == [f"line {n}" for n in reversed(range(7))]
        assert lines[-1]["summary"]["waiting_batches"] == 6

    talk(made, story)
