"""Histogram, fields, values, and context over a lake and pending batches."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.constants import settings_with
from support.query_lake import (
    DAY0_NS,
    FILES,
    LINES,
    QueryClient,
    deployment,
    log_batch,
    overlapping_ingestions,
    put_delete,
    records,
    talk,
)
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import NS_PER_S
from sluice_query.logql.lexer import quote
from sluice_query.settings import QuerySettings


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return overlapping_ingestions(tmp_path_factory.mktemp("views"))


def test_a_histogram_has_the_records_of_the_search(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        for more in ([], [("query", '{} |= "error"')], [("query", '{path="/var/log/1"}')]):
            *found, last = await client.lines("/v1/query", *more, limit=10_000)
            assert last["summary"]["waiting_batches"] == 2
            status, shown = await client.get("/v1/histogram", *more, by="agent_id")
            assert status == 200
            assert shown["step_ms"] == 1_800_000
            assert sum(one["count"] for one in shown["buckets"]) == len(found)
            assert shown["summary"]["results"] == len(found)
            assert shown["split"] == {"field": "agent_id", "values": ["host-1", "host-2"]}
        span = {"from_": DAY0_NS, "to": DAY0_NS + 200 * NS_PER_S}
        status, shown = await client.get("/v1/histogram", buckets=199, **span)
        assert (status, shown["step_ms"], shown["split"]) == (200, 2000, None)
        counted = {parse_rfc3339(one["ts"]): one["count"] for one in shown["buckets"]}
        found = records(await client.lines("/v1/query", limit=10_000, **span))
        width_ns = 2 * NS_PER_S
        wanted = Counter(parse_rfc3339(one["ts"]) // width_ns * width_ns for one in found)
        assert counted == {start: wanted[start] for start in counted}

    talk(place, story)


def test_files_outside_of_the_range_are_not_read_for_a_histogram(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        _, shown = await client.get("/v1/histogram", to=DAY0_NS + 20 * NS_PER_S)
        assert shown["summary"]["segments_read"] < shown["summary"]["segments_pruned"]
        assert shown["summary"]["results"] == 40

    talk(place, story)


def test_fields_and_values_of_lake_and_pending_batches(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        _, shown = await client.get("/v1/fields")
        total = 2 * LINES * (FILES + 1)
        counted = {one["field"]: (one["count"], one["distinct"]) for one in shown["fields"]}
        labels = {one["field"]: one["label"] for one in shown["fields"]}
        assert counted == {
            "agent_id": (total, 2),
            "boot_id": (total, 1),
            "service": (total, 1),
            "body": (total, None),
            "attributes.path": (total, 2),
            'attributes."a=b"': (total, 1),
            "resource.service.name": (total, 1),
        }
        assert labels == {
            "agent_id": "agent_id",
            "boot_id": "boot_id",
            "service": "service",
            "body": None,
            "attributes.path": "path",
            'attributes."a=b"': "a_b",
            "resource.service.name": None,
        }
        assert (shown["records"], shown["sampled"], shown["more"]) == (total, False, False)
        for field in counted:
            _, values = await client.get("/v1/fields/values", field=field, limit=1)
            assert values["missing"] == 0
            top = values["values"][0]
            if (label := labels[field]) is not None:
                asked = ("query", f"{{{label}={quote(str(top['value']))}}}")
                *_, last = await client.lines("/v1/query", asked, limit=1, stats_only="true")
                assert last["summary"]["results"] == top["count"]
        _, values = await client.get("/v1/fields/values", field="severity")
        assert (values["values"], values["missing"]) == ([], total)

    talk(place, story)


def test_a_sample_is_marked_and_has_the_newest_records(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        _, shown = await client.get("/v1/fields/values", field="attributes.path")
        assert (shown["sampled"], shown["records"]) == (True, 51)
        assert [one["value"] for one in shown["values"]] == ["/var/log/1"]
        _, shown = await client.get("/v1/fields")
        assert shown["sampled"]

    talk(place, story, settings_with(QuerySettings, threads=2, sample_records_max=50))


def test_neighbours_cross_the_borders_of_batches(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        every = records(await client.lines("/v1/query", query='{agent="host-1"}', limit=10_000))
        by_seq = sorted(every, key=lambda one: int(one["seq"]))
        boot = every[0]["boot_id"]
        total = LINES * (FILES + 1)
        for seq, before, after in (
            (0, 5, 5), (LINES, 3, 3), (2 * LINES - 1, 90, 1), (3 * LINES, 2, 2),
            (total - 1, 10, 10), (57, 0, 0), (57, 1000, 1000),
        ):  # fmt: skip
            given = {"agent": "host-1", "boot": boot, "seq": seq, "before": before, "after": after}
            status, shown = await client.get("/v1/context", **given)
            assert status == 200
            assert shown["before"] == by_seq[max(seq - before, 0) : seq]
            assert shown["record"] == by_seq[seq]
            assert shown["after"] == by_seq[seq + 1 : seq + 1 + after]
            assert shown["more_before"] == (seq > before)
            assert shown["more_after"] == (seq + after < total - 1)
        given = {"agent": "host-1", "boot": boot, "seq": LINES}
        more = [("query", '{} |~ " error$" |= "error"'), ("highlight", "true")]
        _, shown = await client.get("/v1/context", *more, **given, before=2, after=2)
        errors = [one["seq"] for one in by_seq if one["body"].endswith("error")]
        assert [one["seq"] for one in shown["before"]] == [n for n in errors if n < LINES][-2:]
        size = len(shown["before"][0]["body"])
        assert shown["before"][0]["highlights"] == [[size - 6, size]]
        _, shown = await client.get("/v1/context", agent="host-1", boot="none", seq=3)
        assert (shown["before"], shown["record"], shown["after"]) == ([], None, [])

    talk(place, story)


@pytest.mark.long
def test_every_view_and_file_selects_by_logql(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        asked = ("query", '{path="/var/log/1"} |= "error" | logfmt | level=""')
        *found, last = await client.lines("/v1/query", asked, limit=10_000, newest_first="true")
        total = last["summary"]["results"]
        assert 0 < total < 2 * LINES * (FILES + 1)
        _, shown = await client.get("/v1/histogram", asked)
        assert shown["summary"]["results"] == total
        _, shown = await client.get("/v1/fields", asked)
        assert shown["records"] == total
        _, shown = await client.get("/v1/fields/values", asked, field="agent_id")
        assert sum(one["count"] for one in shown["values"]) == total
        *stored, last = await client.lines("/v1/download", asked, newest_first="true")
        assert last["summary"]["results"] == total
        assert stored == found
        hit = found[total // 2]
        where = {"agent": hit["agent_id"], "boot": hit["boot_id"], "seq": hit["seq"]}
        _, shown = await client.get("/v1/context", asked, **where, before=1000, after=1000)
        around = [*shown["before"], shown["record"], *shown["after"]]
        same = [one["seq"] for one in found if one["agent_id"] == hit["agent_id"]]
        assert [one["seq"] for one in around] == sorted(same)

    talk(place, story)


def test_a_text_of_logql_is_described(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        async def described(**given: str | int) -> dict[str, Any]:
            async with client.session.get(f"{client.url}/v1/logql", params=given) as response:
                found: dict[str, Any] = await response.json()
                return found

        shown = await described(query='{service="shop"} | js')
        suggested = shown["suggestions"]
        assert (suggested["kind"], suggested["prefix"]) == ("stage", "js")
        assert suggested["words"] == ["json"]
        assert "column=" in shown["problem"]
        shown = await described(query='{service="shop"}', cursor=10)
        assert (shown["is_metric"], shown["problem"]) == (False, None)
        suggested = shown["suggestions"]
        assert (suggested["kind"], suggested["label"]) == ("value", "service")
        assert suggested["prefix"] == '"'
        assert (await described(query="rate({}[5m])"))["is_metric"]
        assert (await described())["problem"] is None
        assert "cursor must be a number" in (await described(cursor=-1))["detail"]

    talk(place, story)


def test_the_routes_are_described_from_their_types(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        async with client.session.get(f"{client.url}/openapi.json") as response:
            document = await response.json()
        neighbours = document["components"]["schemas"]["NeighboursResult"]["properties"]
        assert {"before", "record", "after", "more_before", "more_after", "summary"} == {
            *neighbours
        }
        for path in ("/v1/query/stream", "/v1/tail", "/v1/download"):
            assert "get" in document["paths"][path]

    talk(place, story)


@pytest.mark.parametrize(
    ("path", "given", "message"),
    [
        ("/v1/histogram", {"buckets": "3"}, "buckets must be a number from 4 to 1000"),
        ("/v1/histogram", {"buckets": "1e9"}, "buckets must be a number"),
        ("/v1/histogram", {"by": "colour"}, "by: unknown field: use one of agent_id"),
        ("/v1/histogram", {"limit": "1"}, "unknown parameter"),
        ("/v1/fields/values", {}, "parameter is missing: add field"),
        ("/v1/fields/values", {"field": "value"}, "unknown field"),
        ("/v1/fields/values", {"field": "body", "limit": "1001"}, "limit must be a number"),
        ("/v1/fields", {"filter": "severity=high"}, "parameter is replaced by LogQL"),
        ("/v1/context", {"q": "x"}, "parameter is replaced by LogQL"),
        ("/v1/query", {"query": '{} |~ "("'}, "regex does not compile"),
        ("/v1/context", {"query": "rate({}[5m])"}, "write a log query"),
        ("/v1/download", {"query": "rate({}[5m])"}, "write a log query"),
        ("/v1/logql", {}, "unknown parameter, parameter=`from`"),
        ("/v1/query/stream", {"metric": "cpu"}, "unknown parameter"),
        ("/v1/query/stream", {"limit": "100001"}, "limit must be a number"),
        ("/v1/context", {"agent": "host-1", "boot": "b"}, "parameter is missing: add seq"),
        ("/v1/context", {"boot": "b", "seq": "1"}, "parameter is missing: add agent"),
        ("/v1/context", {"agent": "a", "boot": "b", "seq": "1", "before": "1001"}, "before must"),
    ],
)
def test_a_bad_parameter_is_refused(
    place: Deployment, path: str, given: dict[str, str], message: str
) -> None:
    async def story(client: QueryClient) -> None:
        status, problem = await client.get(path, **given)
        assert (status, problem["code"]) == (400, "bad_request")
        assert message in problem["detail"]

    talk(place, story)


def test_an_unreachable_store_is_a_problem(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    made.deliver([log_batch(["a"])])

    async def story(client: QueryClient) -> None:
        made.root.rename(tmp_path / "gone")
        for path, given in (
            ("/v1/histogram", {}),
            ("/v1/fields", {}),
            ("/v1/fields/values", {"field": "body"}),
            ("/v1/context", {"agent": "host-1", "boot": "b", "seq": 0}),
            ("/v1/query/stream", {}),
            ("/v1/download", {}),
        ):
            status, problem = await client.get(path, **given)
            assert (status, problem["code"]) == (503, "store_unavailable"), path

    talk(made, story)


def test_what_is_missing_makes_every_view_partial(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    lost = log_batch(["a"])
    made.deliver([lost, log_batch(["b"], start=1)])
    for blob in (made.root / "raw-blobs").rglob("*"):
        if blob.is_file() and lost.manifest.frame_sha256 in blob.name:
            blob.unlink()

    async def story(client: QueryClient) -> None:
        boot = lost.manifest.boot_id
        for path, given in (
            ("/v1/histogram", {}),
            ("/v1/fields", {}),
            ("/v1/fields/values", {"field": "body"}),
            ("/v1/context", {"agent": "host-1", "boot": boot, "seq": 0}),
        ):
            status, shown = await client.get(path, **given)
            assert status == 200
            summary = shown["summary"]
            assert (summary["partial"], len(summary["reasons"])) == (True, 1), path
        *_, last = await client.lines("/v1/query/stream")
        assert last["summary"]["partial"]

    talk(made, story)


def test_deletes_apply_to_every_view(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    made.deliver([log_batch(["a secret", "b"])])
    ingest_locally(made.url)
    made.deliver([log_batch(["c secret", "d"], start=2)])
    cut_ns = DAY0_NS + 10 * NS_PER_S
    put_delete(
        made,
        DeleteRecord(
            delete_id="01M7X2Z6Q0000000000000000A",
            kind="logs",
            contains="secret",
            accepted_until_unix_ns=cut_ns,
        ),
    )

    async def story(client: QueryClient) -> None:
        _, shown = await client.get("/v1/histogram")
        assert shown["summary"]["results"] == 2
        _, shown = await client.get("/v1/fields/values", field="body")
        assert [one["value"] for one in shown["values"]] == ["b", "d"]
        lines = await client.lines("/v1/query/stream")
        assert [one["body"] for one in records(lines)] == ["d", "b"]

    talk(made, story)


def test_a_query_ends_when_its_client_goes_away(
    place: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is interrupted, and its place is free for others."""
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def wait_long(*_: object) -> None:
        entered.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    monkeypatch.setattr("sluice_query.search.read_pending", wait_long)

    async def story(client: QueryClient) -> None:
        for path in ("/v1/histogram", "/v1/query/stream", "/v1/query"):
            entered.clear()
            cancelled.clear()
            request = asyncio.ensure_future(client.get(path))
            await asyncio.wait_for(entered.wait(), 30)
            request.cancel()
            await asyncio.wait_for(cancelled.wait(), 30)
        async with client.session.get(f"{client.url}/metrics") as response:
            text = await response.text()
        assert "sluice_query_running_requests 0.0" in text

    talk(place, story)
