"""`sluice query` and `GET /v1/query`, as a shell and an HTTP client use them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.commands import CommandResult, sluice
from support.query_lake import DAY0_NS, deployment, log_batch, metric_batch
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_protocol.units import NS_PER_S

SPAN = ("--from", str(DAY0_NS), "--to", str(DAY0_NS + 3600 * NS_PER_S))


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
        "2026-09-21T14:13:20.000000000Z host-1 first ä",
        "2026-09-21T14:13:21.000000000Z host-1 second",
        "2026-09-21T14:13:25.000000000Z host-1 third",
    ]
    assert done.stderr.startswith("3 results; read 1 segments, ")
    assert "1 batches not in the lake yet" in done.stderr


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


def test_a_series_is_printed_one_line_a_step(place: Deployment) -> None:
    """NaN is ignored."""
    done = _query(place, *SPAN, "--metric", "cpu", "--step", "1m", "--agg", "max", "--json")
    *points, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert [point["value"] for point in points] == [1.0, 3.0]
    assert last["summary"]["rollups_only_before"] is None
    raw = _query(place, *SPAN, "--metric", "cpu", "--agg", "max", "--raw", "--json")
    assert [json.loads(line) for line in raw.stdout.splitlines()][:-1] == points
    plain = _query(place, *SPAN, "--metric", "cpu", "--step", "1h", "--agg", "count")
    assert plain.stdout.split()[-1] == "2.0"


def test_a_series_of_an_attribute_is_divided_by_fields(service: str, place: Deployment) -> None:
    """Alike on the command line and over HTTP; an unknown field is named."""
    options = (*SPAN, "--of", "severity", "--agg", "p99", "--step", "1h", "--by", "attributes.k")
    assert _query(place, *options, "--by", "agent_id", "--json").returncode == 0
    done = _query(place, *SPAN, "--of", "attributes.latncy", "--agg", "p99")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no record has this field in the time range" in done.stderr
    assert "field=`attributes.latncy`" in done.stderr
    span = f"from={DAY0_NS}&to={DAY0_NS + 3600 * NS_PER_S}"
    path = "v1/query?kind=metrics&of=value&agg=p50&step=1h&by=name&by=agent_id"
    lines = _get(f"{service}/{path}&{span}")[2].splitlines()
    point = {"ts": "2026-09-21T14:00:00.000000000Z", "value": 2.0}
    by = {"name": "cpu", "agent_id": "host-1"}
    assert json.loads(lines[0]) == point | {"by": by}
    shown = _query(
        place, *SPAN, "--kind", "metrics", "--of", "value", "--agg", "p50", "--step", "1h",
        "--by", "name", "--by", "agent_id",
    )  # fmt: skip
    assert shown.stdout == f"{point['ts']} cpu,host-1 2.0\n"


def test_histogram_and_values_are_those_of_the_service(service: str, place: Deployment) -> None:
    span = f"from={DAY0_NS}&to={DAY0_NS + 3600 * NS_PER_S}"
    done = _query(place, *SPAN, "--histogram", "--step", "30m", "--by", "attributes.k")
    assert done.stdout.splitlines() == [
        "2026-09-21T14:00:00.000000000Z\t3\tv=2 (missing)=1",
        "2026-09-21T14:30:00.000000000Z\t0",
        "2026-09-21T15:00:00.000000000Z\t0",
    ]
    assert done.stderr.startswith("3 results; read 1 segments, ")
    done = _query(place, *SPAN, "--top", "body", "--filter", "attributes.k")
    assert done.stdout == "1\tfirst ä\n1\tsecond\n"
    for options, path in (
        (("--histogram", "--by", "attributes.k"), "histogram?by=attributes.k"),
        (("--top", "body", "--limit", "2"), "fields/values?field=body&limit=2"),
    ):
        shown = json.loads(_query(place, *SPAN, *options, "--json").stdout)
        served = json.loads(_get(f"{service}/v1/{path}&{span}")[2])
        for one in (shown, served):
            del one["summary"]["elapsed_ms"], one["summary"]["accepted_until"]
        assert shown == served
    for options, message in (
        (("--histogram", "--top", "body"), "choose one of --histogram and --top"),
        (("--top", "colour"), "--top: unknown field"),
        (("--histogram", "--limit", "7"), "--limit does not apply to --histogram"),
        (("--filter", "body"), ""),
        (("--filter", "severity=x"), "--filter: must be a number"),
    ):
        done = _query(place, *SPAN, *options)
        assert (done.returncode, message in done.stderr) == (2 if message else 0, True), done


def test_a_bad_option_is_one_line_and_exit_code_2(place: Deployment) -> None:
    for arguments, message in (
        (("--from", "now", "--to", "1h"), "ends before it starts"),
        ((*SPAN, "-q", "(", "--regex"), "regex does not compile"),
        ((*SPAN, "--attribute", "x"), "--attribute: must be KEY=VALUE"),
        (("--from", "noon"), "--from: time must be RFC 3339"),
        (("--from", "5"), "--from would be in January 1970: did you mean 5m, 5h or 5d ago?"),
        (("--to", "2h"), "--from is 1h ago by default: add an earlier one, to=`2h`"),
        (("--tail", "--reconciler", "host:1"), "--reconciler is a URL such as http://host:port"),
        ((*SPAN, "--filter", "severity>=error"), "must be a number: error is 17, field="),
    ):
        done = _query(place, *arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


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


def test_the_service_streams_the_same_records_as_ndjson(service: str, place: Deployment) -> None:
    status, kind, body = _get(f"{service}/v1/query?from={DAY0_NS}&to={DAY0_NS + 10**12}&q=ir")
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
        ("regex=maybe&q=x", "regex must be true or false"),
        ("metric=m&agg=median", "agg must be one of avg, min, max, sum, count, last, p50, p90,"),
        ("agg=p99", "agg applies to a series only: add metric or of, or omit it"),
        ("of=body", "only severity, value, duration_ns, attributes.KEY and"),
        ("q=(&regex=true", "regex does not compile"),
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
    assert _get(f"{url}/v1/query?{span}&q=(&regex=true", "s3cret")[0] == 400
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
