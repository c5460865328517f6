"""`sluice sql` and `sluice_query.sql`: SQL over the lake and the pending batches together."""

import asyncio
import json
import math
import mmap
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import CommandResult, sluice
from support.query_lake import (
    DAY0_NS,
    LINES,
    deployment,
    log_batch,
    metric_batch,
    overlapping_ingestions,
    put_delete,
)
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

import sluice_query
from sluice_protocol.errors import BadUsage, SluiceError
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S
from sluice_query.engine import QueryTimedOut, QueryTooLarge
from sluice_query.settings import QuerySettings

SETTINGS = QuerySettings(threads=2, time_s_max=20)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    made = deployment(tmp_path_factory.mktemp("sql"))
    made.deliver([log_batch(["first", "second"], attributes={"status": "500", "level": "error"})])
    values = [1.0, 5.0, 2.0, math.nan, 4.0]
    made.deliver([metric_batch(values, step_ns=60 * NS_PER_S, start=9)])
    ingest_locally(made.url)
    made.deliver([log_batch(["third"], start=2, from_ns=DAY0_NS + 5 * NS_PER_S)])
    return made


def _rows(place: Deployment, text: str, **given: str) -> list[tuple[object, ...]]:
    table = sluice_query.sql(place.url, text, settings=SETTINGS, **given)
    return [tuple(row.values()) for row in table.to_pylist()]


def _command(place: Deployment, *arguments: str) -> CommandResult:
    return sluice("sql", "--store", place.url, "--zone", "UTC", *arguments)


def test_a_view_has_lake_and_pending_records_with_their_fields(place: Deployment) -> None:
    text = "SELECT body, level, service, number(attributes['status']) + 1 FROM logs ORDER BY ts"
    assert _rows(place, text) == [
        ("first", "error", "web", 501.0),
        ("second", "error", "web", 501.0),
        ("third", None, "web", None),
    ]


def test_nan_is_found_although_the_statistics_of_files_omit_it(place: Deployment) -> None:
    text = "SELECT count(*) FILTER (WHERE isnan(value)), count(*) FROM metrics"
    assert _rows(place, text) == [(1, 5)]


def test_times_prune_and_compare_in_a_zone(place: Deployment) -> None:
    text = "SELECT body FROM logs WHERE ts >= '2026-09-21 16:13:21' ORDER BY ts"
    assert _rows(place, text, zone="Europe/Berlin") == [("second",), ("third",)]
    assert _rows(place, text) == []
    assert _rows(place, "SELECT body FROM logs", since=str(DAY0_NS + 2 * NS_PER_S)) == [("third",)]


def test_batches_are_those_of_the_ledger_and_pending_ones_once(place: Deployment) -> None:
    text = "SELECT seq_start, kind, record_count, in_lake FROM batches ORDER BY seq_start"
    assert _rows(place, text) == [
        (0, "logs", 2, True),
        (2, "logs", 1, False),
        (9, "metrics", 5, True),
    ]


def test_deleted_records_are_in_no_view(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    made.deliver([log_batch(["it's ? a secret", "kept"])])
    ingest_locally(made.url)
    made.deliver([log_batch(["it's ? a secret", "kept too"], start=2)])
    put_delete(
        made,
        DeleteRecord(
            delete_id="0" * 26,
            kind="logs",
            accepted_until_unix_ns=DAY0_NS,
            contains="it's ? a",
        ),
    )
    assert _rows(made, "SELECT body FROM logs ORDER BY body") == [("kept",), ("kept too",)]


def test_several_ingestions_and_pending_batches_are_counted_once(tmp_path: Path) -> None:
    made = overlapping_ingestions(tmp_path)
    text = "SELECT agent_id, count(*), count(DISTINCT seq) FROM logs GROUP BY 1 ORDER BY 1"
    assert _rows(made, text) == [(f"host-{n}", 4 * LINES, 4 * LINES) for n in (1, 2)]


def test_an_empty_store_has_every_table(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    text = "SELECT (SELECT count(*) FROM logs), count(*) FROM metrics, spans, entries, batches"
    assert _rows(made, text) == [(0, 0)]


def test_increase_and_rate_of_a_counter_that_starts_again(place: Deployment) -> None:
    text = "SELECT increase(list(value ORDER BY ts)) FROM metrics WHERE NOT isnan(value)"
    assert _rows(place, text) == [(4 + 2 + 2,)]
    assert _rows(place, "SELECT increase([7]), rate([1, 5], 2)") == [(None, 2.0)]


def test_describe_show_and_explain(place: Deployment) -> None:
    assert _rows(place, "DESCRIBE logs")[0][:2] == ("ts", "TIMESTAMP WITH TIME ZONE")
    tables = [row[0] for row in _rows(place, "SHOW TABLES;")]
    assert tables == ["logs", "metrics", "spans", "entries", "batches"]
    assert "Scan" in str(_rows(place, "EXPLAIN SELECT body FROM logs"))
    plan = _command(place, "EXPLAIN SELECT body FROM logs").stdout
    assert plan.count("\n") > 3
    assert plan.startswith("╭─ ")


def test_the_function_works_inside_a_running_event_loop(place: Deployment) -> None:
    async def notebook() -> int:
        return sluice_query.sql(place.url, "SELECT body FROM logs").num_rows

    assert asyncio.run(notebook()) == 3


HOSTILE = (
    "INSERT INTO logs VALUES (1)",
    "UPDATE logs SET body = ''",
    "DELETE FROM logs",
    "CREATE TABLE t AS SELECT 1",
    "CREATE VIEW v AS SELECT 1",
    "CREATE MACRO m() AS 1",
    "DROP VIEW logs",
    "ALTER VIEW logs RENAME TO l",
    "COPY logs TO '/tmp/stolen.csv'",
    "COPY (SELECT 1) TO '/tmp/stolen.parquet'",
    "EXPORT DATABASE '/tmp/stolen'",
    "IMPORT DATABASE '/tmp/stolen'",
    "ATTACH '/tmp/stolen.db'",
    "DETACH memory",
    "USE memory",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET memory_limit = '100GB'",
    "RESET memory_limit",
    "SET VARIABLE x = 1",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "EXPLAIN ANALYZE INSERT INTO logs SELECT 1",
    "EXPLAIN ANALYZE COPY logs TO '/tmp/stolen.csv'",
    "SELECT 1; SELECT 2",
    "",
    "-- nothing",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM 'http://localhost/x.parquet'",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_parquet('*.parquet')",
    "SELECT * FROM parquet_scan('*.parquet')",
    "SELECT * FROM parquet_metadata('*.parquet')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('logs')",
    "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_views()",
    "SELECT * FROM pragma_table_info('logs')",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM pg_catalog.pg_class",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM ledger",
    "SELECT * FROM pending_logs",
    "SELECT * FROM lake_logs",
    "SELECT * FROM HOSTILE",
    "SELECT * FROM (SELECT * FROM HOSTILE)",
    "WITH t AS (SELECT * FROM '/etc/passwd') SELECT * FROM t",
    "DESCRIBE '/etc/passwd'",
    "SUMMARIZE '/etc/passwd'",
    "SHOW ALL TABLES",
    "SHOW DATABASES",
    "SELECT getenv('HOME')",
    "SELECT current_setting('temp_directory')",
    "SELECT write_log('x')",
    "SELECT sleep_ms(100000000)",
    "SELECT repeat('x', 10000000000)",
    "SELECT repeat('x', 3000000000)",
    "SELECT 'x'.repeat(3000000000)",
    "SELECT body.repeat(3000000000) FROM logs",
    "SELECT system.main.repeat('x', 3000000000)",
    "SELECT lpad('x', 2000000000, 'y')",
    "SELECT rpad('x', 2000000000, 'y')",
    "SELECT range(10000000000)",
    "SELECT list_resize([1], 10000000000, 0)",
    "SELECT format('{:>2000000000}', 'x')",
    "SELECT printf('%2000000000d', 1)",
    "SELECT error('x')",
    "PIVOT logs ON body",
    "SELECT ? FROM logs",
    "SELECT $1",
    "SELECT " + "(" * 5_000 + "1" + ")" * 5_000,
    "\ud800",
)


@pytest.mark.daily(12)
@pytest.mark.parametrize(
    "text", HOSTILE, ids=[one[:50].encode(errors="replace") for one in HOSTILE]
)
def test_a_statement_that_does_more_than_read_the_tables_is_refused(
    place: Deployment, text: str
) -> None:
    with pytest.raises(BadUsage) as refused:
        sluice_query.sql(place.url, text, settings=SETTINGS)
    assert "\n" not in str(refused.value)
    assert not list(Path("/tmp").glob("stolen*"))  # noqa: S108 - named above


ENDLESS = (
    "SELECT count(*) FROM range(1000000000000)",
    "WITH RECURSIVE t AS (SELECT 1 a UNION ALL SELECT a + 1 FROM t) SELECT count(*) FROM t",
    "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range + b.range = -1",
    "SELECT list(range) FROM range(10000000000)",
    "SELECT a.range FROM range(100000) a, range(100000) b ORDER BY hash(a.range + b.range)",
)


@pytest.mark.daily(1)
@pytest.mark.parametrize("text", ENDLESS)
def test_time_and_memory_are_bounded(place: Deployment, text: str) -> None:
    settings = QuerySettings(threads=2, time_s_max=3, memory_bytes_max=128 << 20)
    with pytest.raises((QueryTimedOut, QueryTooLarge)):
        sluice_query.sql(place.url, text, settings=settings)


JOINED = (
    "WITH RECURSIVE t(n, s) AS (SELECT 0, 'abcdefgh' UNION ALL SELECT n + 1, s || s FROM t"
    " WHERE n < 33) SELECT max(length(s)) FROM t"
)
REPLACED = "SELECT length(replace(repeat('a', 1000000), 'a', repeat('b', 1000000)))"


@pytest.mark.daily(1)
@pytest.mark.parametrize("text", [REPLACED, JOINED], ids=["replaced", "joined"])
def test_a_huge_value_ends_the_command_and_not_the_machine(place: Deployment, text: str) -> None:
    command = (sys.executable, "-m", "sluice_cli", "sql", text, "--store", place.url)
    limit = ("--memory-bytes-max", str(256 << 20))
    done = subprocess.run(
        (*command, *limit), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "exceeded its memory limit" in line
    assert "exception_type" not in line


def test_the_bound_of_memory_is_for_what_a_command_adds(place: Deployment) -> None:
    with mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
        done = _command(place, "SELECT count(*) FROM logs", "--memory-bytes-max", str(256 << 20))
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_large_result_is_refused_for_a_table_and_streamed_by_the_command(
    place: Deployment,
) -> None:
    settings = QuerySettings(threads=2, memory_bytes_max=64 << 20)
    with pytest.raises(QueryTooLarge, match="add LIMIT"):
        sluice_query.sql(place.url, "SELECT * FROM range(100000000)", settings=settings)
    done = _command(place, "SELECT range AS n FROM range(200000)", "--output", "csv")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["n", *map(str, range(200_000))]


def test_the_summary_is_metadata_of_the_table(place: Deployment) -> None:
    table = sluice_query.sql(place.url, "SELECT seq_start FROM batches", settings=SETTINGS)
    summary = json.loads(table.schema.metadata[b"sluice.summary"])
    assert (summary["results"], summary["reasons"]) == (3, [])
    assert summary["elapsed_ms"] > 0


def test_errors_name_the_word_and_a_near_name(place: Deployment) -> None:
    with pytest.raises(SluiceError, match=r"`bdy` not found.*`body`, line=`1`, column=`8`"):
        _rows(place, "SELECT bdy FROM logs")
    with pytest.raises(SluiceError, match="did you mean logs"):
        _rows(place, "SELECT * FROM lgs")
    with pytest.raises(SluiceError, match=r"near `\+`, line=`2`, column=`3`"):
        _rows(place, "SELECT 1\n  +")


def test_the_command_prints_a_table_and_the_summary(place: Deployment) -> None:
    done = _command(place, "SELECT ts, body FROM logs ORDER BY ts", "--limit", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "ts                    body",
        "────────────────────  ──────",
        "2026-09-21T14:13:20Z  first",
        "2026-09-21T14:13:21Z  second",
    ]
    assert done.stderr.startswith("2 rows (more exist: raise --limit); read 1 segments")
    assert "1 batches not in the lake yet" in done.stderr


def test_the_command_writes_json_and_refuses_with_one_line(place: Deployment) -> None:
    done = _command(place, "SELECT body FROM logs ORDER BY ts", "--output", "json")
    *rows, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["body"] for row in rows] == ["first", "second", "third"]
    assert last["summary"]["results"] == 3
    assert last["summary"]["partial"] is False
    refused = _command(place, "DROP VIEW logs")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert len(refused.stderr.splitlines()) == 1


def test_without_a_range_all_records_are_read(tmp_path: Path) -> None:
    """Also those before 1970, in the lake and pending, for the command and for Python."""
    place = deployment(tmp_path)
    place.deliver([log_batch(["before"], from_ns=-NS_PER_S)])
    ingest_locally(place.url)
    place.deliver([log_batch(["long before"], start=1, from_ns=-(10**9) * NS_PER_S)])
    text = "SELECT body FROM logs ORDER BY ts"
    assert _rows(place, text) == [("long before",), ("before",)]
    assert _rows(place, "SELECT record_count FROM batches") == [(1,), (1,)]
    done = _command(place, text, "--output", "csv")
    assert done.stdout.splitlines() == ["body", "long before", "before"]


def test_a_deleted_text_with_nul_hides_no_other_text(tmp_path: Path) -> None:
    place = deployment(tmp_path)
    place.deliver([log_batch(["ab", "a\0b", "it's"])])
    put_delete(
        place,
        DeleteRecord(
            delete_id="0" * 26, kind="logs", accepted_until_unix_ns=DAY0_NS, contains="a\0b"
        ),
    )
    assert _rows(place, "SELECT body FROM logs ORDER BY ts") == [("ab",), ("it's",)]
