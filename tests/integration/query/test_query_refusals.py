"""Lakes that cannot be read rightly are refused by name, and bad questions in one line."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.query_lake import DAY0_NS, ask, deployment, log_batch, question
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_protocol.errors import BadUsage
from sluice_query.errors import LakeRefused
from sluice_query.request import (
    Aggregate,
    Query,
    Series,
    check_query,
    parse_duration,
    parse_instant,
)


@pytest.fixture
def place(tmp_path: Path) -> Deployment:
    made = deployment(tmp_path)
    made.deliver([log_batch(["x"])])
    ingest_locally(made.url)
    return made


def _refused(place: Deployment) -> str:
    with pytest.raises(LakeRefused) as caught:
        ask(place, question())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _add_to_log(place: Deployment, *actions: dict[str, object]) -> None:
    log = place.root / "lake" / "v1" / "logs" / "_delta_log"
    version = DeltaTable(str(log.parent)).version() + 1
    lines = "\n".join(json.dumps(action) for action in actions)
    (log / f"{version:020d}.json").write_text(lines)


def _protocol(feature: str) -> dict[str, object]:
    if feature == "clustering":  # a feature of writers alone
        writers = ["clustering", "domainMetadata"]
        return {
            "protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": writers}
        }
    both = {"readerFeatures": [feature], "writerFeatures": [feature]}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **both}}


@pytest.mark.parametrize("feature", ["deletionVectors", "columnMapping", "clustering"])
def test_tables_whose_files_alone_would_lie_are_refused(place: Deployment, feature: str) -> None:
    """Deletion vectors, column mapping and clustering are refused by name."""
    _add_to_log(place, _protocol(feature))
    assert f"its feature {feature} must be off" in _refused(place)


def test_a_path_that_is_not_a_table_is_refused(place: Deployment) -> None:
    """A folder with other things, and a file, are no tables."""
    table = place.root / "lake" / "v1" / "logs"
    shutil.rmtree(table / "_delta_log")
    assert "not a Delta table: move it away" in _refused(place)
    shutil.rmtree(table)
    table.write_text("no folder")
    assert "lake table refused" in _refused(place)


def test_a_damaged_log_is_refused(place: Deployment) -> None:
    """A log that cannot be read is refused, not read as empty."""
    log = place.root / "lake" / "v1" / "logs" / "_delta_log"
    for path in log.glob("*.json"):
        path.write_text("{ not json")
    assert "lake table refused" in _refused(place)


def test_another_schema_is_refused(place: Deployment) -> None:
    """A table with a column missing or of another type names the column."""
    table = place.root / "lake" / "v1" / "logs"
    shutil.rmtree(table)
    write_deltalake(str(table), pa.table({"agent_id": ["a"], "accepted_date": ["2026-01-01"]}))
    assert "column boot_id must be string, is nothing" in _refused(place)


def test_a_file_that_is_gone_is_named(place: Deployment) -> None:
    """A data file that the log names and nobody has makes an error, never a short answer."""
    for path in (place.root / "lake" / "v1" / "logs").rglob("*.parquet"):
        path.unlink()
    assert "a data file cannot be read" in _refused(place)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"to_ns": DAY0_NS}, "ends before it starts"),
        ({"to_ns": DAY0_NS - 1}, "ends before it starts"),
        ({"limit": 0}, "limit must be 1"),
        ({"limit": 100_001}, "limit must be 1"),
        ({"text": ""}, "text must be 1"),
        ({"text": "x" * 1_001}, "text must be 1"),
        ({"text": "\ud800"}, "not valid UTF-8"),
        ({"regex": True}, "needs a text"),
        ({"text": "x", "kind": "entries"}, "entries are opaque"),
        ({"series": Series(metric="m", step_ns=1)}, "series is made of metrics"),
        ({"series": Series(metric="m", step_ns=1), "kind": "metrics"}, "step is too short"),
        (
            {"series": Series(metric="m", step_ns=10**15), "kind": "metrics", "stats_only": True},
            "no stats-only form",
        ),
    ],
)
def test_bad_questions_get_one_line(changes: dict[str, object], says: str) -> None:
    """A question that cannot be answered is refused before anything is read."""
    with pytest.raises(BadUsage, match=says):
        check_query(question(**changes))


def test_good_questions_pass() -> None:
    """The refusals above are of one change each."""
    assert check_query(question()) == question()
    series = Series(metric="m", step_ns=10**12, aggregate=Aggregate.LAST)
    assert isinstance(check_query(question(kind="metrics", series=series)), Query)


def test_instants_and_durations_have_plain_forms() -> None:
    """RFC 3339, Unix ns, now, and how long ago; anything else is refused."""
    now = parse_instant("1790000000000000000", question().from_ns)
    assert parse_instant("now", now) == now
    assert parse_instant("15m", now) == parse_instant("-15m", now) == now - 900 * 10**9
    assert parse_instant("2026-09-21T14:13:20Z", now) == now
    assert parse_duration("250ms") == 250_000_000
    for text in ("", "yesterday", "1w", "0s", "1.5h", "15 m"):
        with pytest.raises(BadUsage):
            parse_instant(text, now)
        with pytest.raises(BadUsage, match="duration"):
            parse_duration(text)
