"""`sluice query` and `GET /v1/query`, as a shell and an HTTP client use them."""

import asyncio
import csv
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from support.commands import CommandResult, sluice
from support.query_lake import DAY0_NS, deployment, log_batch, metric_batch
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_cli.shell.running import RunningDeployment, announce, find_running
from sluice_protocol.units import NS_PER_S

SPAN = ("--from", str(DAY0_NS), "--to", str(DAY0_NS + 3600 * NS_PER_S), "--zone", "UTC")


EVERYWHERE = "0.0.0.0"  # noqa: S104 - the guard of this address is tested


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    made = deployment(tmp_path_factory.mktemp("query"))
    made.deliver([log_batch(["first ä", "second"], attributes={"k": "v"})])
    made.deliver([metric_batch([1.0, float("nan"), 3.0], step_ns=60 * NS_PER_S, start=9)])
    ingest_locally(made.url)
    made.deliver([log_batch(["third"], start=2, from_ns=DAY0_NS + 5 * NS_PER_S)])
    return made


def _query(place: Deployment, *arguments: str) -> CommandResult:
    return sluice("query", "--store", place.url, *arguments)


def test_records_are_printed_as_lines_and_the_summary_to_standard_error(place: Deployment) -> None:
    done = _query(place, *SPAN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "2026-09-21 14:13:20.000Z -     web first ä",
        "2026-09-21 14:13:21.000Z -     web second",
        "2026-09-21 14:13:25.000Z -     web third",
    ]
    assert done.stderr.startswith("3 results; read 1 segments, ")
    assert "1 batches not in the lake yet" in done.stderr
    local = _query(place, *SPAN[:-1], "Asia/Tokyo", "--limit", "1").stdout
    assert local.startswith("2026-09-21 23:13:25.000 ")


def test_json_output_is_ndjson_with_the_summary_as_its_last_line(place: Deployment) -> None:
    lines = [json.loads(line) for line in _query(place, *SPAN, "--json").stdout.splitlines()]
    assert lines[0] == {
        "ts": "2026-09-21T14:13:20.000000000Z",
        "agent_id": "host-1",
        "boot_id": "b1",
        "seq": 0,
        "body": "first ä",
        "service": "web",
        "attributes": {"k": "v"},
        "resource": {"service.name": "web"},
    }
    assert lines[-1]["summary"]["results"] == 3
    assert lines[-1]["summary"]["partial"] is False


def _bodies(place: Deployment, *words: str) -> list[str]:
    done = _query(place, *SPAN, *words, "--json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [one["body"] for one in lines[:-1]]


def test_the_newest_records_are_printed_in_the_order_of_time(place: Deployment) -> None:
    assert _bodies(place, "--limit", "2") == ["second", "third"]
    assert _bodies(place, "--limit", "2", "--order", "newest") == ["third", "second"]
    assert _bodies(place, "--limit", "2", "--order", "oldest") == ["first ä", "second"]


@pytest.mark.daily(4)
@pytest.mark.parametrize(
    ("logql", "found"),
    [
        ("{}", ["first ä", "second", "third"]),
        ('{k="v"}', ["first ä", "second"]),
        ('{k!="v"}', ["third"]),
        ('{k=""}', ["third"]),
        ('{k!=""}', ["first ä", "second"]),
        ('{k=~"v|w", service_name="web"}', ["first ä", "second"]),
        ('{k=~"[a-u]"}', []),
        ('{k="v", k="w"}', []),
        ('{agent="host-1"} |= "ir"', ["first ä", "third"]),
        ('{} |= "ir" |= "f"', ["first ä"]),
        ('{} |= "ir" != "f"', ["third"]),
        ('{} |= "second" or "third"', ["second", "third"]),
        ('{} |~ "(?i)FIRST|^sec"', ["first ä", "second"]),
        ('{} !~ "d$" |= ""', ["first ä"]),
        ('{} |= "."', []),
        ('{absent="x"}', []),
    ],
)
def test_logql_selects_records(place: Deployment, logql: str, found: list[str]) -> None:
    assert _bodies(place, logql) == found


def test_a_text_is_combined_with_logql(place: Deployment) -> None:
    assert _bodies(place, "-q", "ir", '{k="v"} |= "f"') == ["first ä"]
    done = _query(place, *SPAN, '{kk="v"}')
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines()[1:] == [
        "no record has this label, column=`2`, word=`kk`: write `k`"
    ]
    for words, hint in ((("--wait",), "no match: try an earlier"), ((), "add `--wait`")):
        assert hint in _query(place, *SPAN, "-q", "nothing", *words).stderr
    done = _query(place, *SPAN, "sum by (sevice) (count_over_time({}[400d]))")
    assert (done.returncode, done.stdout) == (0, "3  -\n")
    assert "column=`9`, word=`sevice`: write `service`\n" in done.stderr


def test_a_field_that_no_record_has_is_one_line_without_values(place: Deployment) -> None:
    done = sluice("fields", "level", "--store", place.url, *SPAN)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no record has this field in the time range" in done.stderr
    assert "records=`3`, field=`level`" in done.stderr
    assert sluice("fields", "level", "--store", place.url, *SPAN, "--json").returncode == 1


def test_lines_around_a_hit_are_those_of_its_source(place: Deployment) -> None:
    """Groups are separated, and neighbours that two hits share are printed once."""
    done = _query(place, *SPAN, "-q", "second", "-B", "1")
    lines = [line.replace("2026-09-21 14:13:", "") for line in done.stdout.splitlines()]
    assert lines == ["  20.000Z -     web first ä", "> 21.000Z -     web second"]
    assert _query(place, *SPAN, "-q", "ir", "-C", "1").stdout.count("\n") == 3
    apart = _query(place, *SPAN, "-q", "ir", "-A", "0", "-B", "0").stdout
    assert "--" not in apart
    done = _query(place, *SPAN, "-q", "second", "-A", "5", "--json")
    *shown, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one.get("is_context", False) for one in shown] == [False, True]
    assert last["summary"]["results"] == 1


@pytest.mark.long
def test_columns_csv_and_parquet(place: Deployment, tmp_path: Path) -> None:
    columns = ("--columns", "service,body,k")
    assert _query(place, *SPAN, *columns).stdout.splitlines()[0] == "web  first ä  v"
    done = _query(place, *SPAN, *columns, "--output", "csv")
    assert done.stdout == "service,body,k\nweb,first ä,v\nweb,second,v\nweb,third,\n"
    rows = list(csv.DictReader(StringIO(_query(place, *SPAN, "--output", "csv").stdout)))
    assert rows[0]["attributes"] == '{"k":"v"}'
    assert rows[0]["ts"] == "2026-09-21T14:13:20.000000000Z"
    done = _query(place, *SPAN, "--columns", "time,bdy,k", "--limit", "1")
    assert done.stderr.splitlines()[1:] == [
        "--columns: no record has this field in the time range; similar: body, field=`bdy`"
    ]
    only = _query(place, *SPAN, *columns, "--json").stdout.splitlines()
    assert json.loads(only[2]) == {"service": "web", "body": "third", "k": None}
    command = [sys.executable, "-m", "sluice_cli", "query", *SPAN, "--store", place.url]
    written = subprocess.run(
        [*command, "--output", "parquet"], capture_output=True, check=True, timeout=120
    )
    (tmp_path / "records.parquet").write_bytes(written.stdout)
    table = pq.read_table(tmp_path / "records.parquet")
    assert table["body"].to_pylist() == ["first ä", "second", "third"]
    assert table["ts"].cast("int64").to_pylist()[0] == DAY0_NS
    assert table["seq"].to_pylist() == [0, 1, 2]


def test_records_over_time_are_those_of_the_service(service: str, place: Deployment) -> None:
    span = f"from={DAY0_NS}&to={DAY0_NS + 3600 * NS_PER_S}"
    done = _query(place, *SPAN, "--plot", "--step", "30m", '{k="v"}')
    assert done.stdout.splitlines() == [
        "2026-09-21T14:00:00.000000000Z\t2",
        "2026-09-21T14:30:00.000000000Z\t0",
        "2026-09-21T15:00:00.000000000Z\t0",
    ]
    assert done.stderr.startswith("2 results; read 1 segments, ")
    shown = json.loads(_query(place, *SPAN, "--plot", "--json").stdout)
    served = json.loads(_get(f"{service}/v1/histogram?{span}")[2])
    for one in (shown, served):
        del one["summary"]["elapsed_ms"], one["summary"]["accepted_until"]
    assert shown == served


def test_a_metric_query_has_series(place: Deployment) -> None:
    done = _query(place, *SPAN, 'sum by (k) (count_over_time({} |= "ir" [1h]))', "--step", "1h")
    found = sorted(line.split()[1:] for line in done.stdout.splitlines())
    assert found == [["-", "1"], ["k=v", "1"]]
    assert done.stderr.startswith("2 series; read 1 segments")
    drawn = _query(place, *SPAN, "rate({}[1h])", "--step", "1h", "--plot").stdout
    assert "rate({}[1h])" in drawn
    # SPAN ends after its records: without a step the query is computed once, at that time.
    once = _query(place, *SPAN, 'sum by (k) (count_over_time({} |= "ir" [400d]))')
    assert sorted(line.split() for line in once.stdout.splitlines()) == [["1", "-"], ["1", "k=v"]]
    assert "--step computes it over --since" in once.stderr


def test_a_running_service_is_asked_instead_of_the_store(
    service: str, place: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output is the same; a service that does not respond costs nothing."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    here = {words: _query(place, *SPAN, *words).stdout for words in ((), ("--json",))}
    for address in (service.removeprefix("http://"), "127.0.0.1:1"):
        announce(RunningDeployment(pid=os.getpid(), store=place.url, addresses={"query": address}))
        for words, wanted in here.items():
            done = _query(place, *SPAN, *words)
            if not words:
                assert done.stdout == wanted
            else:
                assert done.stdout.splitlines()[:-1] == wanted.splitlines()[:-1]
    served = [sys.executable, "-X", "importtime", "-m", "sluice_cli", "query", *SPAN]
    for address, imports in (("127.0.0.1:1", True), (service.removeprefix("http://"), False)):
        announce(RunningDeployment(pid=os.getpid(), store=place.url, addresses={"query": address}))
        done = subprocess.run(
            [*served, "--store", place.url], capture_output=True, text=True, check=True, timeout=120
        )
        lines = done.stderr.splitlines()
        # A library that reports its unfreed objects at the end would print them here.
        assert [line for line in lines if not line.startswith("import time:")][1:] == []
        imported = {line.rpartition("|")[2].strip() for line in lines}
        for library in (
            *("pyarrow", "duckdb", "numpy", "deltalake", "asyncio", "structlog"),
            *("sluice_query.request", "sluice_store.port"),
        ):
            assert (library in imported) == imports, library
        assert imports or "http.client" not in imported


@pytest.mark.long
def test_commands_find_a_query_service_that_was_started_alone(
    place: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service with a token, or with a limit, is not used: an answer could differ."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with _serving(place, "127.0.0.1:0") as url:
        (found,) = find_running()
        assert found.store == place.url
        assert found.addresses == {"query": url.removeprefix("http://")}
        done = sluice("query", *SPAN, folder=tmp_path)
        assert done.stderr.startswith(f"store of the running deployment: {place.url}, pid=")
        assert len(done.stdout.splitlines()) == 3
    assert not [*tmp_path.rglob("*.json")]
    with _serving(place, "127.0.0.1:0", token="secret"):
        assert find_running() == []


@contextmanager
def _answering(
    place: Deployment, respond: Callable[[str], tuple[int, dict[str, object]]]
) -> Iterator[None]:
    """Run a service that commands find; it sends problems for statuses other than 200."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, found = respond(urlsplit(self.path).path)
            body = json.dumps(found).encode()
            self.send_response(status)
            if status != 200:
                self.send_header("Content-Type", "application/problem+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        path = announce(
            RunningDeployment(pid=os.getpid(), store=place.url, addresses={"query": address})
        )
        yield
        server.shutdown()
        path.unlink()


def test_a_limit_of_the_service_ends_the_command(place: Deployment) -> None:
    """The same limit would end the query in the command, after as much time."""
    limit = {"code": "overloaded", "detail": "query exceeded its time limit: narrow the time range"}
    with _answering(place, lambda _: (503, limit)):
        done = _query(place, *SPAN)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"sluice: {limit['detail']}\n"
    away = {"code": "store_unavailable", "detail": "the store is unreachable"}
    with _answering(place, lambda _: (503, away)):
        assert len(_query(place, *SPAN).stdout.splitlines()) == 3


@pytest.mark.parametrize("words", [(), ("--plot",), ("sum(count_over_time({}[1m]))",)])
def test_wait_repeats_each_kind_of_question_until_its_answer_is_complete(
    words: tuple[str, ...], place: Deployment
) -> None:
    asked: list[str] = []

    def respond(path: str) -> tuple[int, dict[str, object]]:
        asked.append(path)
        summary = {"results": 1, "complete_now": len(asked) == 3, "accepted_until": None}
        return 200, {"summary": summary}

    with _answering(place, respond):
        done = _query(place, *words, "--wait", "--json")
    assert (done.returncode, json.loads(done.stdout)["summary"]["complete_now"]) == (0, True)
    assert asked == ["/v1/histogram" if "--plot" in words else "/v1/query"] * 3


def test_a_bad_option_is_one_line_and_exit_code_2(place: Deployment) -> None:
    for arguments, message in (
        (("--since", "now", "--to", "1h"), "ends before it starts"),
        (("--from", "now"), "--from is in the future, and --to is now"),
        ((*SPAN, '{} |~ "("'), "regex does not compile"),
        (("--from", "noon"), "--from: must be a duration ago such as 15m"),
        (("--since", "2 hours ago"), "or RFC 3339; did you mean 2h?, time=`2 hours ago`"),
        (("--from", "2026-11-28T14:00:00.5.5Z"), "--from: time must be RFC 3339"),
        (("--service", "a b"), "write `sluice query '{service=\"a b\"}'`, option=`--service`"),
        (("--from", "25:00"), "--from: no such time"),
        (("--from", "5"), "--from would be in January 1970: did you mean 5m, 5h or 5d ago?"),
        (("--zone", "Mars"), "unknown time zone"),
        (("--follow", "--to", "now", "--plot"), "`--follow` prints records as they are accepted"),
        (("--follow", "--to", "1m"), "`--follow` has no end: omit `--to`"),
        (("--follow", "--output", "csv"), "`--follow` prints lines or JSON"),
        (("--step", "1m"), "`--step` is the width of a bar or of a metric query"),
        (("--plot", "-C", "1"), "`--plot` counts records"),
        (("--json", "--output", "csv"), "choose one of `--json` and `--output`"),
        (("-C", "1", "--limit", "101"), "at most 100 hits"),
        ((*SPAN, "sum(rate({}[1m]))", "--output", "csv"), "a metric query has series"),
        ((*SPAN, "sum(rate({}[1m]))", "-q", "x"), "`-q` belongs to records"),
    ):
        done = _query(place, *arguments)
        assert done.returncode == 2, arguments
        assert message in done.stderr, arguments
        assert done.stderr.count("\n") == 1


def test_a_series_over_http_is_divided_by_fields(service: str) -> None:
    span = f"from={DAY0_NS}&to={DAY0_NS + 3600 * NS_PER_S}"
    path = "v1/query?kind=metrics&metric=cpu&agg=p50&step=1h&by=name&by=agent_id"
    lines = _get(f"{service}/{path}&{span}")[2].splitlines()
    point = {"ts": "2026-09-21T14:00:00.000000000Z", "value": 2.0}
    assert json.loads(lines[0]) == point | {"by": {"name": "cpu", "agent_id": "host-1"}}
    raw = _get(f"{service}/v1/query?metric=cpu&agg=max&raw=true&step=1m&{span}")[2].splitlines()
    assert [json.loads(line)["value"] for line in raw[:-1]] == [1.0, 3.0]  # NaN is ignored


@pytest.fixture(scope="module")
def service(place: Deployment) -> Iterator[str]:
    with _serving(place, "127.0.0.1:0") as url:
        yield url


@contextmanager
def _serving(place: Deployment, listen: str, token: str = "") -> Iterator[str]:
    command = (sys.executable, "-m", "sluice_cli", "query", "serve", "--store", place.url)
    process = subprocess.Popen(
        (*command, "--listen", listen, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "SLUICE_QUERY_SERVE_API_TOKEN": token},
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0, (out, err)


def _get(url: str, token: str = "") -> tuple[int, str, bytes]:
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as result:
            return result.status, result.headers["Content-Type"], result.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read()


def test_the_service_listens_beyond_loopback_only_with_a_token(place: Deployment) -> None:
    """Requests without the token are refused, and all requests with it are counted."""
    for listen, message in (
        (f"{EVERYWHERE}:0", "set an api_token to listen beyond this machine"),
        ("nonsense", "listen must be HOST:PORT"),
        ("127.0.0.1:1x", "listen must be HOST:PORT"),
    ):
        done = sluice("query", "serve", "--store", place.url, "--listen", listen)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert message in done.stderr
    with _serving(place, f"{EVERYWHERE}:0", token="s3cret") as url:
        here = url.replace(EVERYWHERE, "127.0.0.1")
        for token in ("", "s3cre"):
            status, kind, body = _get(f"{here}/v1/query", token)
            assert (status, kind) == (401, "application/problem+json")
            assert json.loads(body)["code"] == "unauthenticated"
        assert _get(f"{here}/livez")[0] == 200
        _check_that_queries_are_counted(here)


IR = "query=%7B%7D%7C%3D%22ir%22"  # {} |= "ir"


def test_the_service_streams_the_same_records_as_ndjson(service: str, place: Deployment) -> None:
    status, kind, body = _get(f"{service}/v1/query?from={DAY0_NS}&to={DAY0_NS + 10**12}&{IR}")
    assert (status, kind) == (200, "application/x-ndjson")
    lines = [json.loads(line) for line in body.splitlines()]
    assert [line["body"] for line in lines[:-1]] == ["first ä", "third"]
    assert lines[-1]["summary"]["waiting_batches"] == 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("from=now&to=1h", "ends before it starts"),
        ("limit=many", "limit must be a number"),
        ("limit=1&limit=2", "parameter is repeated"),
        ("colour=red", "unknown parameter"),
        ("kind=traces", "kind must be"),
        ("q=x", 'parameter is replaced by LogQL: write query={} |= "TEXT"'),
        ("metric=m&agg=median", "agg must be one of avg, min, max, sum, count, last, rate, p50,"),
        ("agg=p99", "agg applies to a metric only: add metric, or omit it"),
        ("query=%7B%7D%7C~%22(%22", "regex does not compile"),
    ],
)
def test_a_bad_parameter_is_a_problem_document_with_status_400(
    service: str, parameters: str, message: str
) -> None:
    status, kind, body = _get(f"{service}/v1/query?{parameters}")
    assert (status, kind) == (400, "application/problem+json")
    problem = json.loads(body)
    assert message in problem["detail"]
    assert (problem["code"], problem["retryable"]) == ("bad_request", False)


def _check_that_queries_are_counted(url: str) -> None:
    span = f"from={DAY0_NS}&to={DAY0_NS + 10**12}"
    assert _get(f"{url}/v1/query?{span}", "s3cret")[0] == 200
    assert _get(f"{url}/v1/query?{span}&query=%7B%7D%7C~%22(%22", "s3cret")[0] == 400
    status, kind, body = _get(f"{url}/metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    text = body.decode()
    assert 'sluice_query_requests_total{outcome="complete"} 1.0' in text
    assert 'sluice_query_requests_total{outcome="failed"} 1.0' in text
    assert "sluice_query_seconds_bucket" in text
    assert "sluice_query_running_requests 0.0" in text


def test_the_service_answers_concurrent_requests(service: str) -> None:

    async def run_query() -> list[int]:
        url = f"{service}/v1/query?from={DAY0_NS}&to={DAY0_NS + 10**12}&stats_only=true"
        done = await asyncio.gather(*(asyncio.to_thread(_get, url) for _ in range(8)))
        return [status for status, _, _ in done]

    assert asyncio.run(run_query()) == [200] * 8
