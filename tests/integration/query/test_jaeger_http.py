"""The routes of Jaeger, with the requests of Grafana's data source and of Jaeger's page."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.query_lake import DAY0_NS, QueryClient, deployment, sent, talk
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_protocol.records import SpanRecord, spans_from_records
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S
from sluice_protocol.values import IntegerText

MS = NS_PER_S // 1000
START_NS = SystemClock().now_ns() // MS * MS - 60 * NS_PER_S
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
OTHER = "00000000000000001111111111111111"
SHOP = (("region", "north"), ("service.name", "shop"))
BANK = (("service.name", "bank"),)
RANGE = {"start": str((START_NS - NS_PER_S) // 1000), "end": str((START_NS + NS_PER_S) // 1000)}


def span(number: int, name: str, **more: object) -> SpanRecord:
    stated = {"ts_ns": START_NS + number * MS, "trace_id": TRACE, **more}
    return SpanRecord(name=name, span_id=f"{number:016x}", **stated)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A trace of two services, of which one span is pending, and a shorter trace."""
    made = deployment(Path(tmp_path_factory.mktemp("jaeger")))
    pay = span(2, "pay", parent_id=f"{1:016x}", duration_ns=5 * MS, status=2, status_message="no")
    made.deliver([sent(spans_from_records([pay]), resource=BANK)])
    short = span(9, "GET /cart", trace_id=OTHER, duration_ns=MS)
    made.deliver([sent(spans_from_records([short]), resource=SHOP, start=10)])
    ingest_locally(made.url)
    at = "2026-11-28T10:00:00.000001Z"
    root = span(
        1,
        "GET /cart",
        duration_ns=250 * MS + 999,
        span_kind=2,
        events=json.dumps([{"attributes": {"n": 1}, "name": "exception", "ts": at}]),
        links=json.dumps([{"span_id": "01", "trace_id": OTHER}]),
        attributes={"http.method": "GET", "http.status": IntegerText("500")},
    )
    made.deliver([sent(spans_from_records([root]), resource=SHOP, start=20)])
    return made


async def ask(client: QueryClient, path: str, **given: str) -> tuple[int, Any]:
    async with client.session.get(f"{client.url}/api/{path}", params=given) as response:
        return response.status, json.loads(await response.read())


async def found_by(client: QueryClient, **given: str) -> list[str]:
    """Return the ids of the traces that a search finds."""
    status, found = await ask(client, "traces", **RANGE, **given)
    assert status == 200
    return [one["traceID"] for one in found["data"]]


def test_services_and_operations(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        _, found = await ask(client, "services")
        assert found["data"] == ["bank", "shop"]
        assert found["errors"] is None
        assert found["total"] == 2
        _, found = await ask(client, "services/shop/operations")
        assert found["data"] == ["GET /cart"]
        _, found = await ask(client, "services/none/operations")
        assert found["data"] == []

    talk(place, story)


def test_a_trace_has_spans_of_both_services(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        status, found = await ask(client, f"traces/{TRACE}")
        assert status == 200
        (trace,) = found["data"]
        assert trace["traceID"] == TRACE
        root, pay = sorted(trace["spans"], key=lambda one: str(one["spanID"]))
        names = {key: one["serviceName"] for key, one in trace["processes"].items()}
        assert (names[root["processID"]], names[pay["processID"]]) == ("shop", "bank")
        tags = trace["processes"][root["processID"]]["tags"]
        assert tags == [{"key": "region", "type": "string", "value": "north"}]
        assert root["startTime"] == (START_NS + MS) // 1000
        assert root["duration"] == 250_000
        assert root["references"] == [{"refType": "FOLLOWS_FROM", "traceID": OTHER, "spanID": "01"}]
        shown = {one["key"]: (one["type"], one["value"]) for one in root["tags"]}
        assert shown["http.status"] == ("int64", 500)
        assert shown["http.method"] == ("string", "GET")
        assert shown["span.kind"] == ("string", "server")
        (log,) = root["logs"]
        assert log["timestamp"] == 1_795_860_000_000_001
        assert {one["key"]: one["value"] for one in log["fields"]} == {"event": "exception", "n": 1}
        assert pay["references"] == [
            {"refType": "CHILD_OF", "traceID": TRACE, "spanID": root["spanID"]}
        ]
        shown = {one["key"]: (one["type"], one["value"]) for one in pay["tags"]}
        assert shown["error"] == ("bool", True)
        assert shown["otel.status_description"] == ("string", "no")

    talk(place, story)


@pytest.mark.long
def test_a_search_returns_whole_traces(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        assert await found_by(client, service="shop") == [OTHER, TRACE]
        assert await found_by(client, service="shop", limit="1") == [OTHER]
        assert await found_by(client, service="bank") == [TRACE]
        assert await found_by(client, service="shop", operation="GET /cart") == [OTHER, TRACE]
        assert await found_by(client, service="bank", operation="GET /cart") == []
        assert await found_by(client, service="shop", minDuration="100ms") == [TRACE]
        assert await found_by(client, service="shop", maxDuration="1.5ms") == [OTHER]
        assert await found_by(client, service="shop", tags='{"http.method":"GET"}') == [TRACE]
        assert await found_by(client, service="shop", tags='{"http.status":500}') == [TRACE]
        assert await found_by(client, service="shop", tags='{"region":"north"}') == [OTHER, TRACE]
        assert await found_by(client, tags='{"error":"true"}') == [TRACE]
        assert await found_by(client, service="shop", tags='{"span.kind":"server"}') == [TRACE]
        _, found = await ask(client, "traces", **RANGE, service="bank")
        assert len(found["data"][0]["spans"]) == 2
        early = {"start": "1", "end": str(DAY0_NS // 1000 - 1)}
        _, found = await ask(client, "traces", **early, service="shop")
        assert found["data"] == []

    talk(place, story)


def test_a_short_id_has_the_zeros_that_it_lacks(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        status, found = await ask(client, f"traces/{OTHER.lstrip('0')}")
        assert status == 200
        assert found["data"][0]["traceID"] == OTHER

    talk(place, story)


@pytest.mark.parametrize(
    ("path", "given", "status", "said"),
    [
        ("traces/" + "a" * 32, {}, 404, "trace not found"),
        ("traces", {"start": "yesterday"}, 400, "start must be a Unix time in µs"),
        ("traces", {"minDuration": "long"}, 400, "minDuration: must be"),
        ("traces", {"tags": "a=b"}, 400, "tags must be a JSON object"),
        ("traces", {"tags": "[1]"}, 400, "tags must be a JSON object"),
        ("traces", {"limit": "many"}, 400, "limit must be a number"),
    ],
)
def test_an_error_has_jaegers_form(
    place: Deployment, path: str, given: dict[str, str], status: int, said: str
) -> None:
    """An unknown trace is 404: Grafana fails at an empty success."""

    async def story(client: QueryClient) -> None:
        sent_status, found = await ask(client, path, **given)
        assert sent_status == status
        assert found["data"] is None
        assert said in found["errors"][0]["msg"]

    talk(place, story)


def test_the_routes_need_the_token(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        assert (await ask(client, "services"))[0] == 401

    talk(place, story, api_token="secret")


def test_spans_without_a_service_and_those_of_its_name_are_found_together(tmp_path: Path) -> None:
    """SDKs of OpenTelemetry state `unknown_service` themselves."""
    made = deployment(tmp_path)
    own = span(1, "own", trace_id=TRACE)
    made.deliver([sent(spans_from_records([own]), resource=(("service.name", "unknown_service"),))])
    none = span(2, "none", trace_id=OTHER)
    made.deliver([sent(spans_from_records([none]), start=10, resource=())])

    async def story(client: QueryClient) -> None:
        _, found = await ask(client, "services")
        assert found["data"] == ["unknown_service"]
        _, found = await ask(client, "services/unknown_service/operations")
        assert found["data"] == ["none", "own"]
        assert sorted(await found_by(client, service="unknown_service")) == sorted([TRACE, OTHER])

    talk(made, story)
