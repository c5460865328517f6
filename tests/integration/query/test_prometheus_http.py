"""The routes of Prometheus: remote read, with what remote write and OTLP have sent, and lists."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from support.query_lake import DAY0_NS, QueryClient, deployment, metric_batch, sent, talk
from support.remote_read import (
    NAN_BITS,
    STALE_BITS,
    Labels,
    Series,
    Wanted,
    bits_of,
    chunks_of,
    labels,
    read_request,
    samples_of,
    write_request,
    written_columns,
)
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_protocol.records import MetricPoint, metrics_from_records
from sluice_protocol.units import NS_PER_S

START = DAY0_NS // 1_000_000
END = START + 3_600_000
PROTOBUF = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
COUNTER, HISTOGRAM = 1, 3


def every_second(count: int, *bits: int) -> list[tuple[int, int]]:
    return [(START + place * 1000, bits[place % len(bits)]) for place in range(count)]


WRITTEN: Series = {
    labels("up", job="api", instance="a:9090"): every_second(300, bits_of(1), bits_of(0)),
    labels("up", job="web", instance="b:9090"): [
        *every_second(3, NAN_BITS),
        (START + 4000, STALE_BITS),
    ],
    labels("shop:rate5m", job="api", type="gauge", value="x", service="s"): every_second(
        250, *(bits_of(one / 7) for one in range(250))
    ),
    labels("took_seconds_bucket", job="api", le="0.5"): every_second(5, bits_of(3)),
    labels("took_seconds_bucket", job="api", le="+Inf"): every_second(5, bits_of(math.inf)),
    labels("took_seconds_sum", job="api"): every_second(5, bits_of(-0.0)),
    labels("took_seconds_count", job="api"): every_second(5, bits_of(2**60)),
}
OTLP = labels(
    "http_server_duration",
    agent="host-1",
    http_route="/cart",
    service_name="shop",
    host_name="h1",
    k8s_pod="p1",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Half of the samples of remote write are in the lake, the others pending; points of OTLP."""
    made = deployment(Path(tmp_path_factory.mktemp("prometheus")))
    halves: list[Series] = [{}, {}]
    for of, samples in WRITTEN.items():
        middle = len(samples) // 2
        halves[0][of], halves[1][of] = samples[:middle], samples[middle:]
    helps = {"took_seconds": (HISTOGRAM, "time of a request"), "up": (2, "whether it runs")}
    for part, half in enumerate(halves):
        columns = written_columns(half, received_ns=DAY0_NS, helps=helps)
        made.deliver([sent(columns, agent="door:prometheus:1", start=part * 10_000, resource=())])
        if not part:
            ingest_locally(made.url)
    point = MetricPoint(
        ts_ns=DAY0_NS + 1_500_000,
        name="http.server.duration",
        value=2.5,
        attributes={"http.route": "/cart", "k8s_pod": "p1"},
    )
    resource = (("host.name", "h1"), ("k8s.pod", "p0"), ("service.name", "shop"))
    made.deliver([sent(metrics_from_records([point]), start=50_000, resource=resource)])
    return made


async def read(
    client: QueryClient, *queries: Wanted, accepted: tuple[int, ...] = ()
) -> tuple[int, dict[str, str], bytes]:
    async with client.session.post(
        f"{client.url}/api/v1/read",
        data=read_request(*queries, accepted=accepted),
        headers=PROTOBUF,
    ) as response:
        return response.status, dict(response.headers), await response.read()


async def get(client: QueryClient, path: str, *given: tuple[str, str]) -> tuple[int, Any]:
    async with client.session.get(f"{client.url}/api/v1/{path}", params=given) as response:
        return response.status, json.loads(await response.read())


def selected(*matchers: tuple[str, str, str]) -> Wanted:
    return Wanted(START, END, matchers)


@pytest.mark.long
def test_what_was_written_is_read_with_equal_bits(place: Deployment) -> None:
    """As samples and as chunks, in the order of labels, from the lake and from pending batches."""

    async def story(client: QueryClient) -> None:
        wanted = selected(("job", "=~", "api|web"))
        status, headers, body = await read(client, wanted)
        assert status == 200
        assert headers["Content-Type"] == "application/x-protobuf"
        assert headers["Content-Encoding"] == "snappy"
        (found,) = samples_of(body)
        assert found == WRITTEN
        assert list(found) == sorted(found)
        status, headers, body = await read(client, wanted, wanted, accepted=(1, 0))
        assert status == 200
        assert "proto=prometheus.ChunkedReadResponse" in headers["Content-Type"]
        first, second = chunks_of(body, 2)
        assert first == second == WRITTEN
        assert list(first) == sorted(first)
        _, headers, _ = await read(client, wanted, accepted=(0, 1))
        assert headers["Content-Type"] == "application/x-protobuf"

    talk(place, story)


@pytest.mark.long
def test_matchers(place: Deployment) -> None:
    """A pattern matches the whole value, and a missing label is the empty text."""
    cases: list[tuple[list[tuple[str, str, str]], int]] = [
        ([("__name__", "=", "up")], 2),
        ([("__name__", "=", "up"), ("job", "!=", "api")], 1),
        ([("__name__", "=~", "u")], 0),
        ([("__name__", "=~", "u.|took_.*")], 6),
        ([("job", "=~", "ap")], 0),
        ([("job", "!~", "ap"), ("job", "!=", "")], len(WRITTEN)),
        ([("le", "=", "")], 6),
        ([("le", "!=", "")], 2),
        ([("le", "=~", ".*")], 8),
        ([("le", "=~", ".+")], 2),
        ([("type", "=", "gauge")], 1),
        ([("value", "=", "x"), ("service", "=", "s")], 1),
        ([("http_route", "=", "/cart")], 1),
        ([("k8s_pod", "=", "p1")], 1),
        ([("k8s_pod", "=", "p0")], 0),
        ([("agent", "=", "host-1")], 1),
        ([("agent", "=", "")], len(WRITTEN)),
        ([("__name__", "=", "http_server_duration")], 1),
        ([("__name__", "=", "shop:rate5m")], 1),
        ([("nothing", "=", "x")], 0),
    ]

    async def story(client: QueryClient) -> None:
        for matchers, count in cases:
            _, _, body = await read(client, selected(*matchers))
            assert len(samples_of(body)[0]) == count, matchers

    talk(place, story)


def test_points_of_otlp_have_names_of_prometheus(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        _, _, body = await read(client, selected(("service_name", "=", "shop")))
        assert samples_of(body) == [{OTLP: [(START + 1, bits_of(2.5))]}]

    talk(place, story)


def test_both_ends_of_a_range_belong_to_it(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        own = (("__name__", "=", "up"), ("job", "=", "api"))
        _, _, body = await read(client, Wanted(START + 1000, START + 3000, own))
        (series,) = samples_of(body)[0].values()
        assert [at for at, _ in series] == [START + 1000, START + 2000, START + 3000]
        _, _, body = await read(client, Wanted(-(1 << 63), (1 << 63) - 1, own))
        (series,) = samples_of(body)[0].values()
        assert len(series) == 300
        status, _, body = await read(client, Wanted(START, START - 1, own))
        assert (status, body) == (400, b"a query ends before it starts")

    talk(place, story)


def test_of_samples_at_one_ms_one_is_returned(tmp_path: Path) -> None:
    """The latest counts, then the first accepted: a repeated request changes nothing."""
    made = deployment(tmp_path)
    points = [MetricPoint(ts_ns=DAY0_NS + at, name="cpu", value=at) for at in (0, 5, 10, 10**6)]
    for start in (0, 100):
        made.deliver([sent(metrics_from_records(points), start=start, resource=())])
    late = metrics_from_records([MetricPoint(ts_ns=DAY0_NS + 10, name="cpu", value=7.0)])
    made.deliver([sent(late, start=200, at_ns=DAY0_NS + NS_PER_S, resource=())])

    async def story(client: QueryClient) -> None:
        _, _, body = await read(client, selected(("__name__", "=", "cpu")))
        (series,) = samples_of(body)[0].values()
        assert series == [(START, bits_of(10)), (START + 1, bits_of(1e6))]

    talk(made, story)


def test_lists(place: Deployment) -> None:
    span = ("start", str(START // 1000)), ("end", str(END // 1000))

    async def story(client: QueryClient) -> None:
        _, found = await get(client, "labels", *span)
        assert found["status"] == "success"
        assert found["data"] == sorted({name for of in [*WRITTEN, OTLP] for name, _ in of})
        _, found = await get(client, "labels", ("match[]", 'up{job="api"}'))
        assert found["data"] == ["__name__", "instance", "job"]
        _, found = await get(client, "label/__name__/values", *span)
        assert found["data"] == sorted({dict(of)["__name__"] for of in [*WRITTEN, OTLP]})
        _, found = await get(client, "label/job/values", ("match[]", "up"), ("limit", "1"))
        assert found["data"] == ["api"]
        assert "limit=1" in found["warnings"][0]
        _, found = await get(client, "series", ("match[]", "up"), ("match[]", '{le="0.5"}'))
        wanted: list[Labels] = [of for of in WRITTEN if dict(of)["__name__"] == "up"]
        wanted.append(labels("took_seconds_bucket", job="api", le="0.5"))
        assert sorted(map(str, found["data"])) == sorted(str(dict(of)) for of in wanted)
        _, found = await get(client, "labels", ("start", "10"), ("end", "20"))
        assert found["data"] == []
        _, found = await get(client, "metadata")
        assert found["data"] == {}  # the samples are older than a day
        _, found = await get(client, "metadata", *span)
        assert found["data"]["took_seconds"] == [
            {"type": "histogram", "help": "time of a request", "unit": ""}
        ]
        assert found["data"]["up"][0]["help"] == "whether it runs"
        assert "took_seconds_bucket" not in found["data"]
        assert found["data"]["shop:rate5m"] == [{"type": "gauge", "help": "", "unit": ""}]
        _, found = await get(client, "metadata", *span, ("metric", "up"))
        assert list(found["data"]) == ["up"]
        _, found = await get(client, "status/buildinfo")
        assert found["data"]["version"] == "3.0.0"

    talk(place, story)


def test_an_instant_selector_returns_the_latest_samples(place: Deployment) -> None:
    """A series that has ended has none."""

    async def story(client: QueryClient) -> None:
        at_s = START // 1000 + 4
        _, found = await get(client, "query", ("query", "up"), ("time", str(at_s)))
        assert found["data"]["resultType"] == "vector"
        (one,) = found["data"]["result"]
        assert one == {
            "metric": {"__name__": "up", "job": "api", "instance": "a:9090"},
            "value": [at_s, "1"],
        }
        _, found = await get(client, "query", ("query", "up"), ("time", str(at_s - 2)))
        assert [one["value"][1] for one in found["data"]["result"]] == ["1", "NaN"]
        late = ("time", str(START // 1000 + 299 + 300))
        _, found = await get(client, "query", ("query", "up"), late)
        assert found["data"]["result"] == []
        async with client.session.post(
            f"{client.url}/api/v1/query", data={"query": "1+1", "time": "4"}
        ) as response:
            found = json.loads(await response.read())
        assert found["data"] == {"resultType": "scalar", "result": [4.0, "2"]}

    talk(place, story)


@pytest.mark.parametrize(
    ("path", "given", "word"),
    [
        ("query", ("query", "rate(up[5m])"), "word=`rate`"),
        ("query", ("query", "sum by (job) (up)"), "word=`sum`"),
        ("query", ("query", "up[5m]"), "word=`[`"),
        ("query", ("query", "up offset 5m"), "remote_read"),
        ("query", ("query", ""), "a selector is missing"),
        ("query", ("query", 'up{job="a'), "text does not end"),
        ("query", ("query", 'up{job=~"("}'), "regex does not compile"),
        ("query_range", ("query", "up"), "query_range is not supported: send it to a Prometheus"),
        ("query_exemplars", ("query", "up"), "remote_read"),
        ("labels", ("start", "yesterday"), "start must be a Unix time"),
        ("labels", ("limit", "many"), "limit must be a number"),
        ("series", ("end", "5"), "match[] must be given"),
        ("label/a-b/values", ("end", "5"), "label must be letters"),
    ],
)
def test_other_questions_are_refused_with_the_word(
    place: Deployment, path: str, given: tuple[str, str], word: str
) -> None:
    async def story(client: QueryClient) -> None:
        status, found = await get(client, path, given)
        assert (status, found["status"], found["errorType"]) == (400, "error", "bad_data")
        assert word in found["error"]
        assert "\n" not in found["error"]

    talk(place, story)


def test_requests_that_cannot_be_read_are_refused_in_one_line(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        url = f"{client.url}/api/v1/read"
        whole = read_request(selected())
        for body, headers, status, text in (
            (b"", PROTOBUF, 400, "data is empty"),
            (b"\xff" * 20, PROTOBUF, 400, "cannot decompress"),
            (whole[:-1], PROTOBUF, 400, "cannot"),
            (read_request(), PROTOBUF, 400, "1 to 32 queries"),
            (read_request(selected(), accepted=(7,)), PROTOBUF, 400, "accepted=`[7]`"),
            (read_request(selected(("a", "=~", "("))), PROTOBUF, 400, "regex does not compile"),
            (whole, {"Content-Type": "application/octet-stream"}, 415, "application/x-protobuf"),
            (read_request(*[selected(*[("a", "=", "b")] * 51)]), PROTOBUF, 400, "51"),
        ):
            async with client.session.post(url, data=body, headers=headers) as response:
                answer = await response.text()
                assert response.status == status, answer
                assert text in answer
                assert "\n" not in answer

    talk(place, story)


def test_an_incomplete_answer_has_its_reason(tmp_path: Path) -> None:
    """In a header of remote read, and in `warnings` of other routes."""
    made = deployment(tmp_path)
    made.deliver([metric_batch([1.0, 2.0])])
    for path in (made.root / "raw-blobs").rglob("*"):
        if path.is_file():
            path.unlink()

    async def story(client: QueryClient) -> None:
        wanted = selected(("__name__", "=", "cpu"))
        for accepted in ((), (1,)):
            status, headers, _ = await read(client, wanted, accepted=accepted)
            assert status == 200
            assert "blob" in headers["X-Sluice-Warnings"]
        _, found = await get(client, "labels")
        assert "blob" in found["warnings"][0]

    talk(made, story)


def test_a_damaged_data_file_is_left_out_with_its_name(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    made.deliver([metric_batch([1.0] * 500)])
    ingest_locally(made.url)
    made.deliver([metric_batch([2.0] * 5, name="other", start=1_000)])
    file = next(made.root.rglob("metrics/**/*.parquet"))
    file.chmod(0o644)
    content = file.read_bytes()
    file.write_bytes(content[:60] + b"\xff" * 340 + content[400:])

    async def story(client: QueryClient) -> None:
        for accepted in ((), (1,)):
            status, headers, body = await read(
                client, selected(("__name__", "!=", "")), accepted=accepted
            )
            assert status == 200
            assert file.name in headers["X-Sluice-Warnings"]
            found = chunks_of(body, 1) if accepted else samples_of(body)
            assert [dict(of)["__name__"] for of in found[0]] == ["other"]
        _, answer = await get(client, "label/__name__/values")
        assert answer["data"] == ["other"]
        assert file.name in answer["warnings"][0]

    talk(made, story)


def test_too_many_samples_or_series_are_refused(
    place: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_query.prometheus.api.SAMPLES_MAX", 100)

    async def story(client: QueryClient) -> None:
        status, _, body = await read(client, selected(("job", "=", "api")))
        assert status == 400
        assert body.startswith(b"the answer has more than 100 samples")
        status, _, body = await read(client, selected(("job", "=", "api")), accepted=(1,))
        assert status == 200
        monkeypatch.setattr("sluice_query.prometheus.series.SERIES_MAX", 3)
        for accepted in ((), (1,)):
            status, _, body = await read(client, selected(("job", "=", "api")), accepted=accepted)
            assert status == 400
            assert body.startswith(b"the selector has more than 3 series")

    talk(place, story)


def test_requests_of_metadata_points_hide_no_series_of_a_job(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    own: Series = {labels("build_metadata", job="api", type="gauge"): every_second(3, bits_of(1))}
    assert write_request(own)
    columns = written_columns(own, received_ns=DAY0_NS, helps={"build": (COUNTER, "builds")})
    made.deliver([sent(columns, agent="door:prometheus:1", resource=(), at_ns=DAY0_NS + NS_PER_S)])

    async def story(client: QueryClient) -> None:
        _, _, body = await read(client, Wanted(0, END, [("__name__", "=~", ".+")]))
        assert samples_of(body) == [own]

    talk(made, story)
