"""Queries and SQL over a lake in a bucket of the real S3 server."""

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import sluice
from support.query_lake import DAY0_NS, bodies, log_batch, make_query, put_delete, run_query
from support.spark_lake import make_batch
from support.spark_local import ingest_locally
from support.store_buckets import Bucket, versitygw_deployment

import sluice_query
from sluice_lake.delta import find_table
from sluice_lake.errors import TableRefused
from sluice_lake.tables import LOGS
from sluice_protocol.errors import BadUsage
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S
from sluice_query.engine import QueryTimedOut
from sluice_query.request import RecordField, TopValues
from sluice_query.settings import QuerySettings
from sluice_query.views import TopValuesResult

pytestmark = pytest.mark.s3


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Bucket]:
    with versitygw_deployment(tmp_path) as made:
        yield made


def test_a_lake_in_a_bucket_returns_the_same_records_as_a_directory(place: Bucket) -> None:
    place.deliver([log_batch(["GET /a", "GET /b", "PUT /c"], attributes={"k": "v"})])
    ingest_locally(place.url)
    place.deliver([log_batch(["GET /d"], start=3, from_ns=DAY0_NS + 9 * NS_PER_S)])
    result = run_query(place, make_query(text="GET"))
    assert bodies(result) == ["GET /a", "GET /b", "GET /d"]
    assert (result.summary.segments_read, result.summary.waiting_batches) == (1, 1)
    late = make_query("{} |~ `/[cd]$`", from_ns=DAY0_NS + NS_PER_S)
    assert bodies(run_query(place, late)) == ["PUT /c", "GET /d"]
    tagged = make_query(attributes=(("k", "v"),), stats_only=True)
    assert run_query(place, tagged).summary.results == 3
    nothing = run_query(place, make_query(from_ns=DAY0_NS + 3600 * NS_PER_S))
    assert (nothing.summary.segments_pruned, nothing.summary.results) == (1, 0)


def test_files_of_a_bucket_are_searched_with_and_without_a_promoted_column(place: Bucket) -> None:
    """One file of each, and a pending batch: equal values are found in all of them."""
    for start, words in ((0, ""), (1, "attributes.k text"), (2, "")):
        if words:
            done = sluice("columns", "add", "logs", *words.split(), "--store", place.url)
            assert done.returncode == 0, done.stderr
        place.deliver([log_batch([f"GET /{start}"], start=start, attributes={"k": "v"})])
        place.deliver([log_batch(["PUT /"], start=start, agent="host-2", attributes={"k": "w"})])
        if start < 2:
            ingest_locally(place.url)
    result = run_query(place, make_query('{k="v"}'))
    assert sorted(map(str, bodies(result))) == ["GET /0", "GET /1", "GET /2"]
    top = run_query(place, make_query(view=TopValues(field=RecordField("attributes", "k")))).view
    assert isinstance(top, TopValuesResult)
    assert [(one.value, one.count) for one in top.values] == [("v", 3), ("w", 3)]


def test_a_data_file_that_is_missing_from_a_bucket_is_an_error(
    place: Bucket, tmp_path: Path
) -> None:
    """The result is never shortened silently."""
    place.deliver([log_batch(["x"])])
    ingest_locally(place.url)
    assert find_table(place.url, LOGS) is not None
    for path in (tmp_path / "data").rglob("*.parquet"):
        path.unlink()
    with pytest.raises(TableRefused, match="data file is missing"):
        run_query(place, make_query())


def test_data_without_a_log_in_a_bucket_is_refused(place: Bucket, tmp_path: Path) -> None:
    """It is never treated as a table that does not exist yet."""
    assert find_table(place.url, LOGS) is None
    place.deliver([log_batch(["x"])])
    ingest_locally(place.url)
    for path in (tmp_path / "data").rglob("lake/v1/logs/_delta_log/*.json"):
        path.unlink()
    with pytest.raises(TableRefused, match="not a Delta table"):
        find_table(place.url, LOGS)


def test_sql_has_every_table_of_a_bucket_with_deletes_and_promoted_columns(place: Bucket) -> None:
    """Two files, of which one has the column, and pending batches."""
    kinds = ("logs", "metrics", "spans", "entries")
    for start in (0, 100, 200):
        if start == 100:
            added = ("logs", "attributes.path", "text", "--store", place.url)
            assert sluice("columns", "add", *added).returncode == 0
        for number, kind in enumerate(kinds):
            place.deliver([make_batch(start, kind=kind, agent=f"host-{number}")])
        if start < 200:
            ingest_locally(place.url)
    accepted_until_ns = place.sent[0].manifest.accepted_at_unix_ns
    put_delete(
        place,
        DeleteRecord(
            delete_id="0" * 26,
            kind="logs",
            accepted_until_unix_ns=accepted_until_ns,
            attributes={"path": "/p/1"},
        ),
    )
    text = "SELECT " + ", ".join(f"(SELECT count(*) FROM {kind}) AS {kind}" for kind in kinds)  # noqa: S608 - constants
    text += ", (SELECT list(DISTINCT in_lake ORDER BY in_lake) FROM batches) AS lake"
    text += ", (SELECT sum(record_count) FROM batches) AS sent"
    text += ", (SELECT count(*) FROM metrics WHERE isnan(value)) AS nan"
    [row] = sluice_query.sql(place.url, text).to_pylist()
    logs = [log for one in place.sent if one.manifest.kind == "logs" for log in one.rows]
    kept = [log for log in logs if log[-1].get("path") != "/p/1"]
    assert 0 < len(kept) < len(logs) == 30
    metrics = [one for sent in place.sent if sent.manifest.kind == "metrics" for one in sent.rows]
    nan = sum(math.isnan(struct.unpack("<d", one[5])[0]) for one in metrics)
    assert nan
    assert row == {
        **dict.fromkeys(kinds, 30),
        "logs": len(kept),
        "lake": [False, True],
        "sent": 120,
        "nan": nan,
    }
    text = "SELECT attr_path, attributes['path'], body FROM logs WHERE attr_path = '/p/2'"
    found = [tuple(one.values()) for one in sluice_query.sql(place.url, text).to_pylist()]
    expected = [("/p/2", "/p/2", log[4]) for log in kept if log[-1].get("path") == "/p/2"]
    assert sorted(found) == sorted(expected)


def test_sql_of_a_bucket_reads_the_tables_only_and_ends(place: Bucket) -> None:
    """No other object of the bucket, no address, no file; nothing is written or runs on."""
    place.deliver([log_batch(["x"] * 50)])
    ingest_locally(place.url)
    [file] = sluice_query.sql(place.url, "SELECT count(*) AS n FROM logs").to_pylist()
    assert file == {"n": 50}
    root, _, options = place.url.partition("?endpoint=")
    inside, endpoint = f"{root}/lake/v1/logs", options.partition("&")[0]
    for text in (
        f"FROM '{inside}/x.parquet'",
        f"FROM read_parquet('{inside}/*.parquet')",
        f"FROM read_text('{root}/authority.json')",
        f"FROM read_csv('{endpoint}/lake')",
        f"FROM glob('{inside}/*')",
        "SELECT * FROM read_text('/etc/passwd')",
        f"COPY logs TO '{inside}/stolen.parquet'",
        f"ATTACH '{inside}/stolen.db'",
        "INSTALL httpfs",
        "CREATE SECRET (TYPE s3)",
        "SELECT * FROM duckdb_secrets()",
        "DELETE FROM logs",
    ):
        with pytest.raises(BadUsage) as refused:
            sluice_query.sql(place.url, text)
        assert "\n" not in str(refused.value)
    endless = "SELECT count(*) FROM logs a, logs b, logs c, logs d, logs e, logs f"
    endless += " WHERE hash(a.seq, b.seq, c.seq, d.seq, e.seq, f.seq) = 0"
    with pytest.raises(QueryTimedOut):
        sluice_query.sql(place.url, endless, settings=QuerySettings(time_s_max=3))


def test_the_command_reads_tables_of_a_bucket(place: Bucket) -> None:
    place.deliver([log_batch(["first"])])
    ingest_locally(place.url)
    place.deliver([log_batch(["second"], start=1, from_ns=DAY0_NS + NS_PER_S)])
    text = "SELECT body FROM logs ORDER BY ts"
    done = sluice("sql", text, "--store", place.url, "--output", "csv")
    assert (done.returncode, done.stdout) == (0, "body\nfirst\nsecond\n"), done.stderr
    assert "1 batches not in the lake yet" in done.stderr
    refused = sluice("sql", "SELECT * FROM 's3://lake/x.parquet'", "--store", place.url)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert len(refused.stderr.splitlines()) == 1
