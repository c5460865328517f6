"""Compaction removes what a client has sent twice in batches that it cut again."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.builders import manifest_of
from support.spark_lake import T0_NS, Deployment, Sent
from support.spark_local import ingest_locally

from sluice_lake.data_files import DataFile, list_files
from sluice_lake.tables import LOGS
from sluice_protocol.columns import Columns
from sluice_protocol.frame import encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.manifests import encode_record
from sluice_protocol.record_deletes import DeleteRecord, delete_key
from sluice_protocol.records import (
    LogRecord,
    MetricPoint,
    logs_from_records,
    metrics_from_records,
)
from sluice_spark.compaction import job as compact_module
from sluice_spark.compaction import repetitions
from sluice_spark.compaction.deleted_rows import FileDeletes
from sluice_spark.compaction.job import CompactReport, run_compact
from sluice_spark.compaction.repetitions import (
    RepetitionRemover,
    RepetitionRules,
    RepetitionsNotProved,
)
from sluice_spark.failpoints import FailPoint
from sluice_spark.settings import CompactSettings

pytestmark = pytest.mark.spark
DAY_NS = 86_400 * 10**9
FILE_KEY = ("log.file.path", "log.offset")
OPEN = CompactSettings(open_partitions=True, dedupe=FILE_KEY, dedupe_metrics=True)
DAEMON = (("host.name", "h1"),)


def line(offset: int, *, body: str | None = None, ts_ns: int = T0_NS) -> LogRecord:
    return LogRecord(
        ts_ns=ts_ns,
        body=f"line at {offset}" if body is None else body,
        attributes={"log.file.path": "/var/log/app", "log.offset": str(offset)},
    )


def request(
    records: Sequence[LogRecord] | Sequence[MetricPoint],
    *,
    at_ns: int = T0_NS,
    principal: str = "shop",
    resource: tuple[tuple[str, str], ...] = DAEMON,
) -> Sent:
    """Return the batch that a gateway makes of one large request."""
    columns: Columns
    if isinstance(records[0], LogRecord):
        columns = logs_from_records([one for one in records if isinstance(one, LogRecord)])
    else:
        columns = metrics_from_records([one for one in records if isinstance(one, MetricPoint)])
    boot = hashlib.sha256(f"{principal} {at_ns} {records}".encode()).hexdigest()[:32]
    who = Identity(
        agent_id=f"door:{principal}:{boot[:2]}", boot_id=boot, seq_start=0, seq_end=len(records) - 1
    )
    frame = encode_frame(identity=who, columns=columns, resource=resource)
    return Sent(manifest=manifest_of(frame, at_ns=at_ns), frame=frame, rows=())


def lake_of(tmp_path: Path, *batches: Sent) -> Deployment:
    """Return a lake with one data file for each batch."""
    deployment = Deployment(tmp_path, lanes=1).init()
    for one in batches:
        deployment.deliver([one])
        ingest_locally(deployment.url)
    return deployment


def compact(spark: Any, deployment: Deployment, settings: CompactSettings = OPEN) -> CompactReport:
    return run_compact(spark, deployment.url, settings)


def bodies(deployment: Deployment) -> list[str]:
    return sorted(row["body"] for row in deployment.rows("logs"))


SHOP_ONLY = [
    request([line(101), line(101), line(102)]),
    request([line(101)], principal="bank"),
    request([line(102, body="the file was rotated")], at_ns=T0_NS + 1),
    request(
        [LogRecord(ts_ns=T0_NS, body="line at 102", severity=9, attributes=line(102).attributes)],
        at_ns=T0_NS + 2,
    ),
    request(
        [LogRecord(ts_ns=T0_NS, body="line at 102", attributes={"log.offset": "102"})] * 2,
        at_ns=T0_NS + 3,
    ),
    request([line(102)], at_ns=T0_NS + DAY_NS + 10**9),
]
"""No repetitions: another sender, body or severity, a record that a request contains twice, one
without an attribute, and one after the window.
"""
CUT = [
    request([line(n) for n in range(10)]),
    request([line(n, ts_ns=T0_NS + 7) for n in range(5, 15)], at_ns=T0_NS + DAY_NS // 2),
]
"""Five lines of the first are in the second too, accepted on the next day with another time."""
DELETED = [
    request([line(200, body="hidden")]),
    request([line(200, body="hidden")], at_ns=T0_NS + 10 * 10**9),
]
"""A delete hides the first, so it is no witness of the second."""
DELETE = DeleteRecord(
    delete_id="01" + "D" * 24,
    kind="logs",
    accepted_until_unix_ns=T0_NS + 10**9,
    contains="hidden",
)


def points() -> list[Sent]:
    """Three of four points are in a second batch; a zero and two stale markers are not."""
    inside = [
        MetricPoint(ts_ns=T0_NS + n, name="m", value=n, attributes={"a": "1"}) for n in range(4)
    ]
    moved = [
        MetricPoint(
            ts_ns=one.ts_ns, name="m", value=one.value, attributes={"host.name": "h1", "a": "1"}
        )
        for one in inside[1:]
    ]
    other = [MetricPoint(ts_ns=T0_NS, name="m", value=-0.0, attributes={"a": "1"})]
    stale = [MetricPoint(ts_ns=T0_NS, name="m", value=float("nan"))]
    return [
        request(inside),
        request(moved, at_ns=T0_NS + 1, resource=()),
        request(other, at_ns=T0_NS + 2),
        request(stale, at_ns=T0_NS + 3),
        request(stale, at_ns=T0_NS + 4),
    ]


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """One lake before and after its compactions.

    Attributes:
        dry: The report of a dry run, before everything else.
        versions: Versions of the table `logs` around the dry run.
        first: The report of the first compaction.
        bodies: The lines after it.
        boots: The boot of each line after it, by its body.
        points: The number of points after it.
        second: The report of a compaction after two lines were sent again.
        bodies_again: The lines after it.
    """

    dry: CompactReport
    versions: tuple[int, int]
    first: CompactReport
    bodies: list[str]
    boots: dict[str, str]
    points: int
    second: CompactReport
    bodies_again: list[str]


@pytest.fixture(scope="module")
def compacted(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Compacted:
    deployment = Deployment(tmp_path_factory.mktemp("repetitions"), lanes=1).init()
    deployment.deliver([*SHOP_ONLY, *CUT, *DELETED, *points()])
    ingest_locally(deployment.url)
    path = deployment.root / delete_key(DELETE.delete_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_record(DELETE))
    before = deployment.table("logs").version()
    dry = compact(spark, deployment, replace(OPEN, dry_run=True))
    versions = (before, deployment.table("logs").version())
    first = compact(spark, deployment)
    rows = deployment.rows("logs")
    found, stored = bodies(deployment), len(deployment.rows("metrics"))
    deployment.deliver([request([line(101), line(101)], at_ns=T0_NS + 10**9)])
    ingest_locally(deployment.url)
    return Compacted(
        dry=dry,
        versions=versions,
        first=first,
        bodies=found,
        boots={row["body"]: row["boot_id"] for row in rows},
        points=stored,
        second=compact(spark, deployment),
        bodies_again=bodies(deployment),
    )


def test_lines_that_were_cut_into_other_batches_are_stored_once(compacted: Compacted) -> None:
    """The first copy stays. Only repetitions and deleted rows are removed."""
    assert (compacted.first.repetitions, compacted.first.conflicts) == (5 + 3, 0)
    assert compacted.first.dropped_rows == 5 + 3 + 1
    cut = [one for one in compacted.bodies if one in {f"line at {n}" for n in range(15)}]
    assert cut == sorted(f"line at {n}" for n in range(15))
    assert compacted.boots["line at 7"] == CUT[0].manifest.boot_id


def test_only_true_repetitions_are_removed(compacted: Compacted) -> None:
    """A later request with lines that are stored is removed, and nothing of an earlier one."""
    assert compacted.bodies.count("line at 101") == 3
    assert compacted.bodies.count("line at 102") == 5
    assert compacted.bodies.count("the file was rotated") == 1
    assert (compacted.second.repetitions, compacted.second.conflicts) == (2, 0)
    assert compacted.bodies_again == compacted.bodies


def test_points_of_one_series_and_time_are_stored_once(compacted: Compacted) -> None:
    """The resource of a batch and the attributes of a point are the same series."""
    assert compacted.points == 4 + 1 + 2


def test_rows_that_a_delete_hides_are_no_witnesses(compacted: Compacted) -> None:
    """A record that was sent again after its delete stays visible.

    At the dry run both rows are stored, and no repetition is counted for the visible one.
    """
    assert compacted.dry.repetitions == 5 + 3
    assert compacted.bodies.count("hidden") == 1
    assert compacted.boots["hidden"] == DELETED[1].manifest.boot_id


def test_a_dry_run_counts_and_changes_nothing(compacted: Compacted) -> None:
    assert compacted.dry.repetitions == 5 + 3
    assert compacted.versions[0] == compacted.versions[1]


@pytest.mark.long
def test_files_are_examined_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs read what no earlier run has read; a late file leads to its date and the next.

    The examination itself, which needs a JVM, is replaced.
    """
    days: list[str] = []

    def note(self: RepetitionRemover, files: Sequence[DataFile], day: str) -> int:
        days.append(day)
        return 0

    monkeypatch.setattr(RepetitionRemover, "_examine", note)
    deployment = lake_of(
        tmp_path, *(request([line(n)], at_ns=T0_NS + n * DAY_NS) for n in (0, 1, 5))
    )

    def run(*attributes: str) -> None:
        remover = RepetitionRemover(
            spark=None,
            store_url=deployment.url,
            rules=RepetitionRules(kind="logs", attributes=attributes, window_s=86_400),
            deletes=FileDeletes(every=(), new=()),
            treated=(),
            dry_run=False,
            failpoint=FailPoint(),
            replace=lambda *_: True,
        )
        remover.run(lambda: list_files(deployment.table("logs"), LOGS))

    run(*FILE_KEY)
    assert len(days) == 3
    run(*FILE_KEY)
    assert len(days) == 3
    deployment.deliver([request([line(77)], at_ns=T0_NS + 10**9)])
    ingest_locally(deployment.url)
    run(*FILE_KEY)
    assert days[3:] == days[:2]
    run("log.offset")
    assert days[5:] == days[:3]


class Crashed(Exception):
    """The end of a process."""


def crash() -> None:
    raise Crashed


LATER = [pytest.param(visit, marks=pytest.mark.long) for visit in (2, 3)]


@pytest.mark.parametrize("visit", [1, *LATER])
@pytest.mark.parametrize(
    "step",
    [
        pytest.param("compact_after_write", marks=pytest.mark.long),
        pytest.param("compact_after_commit", marks=pytest.mark.long),
        "repetitions_before_record",
    ],
)
def test_a_crash_at_any_step_is_completed_by_the_next_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, visit: int
) -> None:
    """No record is lost or doubled, and the next run removes what is left.

    The first rewrite merges files, the others remove the repetitions of two dates.
    """
    deployment = lake_of(
        tmp_path,
        request([line(n) for n in range(4)]),
        request([line(n) for n in range(2, 6)], at_ns=T0_NS + 60 * 10**9),
        request([line(n) for n in range(4, 8)], at_ns=T0_NS + DAY_NS // 2),
    )
    with monkeypatch.context() as patch:
        failpoint = FailPoint(step=step, visit=visit, action=crash)
        patch.setattr(compact_module, "read_failpoint", lambda: failpoint)
        if step == "repetitions_before_record" and visit > 2:
            compact(spark, deployment)  # two dates
        else:
            with pytest.raises(Crashed):
                compact(spark, deployment)
    assert set(bodies(deployment)) == {f"line at {n}" for n in range(8)}
    compact(spark, deployment)
    assert bodies(deployment) == sorted(f"line at {n}" for n in range(8))


def test_a_wrong_plan_is_not_committed(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof reads the new files: a defect that removes both copies changes nothing."""
    monkeypatch.setattr(repetitions, "_without", lambda rules, removed, rows: rows.where("false"))
    deployment = lake_of(tmp_path, request([line(1)]), request([line(1), line(2)], at_ns=T0_NS + 5))
    with pytest.raises(RepetitionsNotProved):
        compact(spark, deployment)
    assert bodies(deployment) == ["line at 1", "line at 1", "line at 2"]


@pytest.mark.long
def test_a_witness_that_another_run_replaces_stops_the_removal(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal is committed only while the file of the witness is in the table."""
    deployment = lake_of(
        tmp_path, request([line(1)]), request([line(1)], at_ns=T0_NS + DAY_NS // 2 + DAY_NS // 4)
    )
    prove = repetitions.RepetitionRemover._prove

    def lose_witness(self: Any, *arguments: Any) -> None:
        prove(self, *arguments)
        table = deployment.table("logs")
        (first, *_) = list_files(table, LOGS)
        table.delete(f"accepted_date = '{first.partition}'")

    monkeypatch.setattr(repetitions.RepetitionRemover, "_prove", lose_witness)
    report = compact(spark, deployment)
    assert (report.conflicts, report.repetitions) == (1, 0)
    assert bodies(deployment) == ["line at 1"]
