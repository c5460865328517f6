"""The tasks of an engineer on call, with the real command, compared with truth from plain events.

Half of the records are in the lake and half are pending. `SLUICE_LONG_TIMES=100` has 300,000.
"""

import csv
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from io import StringIO
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from support.commands import make_java_home
from support.local_deployment import (
    LocalDeployment,
    clean_environment,
    free_ports,
    run_sluice,
    running,
)
from support.repetitions import times
from support.shop_world import (
    Event,
    Request,
    counter_request,
    make_events,
    requests_of,
    spans_request,
)
from support.spark_local import ingest_locally, pending_rows

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

S_NS = 10**9
HOUR_S = 3600
LIMIT_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """A running deployment and the events of one hour that were sent to it."""

    deployment: LocalDeployment
    start_s: int
    events: list[Event]
    counters: dict[str, list[tuple[int, int]]]

    @property
    def store_path(self) -> Path:
        return self.deployment.folder / ".sluice"

    def send(self, request: Request) -> None:
        token = (self.deployment.folder / ".sluice-up/token").read_text().strip()
        url = f"http://{self.deployment.state['addresses']['gateway']}{request.path}"
        headers = {"Content-Type": request.content_type, "Authorization": f"Bearer {token}"}
        with urllib.request.urlopen(
            urllib.request.Request(url, request.body, headers), timeout=60
        ) as response:
            assert response.status == 200

    def run(self, *words: str, end_s: int = HOUR_S) -> str:
        """Run a command over the hour and return its output."""
        span = ("--from", str(self.start_s), "--to", str(self.start_s + end_s), "--zone", "UTC")
        return self.command(*words, *span)

    def command(self, *words: str) -> str:
        done = run_sluice(self.deployment.folder, *words)
        assert done.returncode == 0, done.stderr
        assert "partial" not in done.stderr, done.stderr
        return done.stdout

    def records(self, *words: str) -> list[dict[str, Any]]:
        *found, last = map(json.loads, self.run("query", *words, "--json").splitlines())
        assert not last["summary"]["partial"], last
        return found

    def is_whole(self) -> bool:
        """Return True if an answer is complete; a busy gateway reports its batches late."""
        *_, last = self.run("query", "--limit", "1", "--json").splitlines()
        return not json.loads(last)["summary"]["partial"]

    def rows(self, statement: str) -> list[list[str]]:
        _, *found = csv.reader(StringIO(self.run("sql", statement, "--output", "csv")))
        return found

    def series(self, *words: str) -> dict[tuple[int, str], float]:
        """Return the values of a series by second of the hour and label."""
        # The end is exclusive, and the last window ends with the hour.
        found = {}
        for line in self.run("query", *words, end_s=HOUR_S + 1).splitlines():
            at, label, value = line.split(" ")
            second = int(datetime.fromisoformat(at).timestamp()) - self.start_s
            found[second, label.partition("=")[2]] = float(value)
        return found

    def window(self, event: Event, step_s: int) -> int:
        """Return the second of the hour at which the window (t - step, t] of an event ends."""
        return -(-(event.at_ns - self.start_s * S_NS) // (step_s * S_NS)) * step_s


def _counters(start_s: int) -> dict[str, list[tuple[int, int]]]:
    """Return a sample of each minute for two paths; one counter restarts twice."""
    values: dict[str, list[tuple[int, int]]] = {"/cart": [], "/pay": []}
    pay = 0
    for minute in range(60):
        pay = 5 if minute in (20, 41) else pay + minute
        at_ns = (start_s + minute * 60 + 30) * S_NS
        values["/pay"].append((at_ns, pay))
        values["/cart"].append((at_ns, 10 * minute))
    return values


def _wait(condition: Callable[[], bool], what: str, limit_s: float = 300) -> None:
    started_s = time.monotonic()
    while not condition():
        assert time.monotonic() - started_s < limit_s, what
        time.sleep(0.5)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    # A series has values at multiples of its step, so the hour of the shop is a full one.
    start_s = (int(time.time()) - 60) // HOUR_S * HOUR_S - HOUR_S
    first_ns, end_ns = (start_s + 1) * S_NS, (start_s + HOUR_S) * S_NS
    events = make_events(times(3_000), start_ns=first_ns, end_ns=end_ns, seed=1)
    # Without Java the deployment ingests nothing, so the test decides what is in the lake.
    with running(folder, *free_ports(), JAVA_HOME=make_java_home(folder, None)) as deployment:
        made = Shop(
            deployment=deployment, start_s=start_s, events=events, counters=_counters(start_s)
        )
        half = len(events) // 2
        early = [*requests_of(events[:half])]
        for request in early:
            made.send(request)
        url = f"file://{made.store_path}"
        _wait(lambda: len(pending_rows(url)) >= len(early), "the batches were not enqueued")
        ingest_locally(url)
        for request in requests_of(events[half:]):
            made.send(request)
        made.send(counter_request("http_requests_total", made.counters))
        made.send(spans_request(events[:200]))
        _wait(made.is_whole, "the answers are partial")
        yield made


def _lines(events: Iterable[Event]) -> list[str]:
    return [
        f"{datetime.fromtimestamp(one.at_ns // S_NS, UTC):%Y-%m-%d %H:%M:%S}"
        f".{one.at_ns // 1_000_000 % 1000:03d}Z {one.level:<5} {one.service} {one.message}"
        for one in events
    ]


def _requests(found: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(one["request"] for one in found)


def _expected(events: Iterable[Event]) -> list[str]:
    return sorted(one.request for one in events)


def _quantile(values: Sequence[int], q: float) -> float:
    ordered = sorted(values)
    rank = q * (len(ordered) - 1)
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def test_a_record_is_found_by_the_id_of_its_request(shop: Shop) -> None:
    for service in ("web", "api", "payments", "search", "worker"):
        one = next(one for one in shop.events[len(shop.events) // 3 :] if one.service == service)
        (found,) = shop.records(f'{{request="{one.request}"}}')
        assert (found["body"], found["level"], found["service"]) == (
            one.message,
            one.level,
            service,
        )
        assert found["trace_id"] == one.trace


def test_a_pattern_finds_lines(shop: Shop) -> None:
    found = shop.records('{} |~ "/item/1[0-9] .*conn.*reset"', "--limit", str(LIMIT_MAX))
    assert _requests(found) == _expected(
        one
        for one in shop.events
        if one.path.startswith("/item/1") and len(one.path) == 8 and one.status == 500
    )


def test_a_service_and_a_level_select_records_of_every_sender(shop: Shop) -> None:
    found = shop.records('{service="payments", level="warn"}', "--limit", str(LIMIT_MAX))
    assert _requests(found) == _expected(
        one for one in shop.events if one.service == "payments" and one.level == "warn"
    )
    found = shop.records('{level="error"}', "--limit", str(LIMIT_MAX))
    assert _requests(found) == _expected(one for one in shop.events if one.level == "error")


def test_a_time_of_a_zone_and_a_duration_select_a_range(shop: Shop) -> None:
    zone = timezone(timedelta(hours=9))  # Tokyo has no summer time
    first_s, end_s = shop.start_s + 600, shop.start_s + 1200
    span = [f"{datetime.fromtimestamp(one, zone):%Y-%m-%d %H:%M}" for one in (first_s, end_s)]
    words = ("query", '{level="error"}', "--json", "--limit", str(LIMIT_MAX))
    text = shop.command(*words, "--from", span[0], "--to", span[1], "--zone", "Asia/Tokyo")
    assert _requests(map(json.loads, text.splitlines()[:-1])) == _expected(
        one
        for one in shop.events
        if one.level == "error" and first_s * S_NS <= one.at_ns < end_s * S_NS
    )
    text = shop.command(*words, "--since", "3h", "--to", "1s")
    found = {json.loads(line)["request"] for line in text.splitlines()[:-1]}
    assert found >= {one.request for one in shop.events if one.level == "error"}


def test_the_ten_most_frequent_paths(shop: Shop) -> None:
    query = "topk(10, sum by (path) (count_over_time({} [1h])))"
    found = sorted(shop.series(query, "--step", "1h").values(), reverse=True)
    assert found == [count for _, count in Counter(one.path for one in shop.events).most_common(10)]


def test_the_errors_of_each_minute(shop: Shop) -> None:
    found = shop.series('sum(count_over_time({level="error"} [1m]))', "--step", "1m")
    assert {at: value for (at, _), value in found.items()} == Counter(
        shop.window(one, 60) for one in shop.events if one.level == "error"
    )


def test_the_share_of_errors(shop: Shop) -> None:
    query = 'sum(rate({level="error"} [10m])) / sum(rate({} [10m]))'
    found = shop.series(query, "--step", "10m")
    errors = Counter(shop.window(one, 600) for one in shop.events if one.level == "error")
    records = Counter(shop.window(one, 600) for one in shop.events)
    assert {at: value for (at, _), value in found.items()} == pytest.approx(
        {at: errors[at] / records[at] for at in errors}
    )


def test_the_slowest_hundredth_of_each_path(shop: Shop) -> None:
    query = "quantile_over_time(0.99, {} | unwrap latency_ms [1h]) by (path)"
    found = shop.series(query, "--step", "1h")
    values: dict[str, list[int]] = defaultdict(list)
    for one in shop.events:
        values[one.path].append(one.latency_ms)
    assert {path: value for (_, path), value in found.items()} == pytest.approx(
        {path: _quantile(numbers, 0.99) for path, numbers in values.items()}
    )


def test_the_levels_over_time(shop: Shop) -> None:
    found = shop.series("sum by (level) (count_over_time({} [10m]))", "--step", "10m")
    assert found == Counter((shop.window(one, 600), one.level) for one in shop.events)


def test_the_lines_around_a_line(shop: Shop) -> None:
    web = [one for one in shop.events[len(shop.events) // 2 :] if one.service == "web"]
    around = web[100:105]
    done = shop.run("query", f'{{request="{around[2].request}"}}', "-C", "2")
    marks = ("  ", "  ", "> ", "  ", "  ")
    assert done.splitlines() == [
        mark + line for mark, line in zip(marks, _lines(around), strict=True)
    ]


def test_new_records_are_followed_with_and_without_a_filter(shop: Shop) -> None:
    """Earlier records may precede them if the shop was filled a moment before."""
    folder = shop.deployment.folder
    started = []
    for name, query in (("all", "{}"), ("errors", '{level="error"}')):
        command = [sys.executable, "-m", "sluice_cli", "query", "--follow", "--zone", "UTC", query]
        with (folder / name).open("wb") as output:
            one = subprocess.Popen(
                command, cwd=folder, env=clean_environment(PYTHONUNBUFFERED="1"), stdout=output
            )
        started.append(one)
    try:
        now_ns = time.time_ns()
        later = [
            one
            for one in make_events(400, start_ns=now_ns, end_ns=now_ns + S_NS, seed=2)
            if one.service == "api"
        ]
        for request in requests_of(later):
            shop.send(request)
        expected = sorted(_lines(later))
        errors = [line for line in expected if " error " in line]

        def lines(name: str) -> list[str]:
            printed = (folder / name).read_text().splitlines()
            return sorted(line for line in printed if line >= expected[0] and " api " in line)

        _wait(lambda: len(lines("errors")) >= len(errors), "errors were not followed", 120)
        _wait(lambda: len(lines("all")) >= len(expected), "records were not followed", 120)
        assert lines("errors") == errors
        assert lines("all") == expected
    finally:
        for one in started:
            one.send_signal(signal.SIGINT)
        for one in started:
            one.wait(60)


def test_all_records_are_exported(shop: Shop) -> None:
    """SQL writes all rows; a query writes the newest, at most 100,000."""
    path = shop.deployment.folder / "all"
    statement = "SELECT request, level FROM logs ORDER BY request"
    expected = sorted((one.request, one.level) for one in shop.events)
    assert [*map(tuple, shop.rows(statement))] == expected
    lines = shop.run("sql", statement, "--output", "json").splitlines()[:-1]
    assert [tuple(json.loads(line).values()) for line in lines] == expected
    span = f"--from {shop.start_s} --to {shop.start_s + HOUR_S}"
    for command in (f'sql "{statement}"', f"query --limit {LIMIT_MAX} --columns request,level"):
        shop.deployment.shell(f"sluice {command} {span} --output parquet > {path}")
        found = pq.read_table(path).to_pylist()
        newest = expected
        if command.startswith("query"):
            newest = sorted((one.request, one.level) for one in shop.events[-LIMIT_MAX:])
        assert sorted((row["request"], row["level"]) for row in found) == newest


def test_the_rate_of_a_counter_that_restarts(shop: Shop) -> None:
    found = {}
    for line in shop.run("metrics", "http_requests_total", "--step", "1m").splitlines():
        at, label, value = line.split(" ")
        minute = (int(datetime.fromisoformat(at).timestamp()) - shop.start_s) // 60
        found[label, minute] = float(value)
    expected = {}
    for path, samples in shop.counters.items():
        for minute in range(1, len(samples)):
            before, after = samples[minute - 1][1], samples[minute][1]
            expected[f"path={path}", minute] = (after - before if after >= before else after) / 60
    assert found == pytest.approx(expected, rel=1e-5)  # six digits are printed


def test_two_services_are_joined_by_their_trace(shop: Shop) -> None:
    found = shop.rows(
        "SELECT w.request, p.request FROM logs w JOIN logs p USING (trace_id)"
        " WHERE w.service = 'web' AND p.service = 'payments' AND p.level = 'error'"
    )
    web = {one.trace: one.request for one in shop.events if one.service == "web"}
    expected = [
        (web[one.trace], one.request)
        for one in shop.events
        if one.service == "payments" and one.level == "error" and one.trace in web
    ]
    assert expected
    assert sorted(map(tuple, found)) == sorted(expected)


def test_the_gap_of_an_agent(shop: Shop) -> None:
    gateway = shop.deployment.state["addresses"]["gateway"]
    shop.deployment.shell(
        f"""echo '{{"ts":{time.time_ns()},"body":"late"}}' |"""
        " sluice frame encode --agent local-agent --boot b1 --seq-start 7 --kind logs"
        " > lossy.lmbatch\n"
        "sluice upload --frame lossy.lmbatch --key .sluice-up/agent.pem"
        f" --gateway http://{gateway}"
    )
    done = run_sluice(shop.deployment.folder, "gaps")
    assert done.returncode == 1  # there is a gap
    lines = done.stdout.splitlines()
    assert lines[-1].endswith(" boots, 1 gaps")
    assert lines[lines.index("local-agent boot b1: 1 batches, 7-7") + 1].startswith("  missing 0-6")


def test_the_messages_that_are_new(shop: Shop) -> None:
    since_ns = shop.events[len(shop.events) * 9 // 10].at_ns
    found = shop.rows(
        "SELECT body, count(*) FROM logs GROUP BY body"  # noqa: S608 - a number
        f" HAVING min(ts_ns) >= {since_ns} ORDER BY 2 DESC, 1"
    )
    before = {one.message for one in shop.events if one.at_ns < since_ns}
    new = Counter(one.message for one in shop.events if one.message not in before)
    assert new
    assert [(body, int(count)) for body, count in found] == sorted(
        new.items(), key=lambda pair: (-pair[1], pair[0])
    )


def test_the_spans_and_logs_of_a_trace(shop: Shop) -> None:
    shared = next(one for one in shop.events if one.service == "payments" and one.path != "/")
    members = [one for one in shop.events if one.trace == shared.trace]
    found = shop.records(f'{{trace_id="{shared.trace}"}}')
    assert _requests(found) == _expected(members)
    found = shop.records(f'{{trace_id="{shared.trace}"}}', "--kind", "spans")
    assert sorted(
        (one["service"], one["name"], one["span_id"], one["duration_ns"]) for one in found
    ) == sorted(
        (one.service, one.path, one.request, one.latency_ms * 1_000_000)
        for one in shop.events[:200]
        if one.trace == shared.trace
    )


def test_other_programs_read_the_lake(shop: Shop) -> None:
    table = DeltaTable(f"{shop.store_path}/lake/v1/logs")
    logs = table.to_pyarrow_dataset()
    ingested = shop.events[: len(shop.events) // 2]
    levels = Counter((one.service, one.level) for one in ingested)
    with duckdb.connect() as connection:
        connection.register("logs", logs)
        found = connection.sql("SELECT service, level, count(*) FROM logs GROUP BY ALL").fetchall()
    assert {(service, level): count for service, level, count in found} == levels
    frame = table.to_pandas(columns=["service", "level"])
    assert frame.value_counts().to_dict() == levels
