"""One trace and the operations of services, over a lake and pending batches."""

import json
from pathlib import Path

import pytest
from support.query_lake import (
    DAY0_NS,
    QueryClient,
    deployment,
    log_batch,
    put_delete,
    sent,
    talk,
)
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.records import SpanRecord, spans_from_records
from sluice_protocol.units import NS_PER_S

MS = NS_PER_S // 1000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
OTHER = "00000000000000000000000000000001"
SHOP = {"service.name": "shop"}


def span(number: int, name: str, *, parent: int | None = None, **more: object) -> SpanRecord:
    stated = {"ts_ns": DAY0_NS + number * MS, "trace_id": TRACE, "attributes": SHOP, **more}
    return SpanRecord(
        name=name,
        span_id=f"{number:016x}",
        parent_id="" if parent is None else f"{parent:016x}",
        **stated,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Spans of one trace in the lake and pending, a log of it, and another trace."""
    found = deployment(Path(tmp_path_factory.mktemp("traces")))
    later = [span(2, "sql", parent=1, duration_ns=5 * MS, span_kind=3), span(3, "sql", parent=1)]
    found.deliver([sent(spans_from_records(later))])
    found.deliver([sent(spans_from_records([span(9, "other", trace_id=OTHER)]), start=10)])
    ingest_locally(found.url)
    events = '[{"name":"exception"}]'
    root = span(1, "GET /cart", duration_ns=2**53 + 1, status=2, span_kind=2, events=events)
    found.deliver([sent(spans_from_records([root]), start=20)])
    found.deliver([log_batch(["it broke"], start=30, attributes={"trace_id": TRACE})])
    return found


def test_a_trace_has_all_its_spans_by_their_start(place: Deployment) -> None:
    """It needs no range of time, and the id may have the form of a log's."""

    async def story(client: QueryClient) -> None:
        for name in (TRACE, TRACE.upper(), f"{TRACE[:8]}-{TRACE[8:]}"):
            async with client.session.get(f"{client.url}/v1/traces/{name}") as response:
                shown = json.loads(await response.read())
            assert (response.status, shown["trace_id"], shown["more"]) == (200, TRACE, False)
            assert [one["name"] for one in shown["spans"]] == ["GET /cart", "sql", "sql"]
            root, sql, _ = shown["spans"]
            assert (root["duration_ns"], root["status"], root["span_kind"]) == (
                2**53 + 1, "error", "server",
            )  # fmt: skip
            assert ("parent_id" in root, sql["parent_id"]) == (False, root["span_id"])
            assert json.loads(root["events"]) == [{"name": "exception"}]
            assert (sql["service"], shown["summary"]["partial"]) == ("shop", False)

    talk(place, story)


def test_a_trace_that_is_cut_states_it(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        status, shown = await client.get(f"/v1/traces/{TRACE}", limit=2)
        assert (status, len(shown["spans"]), shown["more"]) == (200, 2, True)
        status, shown = await client.get(f"/v1/traces/{TRACE}", to=DAY0_NS + 2 * MS)
        assert [one["name"] for one in shown["spans"]] == ["GET /cart"]

    talk(place, story)


def test_an_unknown_trace_is_not_found(place: Deployment) -> None:
    """An empty success would look like a trace without spans."""

    async def story(client: QueryClient) -> None:
        for name in ("f" * 32, "none", "%C3%A4"):
            status, shown = await client.get(f"/v1/traces/{name}")
            assert (status, shown["code"]) == (404, "not_found")
        status, shown = await client.get(f"/v1/traces/{TRACE}", kind="logs")
        assert (status, shown["code"]) == (400, "bad_request")

    talk(place, story)


def test_operations_have_errors_and_durations(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        status, shown = await client.get("/v1/operations")
        assert status == 200
        found = {one["name"]: one for one in shown["operations"]}
        assert list(found) == ["sql", "GET /cart", "other"]
        assert found["GET /cart"] == {
            "service": "shop", "name": "GET /cart", "spans": 1, "errors": 1,
            "duration_p50_ns": found["GET /cart"]["duration_p50_ns"],
            "duration_p95_ns": found["GET /cart"]["duration_p95_ns"],
            "duration_max_ns": 2**53 + 1,
        }  # fmt: skip
        assert (found["sql"]["spans"], found["sql"]["duration_max_ns"]) == (2, 5 * MS)
        _, shown = await client.get("/v1/operations", limit=1, query='{span_kind="client"}')
        assert [one["spans"] for one in shown["operations"]] == [1]
        _, shown = await client.get("/v1/operations", limit=1)
        assert (len(shown["operations"]), shown["more"]) == (1, True)

    talk(place, story)


def test_an_operation_has_short_texts(tmp_path: Path) -> None:
    """A list of 10,000 operations stays small whatever senders call their services."""
    found = deployment(tmp_path)
    long = "s" * 5_000
    named = span(1, long, attributes={"service.name": long})
    found.deliver([sent(spans_from_records([named]))])

    async def story(client: QueryClient) -> None:
        _, shown = await client.get("/v1/operations")
        (one,) = shown["operations"]
        assert (len(one["service"]), len(one["name"])) == (1_000, 1_000)

    talk(found, story)


@pytest.mark.daily(4)
@pytest.mark.parametrize(
    ("condition", "names"),
    [
        (f"{{}} | duration_ns >= {5 * MS}", ["GET /cart", "sql"]),
        (f"{{}} | duration_ns > {2**53 - 1}", ["GET /cart"]),
        (f"{{}} | duration_ns < {10**30}", ["GET /cart", "sql", "sql", "other"]),
        (f'{{duration_ns="{2**53 + 1}"}}', ["GET /cart"]),
        ('{status="error"}', ["GET /cart"]),
        ('{parent_id=""}', ["GET /cart", "other"]),
        (f'{{trace_id="{OTHER}"}}', ["other"]),
        ('{name="sql"}', ["sql", "sql"]),
        ('{service="shop"}', ["GET /cart", "sql", "sql", "other"]),
    ],
)
def test_spans_are_found_by_their_fields(
    place: Deployment, condition: str, names: list[str]
) -> None:
    async def story(client: QueryClient) -> None:
        *found, last = await client.lines("/v1/query", kind="spans", query=condition)
        assert [one["name"] for one in found] == names
        assert not last["summary"]["partial"]

    talk(place, story)


def test_durations_of_spans_are_numbers_of_a_metric_query(place: Deployment) -> None:
    """Also without `by`, where a duration does not divide the series."""

    async def story(client: QueryClient) -> None:
        at_ns = DAY0_NS + 60 * NS_PER_S
        function = "max_over_time({} | duration_ns > 0 | unwrap duration_ns [1h])"
        given = {"kind": "spans", "from_": at_ns, "to": at_ns}
        *series, _ = await client.lines("/v1/query", query=f"max({function})", **given)
        assert [float(one["points"][0]["value"]) for one in series] == [2.0**53]
        *series, _ = await client.lines("/v1/query", query=function, **given)
        assert [one["labels"]["name"] for one in series] == ["GET /cart", "sql"]
        assert not any("duration_ns" in one["labels"] for one in series)

    talk(place, story)


def test_logs_of_a_trace_are_found_by_its_id(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        *found, _ = await client.lines("/v1/query", query=f'{{trace_id="{TRACE}"}}')
        assert [one["body"] for one in found] == ["it broke"]

    talk(place, story)


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ({"contains": "sql"}, ["GET /cart", "other"]),
        ({"contains": "sq"}, ["GET /cart", "sql", "sql", "other"]),
        ({"attributes": {"service.name": "shop", "db": "a"}}, ["GET /cart", "sql", "other"]),
        ({"agent_id": "host-1", "to_unix_ns": DAY0_NS + 3 * MS}, ["sql", "other"]),
    ],
)
def test_deleted_spans_are_in_no_answer(
    tmp_path: Path, condition: dict[str, object], left: list[str]
) -> None:
    """By whole name, attributes, agent and time; in the lake and pending."""
    made = deployment(tmp_path)
    first = [span(1, "GET /cart"), span(2, "sql", attributes={**SHOP, "db": "a"})]
    made.deliver([sent(spans_from_records(first))])
    ingest_locally(made.url)
    made.deliver([sent(spans_from_records([span(3, "sql"), span(4, "other")]), start=10)])
    stated = {"delete_id": "0" * 26, "kind": "spans", "accepted_until_unix_ns": DAY0_NS}
    put_delete(made, DeleteRecord(**{**stated, **condition}))  # type: ignore[arg-type]

    async def story(client: QueryClient) -> None:
        _, trace = await client.get(f"/v1/traces/{TRACE}")
        assert [one["name"] for one in trace["spans"]] == left
        _, found = await client.get("/v1/operations")
        assert {one["name"] for one in found["operations"]} == set(left)
        *found, _ = await client.lines("/v1/download", kind="spans")
        assert [one["name"] for one in found] == left

    talk(made, story)


def test_a_trace_that_is_too_large_for_a_page_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first span is returned, however large it is."""
    made = deployment(tmp_path)
    spans = [span(number, f"op {number}", events="x" * 1_000) for number in range(1, 10)]
    made.deliver([sent(spans_from_records(spans))])

    async def story(client: QueryClient) -> None:
        for bytes_max, count in ((1, 1), (5_000, 3), (20_000, 9)):
            monkeypatch.setattr("sluice_query.http.read_api.TRACE_BYTES_MAX", bytes_max)
            _, shown = await client.get(f"/v1/traces/{TRACE}")
            assert [one["name"] for one in shown["spans"]] == [f"op {n + 1}" for n in range(count)]
            assert (shown["more"], shown["summary"]["more"]) == (count < 9, count < 9)
            assert shown["summary"]["results"] == count

    talk(made, story)
