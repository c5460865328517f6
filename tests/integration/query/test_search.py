"""Queries over real Delta tables and a real queue: every matching record once, in order."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as copy_with
from structlog.testing import capture_logs
from support.constants import settings_with
from support.query_lake import (
    DAY0_NS,
    MINUTE_NS,
    bodies,
    deployment,
    log_batch,
    make_query,
    metric_batch,
    put_delete,
    run_query,
)
from support.spark_lake import Deployment, make_batch
from support.spark_local import ingest_locally

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.fields import KINDS
from sluice_protocol.keys import accepted_key
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S
from sluice_query.engine import QueryTimedOut
from sluice_query.pending import FetchedBatches, fetch_batches
from sluice_query.request import (
    Aggregate,
    FieldList,
    Histogram,
    RecordField,
    Series,
    TopValues,
)
from sluice_query.result import QueryResult
from sluice_query.settings import QuerySettings
from sluice_store import open_store


@pytest.fixture
def place(tmp_path: Path) -> Deployment:
    return deployment(tmp_path)


def test_pending_batches_are_found_before_the_first_ingestion(place: Deployment) -> None:
    assert run_query(place, make_query()).summary.results == 0
    place.deliver([log_batch(["one", "two"])])
    result = run_query(place, make_query())
    assert bodies(result) == ["one", "two"]
    assert (result.summary.segments_read, result.summary.waiting_batches) == (0, 1)


@pytest.mark.daily(1)
@pytest.mark.parametrize("others", [0, 1])
def test_a_manifest_that_states_other_times_makes_the_answer_partial(
    place: Deployment, others: int
) -> None:
    """A batch is read alone or together with another one; after ingestion the answer is whole."""
    true = log_batch(["one", "two"])
    early = true.manifest.min_ts_unix_ns
    wrong = replace(true, manifest=copy_with(true.manifest, max_ts_unix_ns=early))
    place.deliver([wrong, *[log_batch(["x"], start=2)] * others])
    result = run_query(place, make_query())
    assert sorted(map(str, bodies(result))) == sorted(["one", "two", *["x"] * others])
    (reason,) = result.summary.reasons
    assert result.summary.partial
    assert accepted_key(true.manifest.identity) in reason
    with capture_logs() as logs:
        ingest_locally(place.url)
    wrong_keys = [one["key"] for one in logs if one["event"] == "manifest_times_wrong"]
    assert wrong_keys == [accepted_key(true.manifest.identity)]
    assert not run_query(place, make_query()).summary.partial


def test_records_of_lake_and_pending_batches_are_merged_in_time_order(place: Deployment) -> None:
    place.deliver([log_batch(["a0", "a1", "a2"], step_ns=10)])
    place.deliver([log_batch(["b0", "b1"], agent="host-2", from_ns=DAY0_NS + 5, step_ns=10)])
    ingest_locally(place.url)
    place.deliver([log_batch(["c0", "c1"], start=3, from_ns=DAY0_NS + 7, step_ns=10)])
    result = run_query(place, make_query())
    assert bodies(result) == ["a0", "b0", "c0", "a1", "b1", "c1", "a2"]
    assert result.summary.waiting_batches == 1
    assert not result.summary.partial
    latest = run_query(place, make_query(newest_first=True, limit=2))
    assert bodies(latest) == ["a2", "c1"]
    assert latest.summary.more


def test_a_batch_that_is_enqueued_twice_is_returned_once(place: Deployment) -> None:
    """Whether it is in the lake already or pending twice."""
    first = log_batch(["x"])
    place.deliver([first])
    ingest_locally(place.url)
    place.enqueue([first])
    second = log_batch(["y"], start=1)
    place.deliver([second])
    place.enqueue([second])
    result = run_query(place, make_query())
    assert bodies(result) == ["x", "y"]


def test_a_crash_before_the_ledger_commit_duplicates_no_record(place: Deployment) -> None:
    place.deliver([log_batch(["x"]), log_batch(["y"], agent="host-2")])
    ingest_locally(place.url)
    ledger = place.root / "lake" / "v1" / "batches"
    for path in sorted((ledger / "_delta_log").glob("*.json"))[1:]:
        path.unlink()
    # The entries are still in the queue: they are acknowledged only after the ledger commit.
    assert sorted(map(str, bodies(run_query(place, make_query())))) == ["x", "y"]


def test_the_time_range_is_exact_to_the_nanosecond(place: Deployment) -> None:
    """Its start is included and its end excluded, for pending batches and for the lake."""
    for ingested in (False, True):
        if ingested:
            ingest_locally(place.url)
        else:
            place.deliver([log_batch(["a", "b", "c"], step_ns=1)])
        result = run_query(place, make_query(from_ns=DAY0_NS + 1, to_ns=DAY0_NS + 2))
        assert bodies(result) == ["b"]
        assert result.records[0]["ts_ns"] == DAY0_NS + 1


@pytest.mark.daily(1)
@pytest.mark.parametrize("ingested", [False, True])
def test_each_condition_selects_its_records_in_lake_and_pending_batches(
    place: Deployment, ingested: bool
) -> None:
    place.deliver([log_batch(["GET /a 200", "GET /b 500", "it's 100% 'x'"], attributes={"p": "1"})])
    place.deliver([log_batch(["get /c 404"], agent="host-2", from_ns=DAY0_NS + 9 * NS_PER_S)])
    if ingested:
        ingest_locally(place.url)
    for conditions, wanted in (
        ({"text": "GET"}, ["GET /a 200", "GET /b 500"]),
        ({"logql": '{} |~ "(?i)GET"'}, ["GET /a 200", "GET /b 500", "get /c 404"]),
        ({"logql": r"{} |~ `/[bc] [45]\d\d$`"}, ["GET /b 500", "get /c 404"]),
        ({"agents": ("host-2", "missing")}, ["get /c 404"]),
        ({"attributes": (("p", "1"),), "text": "500"}, ["GET /b 500"]),
        ({"attributes": (("service.name", "web"),), "agents": ("host-2",)}, ["get /c 404"]),
    ):
        assert bodies(run_query(place, make_query(**conditions))) == wanted, conditions


@pytest.mark.daily(1)
@pytest.mark.parametrize("ingested", [False, True])
def test_attributes_are_compared_as_numbers_in_lake_and_pending_batches(
    place: Deployment, ingested: bool
) -> None:
    """In records, counts, histograms and values; a text that is no number does not match."""
    for start, status in enumerate(("200", "500", "503.5", "9007199254740993", "5xx", "")):
        place.deliver([log_batch([f"r{start}"], start=start, attributes={"status": status})])
    place.deliver([log_batch(["none"], start=9)])
    if ingested:
        ingest_locally(place.url)
    for text, wanted in (
        ("status >= 500", ["r1", "r2", "r3"]),
        ("status>500.0", ["r2", "r3"]),
        ("status > 9007199254740991", ["r3"]),
        ("status <= 5e2", ["r0", "r1"]),
    ):
        asked = f'{{}} | {text} | __error__=""'
        assert bodies(run_query(place, make_query(asked))) == wanted, text
        counted = run_query(place, make_query(asked, stats_only=True))
        assert counted.summary.results == len(wanted)
        for view in (
            Histogram(step_ns=MINUTE_NS),
            TopValues(field=RecordField("body")),
            FieldList(),
        ):
            found = run_query(place, make_query(asked, view=view))
            assert found.summary.results == len(wanted), (text, view)


def test_stats_only_returns_counts_and_times_without_records(place: Deployment) -> None:
    place.deliver([log_batch(["a1", "a2", "b"])])
    ingest_locally(place.url)
    place.deliver([log_batch(["a3"], start=3, from_ns=DAY0_NS + MINUTE_NS)])
    result = run_query(place, make_query(text="a", stats_only=True))
    assert result.records == []
    assert result.summary.results == 3
    assert result.summary.first_ts == "2026-09-21T14:13:20.000000000Z"
    assert result.summary.last_ts == "2026-09-21T14:14:20.000000000Z"


def test_files_that_cannot_match_are_pruned(place: Deployment) -> None:
    """Files are excluded by times and by agents, and are not read."""
    for hour in range(4):
        at_ns = DAY0_NS + hour * 60 * MINUTE_NS
        place.deliver([log_batch([f"h{hour}"], start=hour, from_ns=at_ns)])
        ingest_locally(place.url)
    hour_1 = make_query(from_ns=DAY0_NS + 60 * MINUTE_NS, to_ns=DAY0_NS + 61 * MINUTE_NS)
    result = run_query(place, hour_1)
    assert bodies(result) == ["h1"]
    assert (result.summary.segments_read, result.summary.segments_pruned) == (1, 3)
    assert result.summary.bytes_read > 0
    nobody = run_query(place, make_query(agents=("aaa",)))
    assert (nobody.summary.segments_read, nobody.summary.segments_pruned) == (0, 4)


def test_records_of_all_kinds_are_returned_as_they_were_sent(place: Deployment) -> None:
    """An entry without a time has the time at which its batch was accepted."""
    batches = [make_batch(0, 4, kind=kind, agent=f"host-{kind}") for kind in KINDS]
    bare = make_batch(5, 2, kind="entries", agent="host-3")
    place.deliver([*batches, bare])
    wide = {"from_ns": DAY0_NS, "to_ns": DAY0_NS + 3600 * NS_PER_S}
    for ingested in (False, True):
        if ingested:
            ingest_locally(place.url)
        metrics = run_query(place, make_query(kind="metrics", **wide)).records
        assert [row["name"] for row in metrics] == ["m.0", "m.1", "m.2", "m.3"]
        spans = run_query(place, make_query(kind="spans", **wide)).records
        assert [row["duration_ns"] for row in spans] == [2**53 + n for n in range(4)]
        entries = run_query(place, make_query(kind="entries", **wide)).records
        assert [row["key"] for row in entries] == [bytes([n, 0]) for n in (5, 6, 0, 1, 2, 3)]
        assert [row["ts_ns"] is None for row in entries] == [True] * 2 + [False] * 4
        assert (
            run_query(place, make_query(kind="entries", **wide, agents=("host-3",))).summary.results
            == 2
        )


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", KINDS)
def test_pending_batches_are_equal_alone_and_together(place: Deployment, kind: str) -> None:
    """Read alone and together with others, and after ingestion."""
    asked = make_query(kind=kind, from_ns=DAY0_NS, to_ns=DAY0_NS + 3600 * NS_PER_S)
    first, second, other = (
        make_batch(start, 4, kind=kind, boot=boot)
        for start, boot in ((0, "b2"), (4, "b2"), (0, "b1"))
    )
    place.deliver([first])
    alone = _of_boot(run_query(place, asked), "b2")
    place.deliver([second, other])
    together = run_query(place, asked)
    ingest_locally(place.url)
    for result in (together, run_query(place, asked)):
        assert len(_of_boot(result, "b2")) == 8
        assert _of_boot(result, "b2")[:4] == alone == _of_boot(result, "b1")
        assert not result.summary.partial


def _of_boot(result: QueryResult, boot: str) -> list[str]:
    """Return the rows of a boot without its name, as texts in which NaN equals NaN."""
    rows = sorted(result.records, key=lambda row: int(str(row["seq"])))
    return [repr({**row, "boot_id": ""}) for row in rows if row["boot_id"] == boot]


def test_a_delete_applies_immediately_and_up_to_its_cut_off(place: Deployment) -> None:
    """It hides matching records, in the lake or pending, that were accepted until its cut-off."""
    place.deliver([log_batch(["secret one", "plain"], attributes={"u": "7"})])
    ingest_locally(place.url)
    place.deliver([log_batch(["secret two"], start=2)])
    put_delete(
        place,
        DeleteRecord(
            delete_id="0" * 26, kind="logs", accepted_until_unix_ns=DAY0_NS, contains="secret"
        ),
    )
    place.deliver([log_batch(["secret late"], start=3, at_ns=DAY0_NS + NS_PER_S)])
    result = run_query(place, make_query())
    assert sorted(map(str, bodies(result))) == ["plain", "secret late"]
    assert result.summary.deletes_applied == 1
    put_delete(
        place,
        DeleteRecord(
            delete_id="1" * 26,
            kind="logs",
            accepted_until_unix_ns=DAY0_NS,
            attributes={"u": "7"},
            to_unix_ns=DAY0_NS + MINUTE_NS,
        ),
    )
    assert bodies(run_query(place, make_query())) == ["secret late"]


def test_a_delete_that_cannot_be_decoded_stops_the_query(place: Deployment) -> None:
    """An error is better than a result with deleted records."""
    path = place.root / "deletes" / "v1"
    place.deliver([log_batch(["x"])])
    record = DeleteRecord(delete_id="2" * 26, kind="logs", accepted_until_unix_ns=1, agent_id="a")
    put_delete(place, record)
    stored = next(path.rglob("*2.json"))
    stored.write_bytes(stored.read_bytes().replace(b'"agent_id"', b'"agent_glob"'))
    with pytest.raises(
        InvalidRecord, match=r"stored record is not valid: .*agent_glob.*, key=`deletes/v1/"
    ):
        run_query(place, make_query())


def test_missing_and_corrupt_blobs_make_the_result_partial(place: Deployment) -> None:
    """The reasons name the blobs; the other records are returned."""
    good, gone = log_batch(["good"]), log_batch(["gone"], start=1)
    wrong = log_batch(["wrong"], start=2)
    place.deliver([good, wrong])
    place.accept([gone], blobs=False)
    place.enqueue([gone])
    place.put_blob(wrong, b"other bytes")
    result = run_query(place, make_query())
    assert bodies(result) == ["good"]
    assert result.summary.partial
    reasons = " ".join(result.summary.reasons)
    assert "blob is missing" in reasons
    assert "other bytes" in reasons


def test_dead_letters_make_the_result_partial_until_they_are_ingested(place: Deployment) -> None:
    lost = log_batch(["lost"], agent="host-9")
    place.deliver([log_batch(["good"])])
    place.accept([lost], blobs=False)
    place.enqueue([lost])
    ingest_locally(place.url)
    result = run_query(place, make_query())
    assert bodies(result) == ["good"]
    assert result.summary.reasons[0].startswith("1 batch could not be ingested (missing)")
    assert not run_query(place, make_query(agents=("host-1",))).summary.partial
    assert not run_query(place, make_query(kind="metrics")).summary.partial
    # The batch counts by the time stamps of its records, not by its acceptance.
    assert not run_query(place, make_query(from_ns=DAY0_NS + 1)).summary.partial
    place.put_blob(lost)
    place.enqueue([lost])
    ingest_locally(place.url)
    healed = run_query(place, make_query())
    assert sorted(map(str, bodies(healed))) == ["good", "lost"]
    assert not healed.summary.partial


def test_a_dead_letter_that_was_accepted_long_after_its_records_counts(place: Deployment) -> None:
    late = log_batch(["late"], at_ns=DAY0_NS + 5 * 86_400 * NS_PER_S)
    place.accept([late], blobs=False)
    place.enqueue([late])
    ingest_locally(place.url)
    result = run_query(place, make_query(to_ns=DAY0_NS + MINUTE_NS))
    assert result.summary.reasons[0].startswith("1 batch could not be ingested (missing)")
    later = make_query(from_ns=DAY0_NS + MINUTE_NS, to_ns=DAY0_NS + 6 * 86_400 * NS_PER_S)
    assert not run_query(place, later).summary.partial


def test_pending_batches_over_the_bound_make_the_result_partial(place: Deployment) -> None:
    """The reason contains the number of batches that were left out."""
    place.deliver([log_batch([f"line {n}"], start=n) for n in range(5)])
    result = run_query(
        place, make_query(), settings_with(QuerySettings, tail_frames_max=2, tail_lists_max=9)
    )
    assert result.summary.results == 2
    assert result.summary.reasons[0].startswith("3 older batches that are not in the")


def test_of_a_long_backlog_the_newest_work_lists_are_read(place: Deployment) -> None:
    """The reason contains the number of work lists that were left out."""
    for number in range(6):
        place.deliver([log_batch([f"line {number}"], start=number)])
    result = run_query(place, make_query(), settings_with(QuerySettings, tail_lists_max=2))
    assert sorted(map(str, bodies(result))) == ["line 4", "line 5"]
    assert result.summary.reasons[0].startswith("4 older work lists of lane ")


def test_a_series_covers_lake_and_pending_batches(place: Deployment) -> None:
    start_ns = DAY0_NS // MINUTE_NS * MINUTE_NS
    place.deliver([metric_batch([1, 2, 3, 4, 5, 6], from_ns=start_ns)])
    ingest_locally(place.url)
    place.deliver([metric_batch([10, 20], start=6, from_ns=start_ns + MINUTE_NS)])
    place.deliver([metric_batch([100], agent="host-2", from_ns=start_ns)])
    place.deliver([metric_batch([7], name="mem", start=8, from_ns=start_ns)])
    window = {"kind": "metrics", "from_ns": start_ns, "to_ns": start_ns + 2 * MINUTE_NS}
    for by, wanted in (
        ((), [(0, None, 121.0), (MINUTE_NS, None, 30.0)]),
        (("agent_id",), [(0, "host-1", 21.0), (0, "host-2", 100.0), (MINUTE_NS, "host-1", 30.0)]),
    ):
        series = Series(
            metric="cpu", step_ns=MINUTE_NS, aggregate=Aggregate.SUM, by=tuple(map(RecordField, by))
        )
        points = run_query(place, make_query(**window, series=series)).points
        assert [
            (one.step_ns - start_ns, one.by.get("agent_id"), one.value) for one in points
        ] == wanted


def test_a_series_of_too_many_groups_or_points_is_refused(
    place: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in range(4):
        place.deliver([metric_batch([1.0], start=start, agent=f"host-{start}")])
    series = Series(metric="cpu", by=(RecordField("agent_id"),), step_ns=MINUTE_NS)
    asked = make_query(kind="metrics", series=series)
    assert len(run_query(place, asked).points) == 4
    monkeypatch.setattr("sluice_query.series.GROUPS_MAX", 3)
    with pytest.raises(BadUsage, match=r"at most 3 groups: .* groups=`4`, by=`agent_id`"):
        run_query(place, asked)
    monkeypatch.setattr("sluice_query.series.POINTS_MAX", 3)
    with pytest.raises(BadUsage, match="at most 3 points: choose a longer step"):
        run_query(place, asked)


def test_a_query_over_its_time_limit_is_stopped(place: Deployment) -> None:
    place.deliver([log_batch(["x"])])
    ingest_locally(place.url)
    with pytest.raises(QueryTimedOut, match="narrow the time range"):
        run_query(place, make_query(), QuerySettings(time_s_max=1e-9))


def test_pending_batches_beyond_the_memory_are_left_out(
    place: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_query.pending.GROUP_MAX", 1)
    for start in range(12):
        place.deliver([log_batch(["x"], start=start)])

    async def fetch() -> FetchedBatches:
        async with open_store(place.url) as store:
            manifests = [one.manifest for one in place.sent]
            return await fetch_batches((store,), manifests, QuerySettings(memory_bytes_max=1))

    found = asyncio.run(fetch())
    assert found.batches == QuerySettings.fetches
    (problem,) = found.problems
    assert problem.startswith(f"{12 - found.batches} older batches")
    assert problem.endswith("raise memory_bytes_max=`1`")
