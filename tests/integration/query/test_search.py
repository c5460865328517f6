"""Queries over real Delta tables and a real queue: what is asked for comes, once, in order."""

from pathlib import Path

import pytest
from support.query_lake import (
    DAY0_NS,
    MINUTE_NS,
    ask,
    bodies,
    deployment,
    log_batch,
    metric_batch,
    put_delete,
    question,
)
from support.spark_lake import Deployment, make_batch
from support.spark_local import ingest_locally

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S
from sluice_query.errors import QueryTimedOut
from sluice_query.request import Aggregate, Series
from sluice_query.settings import QuerySettings


@pytest.fixture
def place(tmp_path: Path) -> Deployment:
    return deployment(tmp_path)


def test_a_store_without_a_lake_answers_from_the_queue(place: Deployment) -> None:
    """Before the first ingestion there is no table, and what waits is found all the same."""
    assert ask(place, question()).summary.results == 0
    place.deliver([log_batch(["one", "two"])])
    answer = ask(place, question())
    assert bodies(answer) == ["one", "two"]
    assert (answer.summary.segments_read, answer.summary.waiting_batches) == (0, 1)


def test_lake_and_tail_merge_in_time_order(place: Deployment) -> None:
    """Records of the lake and of waiting batches come in one order, each once."""
    place.deliver([log_batch(["a0", "a1", "a2"], step_ns=10)])
    place.deliver([log_batch(["b0", "b1"], agent="host-2", from_ns=DAY0_NS + 5, step_ns=10)])
    ingest_locally(place.url)
    place.deliver([log_batch(["c0", "c1"], start=3, from_ns=DAY0_NS + 7, step_ns=10)])
    answer = ask(place, question())
    assert bodies(answer) == ["a0", "b0", "c0", "a1", "b1", "c1", "a2"]
    assert answer.summary.waiting_batches == 1
    assert not answer.summary.partial
    latest = ask(place, question(newest_first=True, limit=2))
    assert bodies(latest) == ["a2", "c1"]
    assert latest.summary.more


def test_batches_enqueued_twice_come_once(place: Deployment) -> None:
    """A batch that is in the lake and stands in the queue again is shown once; so is one twice."""
    first = log_batch(["x"])
    place.deliver([first])
    ingest_locally(place.url)
    place.enqueue([first])
    second = log_batch(["y"], start=1)
    place.deliver([second])
    place.enqueue([second])
    answer = ask(place, question())
    assert bodies(answer) == ["x", "y"]


def test_records_between_two_commits_come_once(place: Deployment) -> None:
    """A crash after the records and before the ledger leaves both readable, each once."""
    place.deliver([log_batch(["x"]), log_batch(["y"], agent="host-2")])
    ingest_locally(place.url)
    ledger = place.root / "lake" / "v1" / "batches"
    for path in sorted((ledger / "_delta_log").glob("*.json"))[1:]:
        path.unlink()
    # The queue still holds what the ledger has lost: its entries are acknowledged only after it.
    assert sorted(map(str, bodies(ask(place, question())))) == ["x", "y"]


def test_time_range_is_exact_to_the_nanosecond(place: Deployment) -> None:
    """The first instant is in, the last is out, to the nanosecond, in lake and tail."""
    for ingested in (False, True):
        if ingested:
            ingest_locally(place.url)
        else:
            place.deliver([log_batch(["a", "b", "c"], step_ns=1)])
        answer = ask(place, question(from_ns=DAY0_NS + 1, to_ns=DAY0_NS + 2))
        assert bodies(answer) == ["b"]
        assert answer.records[0]["ts_ns"] == DAY0_NS + 1


@pytest.mark.parametrize("ingested", [False, True])
def test_text_regex_agent_and_attributes(place: Deployment, ingested: bool) -> None:
    """Each condition finds what it says, in the lake as in what waits."""
    place.deliver([log_batch(["GET /a 200", "GET /b 500", "it's 100% 'x'"], attributes={"p": "1"})])
    place.deliver([log_batch(["get /c 404"], agent="host-2", from_ns=DAY0_NS + 9 * NS_PER_S)])
    if ingested:
        ingest_locally(place.url)
    for conditions, wanted in (
        ({"text": "GET"}, ["GET /a 200", "GET /b 500"]),
        ({"text": "GET", "ignore_case": True}, ["GET /a 200", "GET /b 500", "get /c 404"]),
        ({"text": r"/[bc] [45]\d\d$", "regex": True}, ["GET /b 500", "get /c 404"]),
        ({"text": r"^get", "regex": True, "ignore_case": True, "limit": 1}, ["GET /a 200"]),
        ({"text": "100% 'x'"}, ["it's 100% 'x'"]),
        ({"text": "' OR 1=1 --"}, []),
        ({"agents": ("host-2", "nobody")}, ["get /c 404"]),
        ({"attributes": (("p", "1"),), "text": "500"}, ["GET /b 500"]),
        ({"attributes": (("p", "2"),)}, []),
        ({"attributes": (("service.name", "web"),), "agents": ("host-2",)}, ["get /c 404"]),
    ):
        assert bodies(ask(place, question(**conditions))) == wanted, conditions


def test_stats_only_counts_without_records(place: Deployment) -> None:
    """Counts and the span of what matches, over lake and tail."""
    place.deliver([log_batch(["a1", "a2", "b"])])
    ingest_locally(place.url)
    place.deliver([log_batch(["a3"], start=3, from_ns=DAY0_NS + MINUTE_NS)])
    answer = ask(place, question(text="a", stats_only=True))
    assert answer.records == []
    assert answer.summary.results == 3
    assert answer.summary.first_ts == "2026-09-21T14:13:20.000000000Z"
    assert answer.summary.last_ts == "2026-09-21T14:14:20.000000000Z"


def test_files_outside_the_question_are_pruned(place: Deployment) -> None:
    """Files whose times or agents cannot match are counted as pruned and not read."""
    for hour in range(4):
        at_ns = DAY0_NS + hour * 60 * MINUTE_NS
        place.deliver([log_batch([f"h{hour}"], start=hour, from_ns=at_ns)])
        ingest_locally(place.url)
    hour_1 = question(from_ns=DAY0_NS + 60 * MINUTE_NS, to_ns=DAY0_NS + 61 * MINUTE_NS)
    answer = ask(place, hour_1)
    assert bodies(answer) == ["h1"]
    assert (answer.summary.segments_read, answer.summary.segments_pruned) == (1, 3)
    assert answer.summary.bytes_read > 0
    nobody = ask(place, question(agents=("aaa",)))
    assert (nobody.summary.segments_read, nobody.summary.segments_pruned) == (0, 4)


def test_all_kinds_come_back_as_they_were_sent(place: Deployment) -> None:
    """Metrics and entries are found too; entries without a time count by their acceptance."""
    kinds = ("logs", "metrics", "entries")
    batches = [make_batch(0, 4, kind=kind, agent=f"host-{kind}") for kind in kinds]
    bare = make_batch(5, 2, kind="entries", agent="host-3")
    place.deliver([*batches, bare])
    wide = {"from_ns": DAY0_NS, "to_ns": DAY0_NS + 3600 * NS_PER_S}
    for ingested in (False, True):
        if ingested:
            ingest_locally(place.url)
        metrics = ask(place, question(kind="metrics", **wide)).records
        assert [row["name"] for row in metrics] == ["m.0", "m.1", "m.2", "m.3"]
        entries = ask(place, question(kind="entries", **wide)).records
        assert [row["key"] for row in entries] == [bytes([n, 0]) for n in (5, 6, 0, 1, 2, 3)]
        assert [row["ts_ns"] is None for row in entries] == [True] * 2 + [False] * 4
        assert ask(place, question(kind="entries", **wide, agents=("host-3",))).summary.results == 2


def test_deletes_hide_at_once_and_respect_their_cut_off(place: Deployment) -> None:
    """A delete hides matches in lake and tail that were accepted until its cut-off, no others."""
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
    answer = ask(place, question())
    assert sorted(map(str, bodies(answer))) == ["plain", "secret late"]
    assert answer.summary.deletes_applied == 1
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
    assert bodies(ask(place, question())) == ["secret late"]


def test_a_delete_that_is_not_understood_stops_the_query(place: Deployment) -> None:
    """Rather no answer than one that shows what was deleted."""
    path = place.root / "deletes" / "v1"
    place.deliver([log_batch(["x"])])
    record = DeleteRecord(delete_id="2" * 26, kind="logs", accepted_until_unix_ns=1, agent_id="a")
    put_delete(place, record)
    stored = next(path.rglob("*2.json"))
    stored.write_bytes(stored.read_bytes().replace(b'"agent_id"', b'"agent_glob"'))
    with pytest.raises(InvalidRecord, match="delete is not valid"):
        ask(place, question())


def test_missing_and_corrupt_blobs_make_the_answer_partial(place: Deployment) -> None:
    """What cannot be read is named; the rest is shown."""
    good, gone = log_batch(["good"]), log_batch(["gone"], start=1)
    wrong = log_batch(["wrong"], start=2)
    place.deliver([good, wrong])
    place.accept([gone], blobs=False)
    place.enqueue([gone])
    place.put_blob(wrong, b"other bytes")
    answer = ask(place, question())
    assert bodies(answer) == ["good"]
    assert answer.summary.partial
    said = " ".join(answer.summary.reasons)
    assert "blob is missing" in said
    assert "other bytes" in said


def test_dead_letters_make_the_answer_partial_until_they_heal(place: Deployment) -> None:
    """A batch that ingestion could not read is missed aloud; once healed, it is in the answer."""
    lost = log_batch(["lost"], agent="host-9")
    place.deliver([log_batch(["good"])])
    place.accept([lost], blobs=False)
    place.enqueue([lost])
    ingest_locally(place.url)
    answer = ask(place, question())
    assert bodies(answer) == ["good"]
    assert answer.summary.reasons[0].startswith("1 batches could not be ingested (missing)")
    assert not ask(place, question(agents=("host-1",))).summary.partial
    assert not ask(place, question(kind="metrics")).summary.partial
    place.put_blob(lost)
    place.enqueue([lost])
    ingest_locally(place.url)
    healed = ask(place, question())
    assert sorted(map(str, bodies(healed))) == ["good", "lost"]
    assert not healed.summary.partial


def test_a_tail_over_its_bound_makes_the_answer_partial(place: Deployment) -> None:
    """What waits is read up to a bound, and the answer says how much was left out."""
    place.deliver([log_batch([f"line {n}"], start=n) for n in range(5)])
    answer = ask(place, question(), QuerySettings(tail_frames_max=2))
    assert answer.summary.results == 2
    assert answer.summary.reasons[0].startswith("3 batches that are not in the lake yet")


def test_a_backlog_over_its_bound_shows_the_newest(place: Deployment) -> None:
    """Of a long queue the newest work lists are read, and the answer says what was left out."""
    for number in range(6):
        place.deliver([log_batch([f"line {number}"], start=number)])
    answer = ask(place, question(), QuerySettings(tail_lists_max=2))
    assert sorted(map(str, bodies(answer))) == ["line 4", "line 5"]
    assert answer.summary.reasons[0].startswith("4 work lists of lane ")


def test_metric_series_by_step_and_aggregate(place: Deployment) -> None:
    """Points of a metric fall into whole steps, over lake and tail."""
    start_ns = DAY0_NS // MINUTE_NS * MINUTE_NS
    place.deliver([metric_batch([1, 2, 3, 4, 5, 6], from_ns=start_ns)])
    ingest_locally(place.url)
    place.deliver([metric_batch([10, 20], start=6, from_ns=start_ns + MINUTE_NS)])
    place.deliver([metric_batch([100], agent="host-2", from_ns=start_ns)])
    place.deliver([metric_batch([7], name="mem", start=8, from_ns=start_ns)])
    window = {"kind": "metrics", "from_ns": start_ns, "to_ns": start_ns + 2 * MINUTE_NS}
    wanted = {
        Aggregate.AVG: [121 / 7, 15.0],
        Aggregate.SUM: [121.0, 30.0],
        Aggregate.MIN: [1.0, 10.0],
        Aggregate.MAX: [100.0, 20.0],
        Aggregate.COUNT: [7.0, 2.0],
        Aggregate.LAST: [6.0, 20.0],
    }
    for aggregate, values in wanted.items():
        series = Series(metric="cpu", step_ns=MINUTE_NS, aggregate=aggregate)
        points = ask(place, question(**window, series=series)).points
        assert [(one.step_ns - start_ns, one.value) for one in points] == [
            (0, pytest.approx(values[0])),
            (MINUTE_NS, pytest.approx(values[1])),
        ]
    series = Series(metric="cpu", step_ns=MINUTE_NS, aggregate=Aggregate.MAX, by_agent=True)
    points = ask(place, question(**window, series=series)).points
    assert [(one.agent_id, one.value) for one in points] == [
        ("host-1", 6.0),
        ("host-2", 100.0),
        ("host-1", 20.0),
    ]


def test_a_query_past_its_time_is_stopped(place: Deployment) -> None:
    """A query that takes longer than it may is interrupted and says what to do."""
    place.deliver([log_batch(["x"])])
    ingest_locally(place.url)
    with pytest.raises(QueryTimedOut, match="narrow the time range"):
        ask(place, question(), QuerySettings(time_s_max=0.0))


@pytest.mark.parametrize("pattern", ["(", "a{1001}", "[z-a]", r"(?<=x)y", r"\1"])
def test_patterns_that_do_not_compile_are_refused(place: Deployment, pattern: str) -> None:
    """A regex that RE2 does not take gets one clear line."""
    with pytest.raises(BadUsage, match="regex does not compile") as caught:
        ask(place, question(text=pattern, regex=True))
    assert "\n" not in str(caught.value)


def test_a_pattern_that_would_hang_others_does_not_hang(place: Deployment) -> None:
    """A pattern of exponential fame runs in linear time over a long line."""
    place.deliver([log_batch(["a" * 100_000 + "!"])])
    answer = ask(place, question(text=r"^(a|a|aa)*$", regex=True))
    assert answer.summary.results == 0
    assert answer.summary.elapsed_ms < 5_000
