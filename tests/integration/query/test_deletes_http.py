"""`/v1/deletes` over real tables: counts, records, state, and who may do what."""

import asyncio
import datetime as dt
import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from structlog.testing import capture_logs
from support.commands import sluice
from support.query_lake import (
    DAY0_NS,
    bodies,
    deployment,
    log_batch,
    make_query,
    metric_batch,
    run_query,
)
from support.spark_lake import Deployment
from support.spark_local import ingest_locally
from ulid import ULID

from sluice_lake.delta import open_or_create_table
from sluice_lake.schemas import arrow_schema
from sluice_lake.source_ranges import ROLLUP_APP, DeleteIds, SourceRange, source_range_key
from sluice_lake.tables import ROLLUPS
from sluice_protocol.keys import blob_key
from sluice_protocol.manifests import encode_record
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S
from sluice_query.http.service import make_query_app
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings, ServeSettings
from sluice_store import open_store
from sluice_store.stored_deletes import read_all_deletes
from sluice_web.connection_guard import listening

OPERATORS = f"alice={hashlib.sha256(b'of-alice').hexdigest()}"
ALICE, READER = "of-alice", "of-readers"
WHERE = "agent = 'host-1' and body contains 'secret'"

Call = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture
def place(tmp_path: Path) -> Deployment:
    made = deployment(tmp_path)
    made.deliver([log_batch(["a secret", "b", "c secret"])])
    made.deliver([log_batch(["of another agent: secret"], agent="host-2")])
    ingest_locally(made.url)
    made.deliver([log_batch(["d secret"], start=3, from_ns=DAY0_NS + 9 * NS_PER_S)])
    return made


def talk(place: Deployment, story: Callable[[Call], Awaitable[None]]) -> None:
    async def run() -> None:
        async with open_store(place.url) as store, aiohttp.ClientSession() as session:
            searcher = Searcher(
                store=store,
                store_url=place.url,
                settings=QuerySettings(threads=2),
                clock=SystemClock(),
            )
            app = make_query_app(searcher, ServeSettings(api_token=READER, operators=OPERATORS))
            async with listening(app, "127.0.0.1:0") as (url, *_):

                async def call(
                    method: str, path: str, body: object = None, token: str = ALICE, **fields: str
                ) -> tuple[int, Any]:
                    headers = {"Authorization": f"Bearer {token}"} if token else {}
                    data = None if body is None else json.dumps(body)
                    headers |= {"Content-Type": "application/json"} if body is not None else {}
                    headers |= {name.replace("_", "-"): value for name, value in fields.items()}
                    async with session.request(
                        method, url + path, data=data, headers=headers
                    ) as response:
                        return response.status, json.loads(await response.read())

                await story(call)

    asyncio.run(run())


def stored(place: Deployment) -> list[DeleteRecord]:
    async def read() -> list[DeleteRecord]:
        async with open_store(place.url) as store:
            return await read_all_deletes(store)

    return asyncio.run(read())


def test_a_dry_run_counts_each_source_and_writes_nothing(place: Deployment) -> None:
    async def story(call: Call) -> None:
        status, found = await call("POST", "/v1/deletes", {"where": WHERE, "dry_run": True})
        assert status == 200
        preview = found["preview"]
        assert preview["matches"] == [
            {"source": "logs", "records": 2, "batches": 1},
            {"source": "pending", "records": 1, "batches": 1},
        ]
        assert preview["accepted_until"] is not None
        assert (preview["partial"], preview["reasons"], found["created"]) == (False, [], False)
        none = {"where": "agent = 'host-9'", "dry_run": True}
        _, found = await call("POST", "/v1/deletes", none)
        assert {one["records"] for one in found["preview"]["matches"]} == {0}

    talk(place, story)
    assert stored(place) == []


def test_the_counts_are_what_the_delete_then_hides(place: Deployment) -> None:
    async def story(call: Call) -> None:
        before = len(bodies(await asyncio.to_thread(run_query, place, make_query())))
        body = {"where": WHERE, "reason": "asked by the owner"}
        _, counted = await call("POST", "/v1/deletes", {**body, "dry_run": True})
        status, written = await call("POST", "/v1/deletes", body)
        assert (status, written["created"], written["preview"]) == (200, True, None)
        assert written["record"]["principal"] == "operator:alice"
        left = await asyncio.to_thread(run_query, place, make_query())
        assert sorted(map(str, bodies(left))) == ["b", "of another agent: secret"]
        hidden = sum(one["records"] for one in counted["preview"]["matches"])
        assert before - len(left.records) == hidden
        _, again = await call("POST", "/v1/deletes", {**body, "dry_run": True})
        assert sum(one["records"] for one in again["preview"]["matches"]) == 0

    talk(place, story)
    (only,) = stored(place)
    assert (only.principal, only.reason) == ("operator:alice", "asked by the owner")


def test_missing_blobs_and_late_batches_make_the_counts_partial(place: Deployment) -> None:
    late = log_batch(["e secret"], start=4)
    place.deliver([late])
    (place.root / blob_key(late.manifest.digest)).unlink()

    async def story(call: Call) -> None:
        _, found = await call("POST", "/v1/deletes", {"where": WHERE, "dry_run": True})
        assert found["preview"]["partial"] is True
        assert found["preview"]["reasons"]

    talk(place, story)


def test_the_same_id_writes_once_and_means_one_delete(place: Deployment) -> None:
    async def story(call: Call) -> None:
        body = {"delete_id": str(ULID()), "where": WHERE, "older_than_days": 0}
        answers = [await call("POST", "/v1/deletes", body) for _ in range(3)]
        assert [status for status, _ in answers] == [200] * 3
        assert [found["created"] for _, found in answers] == [True, False, False]
        assert len({found["record"]["accepted_until_unix_ns"] for _, found in answers}) == 1
        status, problem = await call("POST", "/v1/deletes", {**body, "where": "agent = 'x'"})
        assert (status, problem["code"]) == (409, "delete_id_taken")
        assert (problem["retryable"], problem["effect"]) == (False, "none")

    talk(place, story)
    assert len(stored(place)) == 1


def test_the_state_names_the_tables_that_honour_a_delete(place: Deployment) -> None:
    async def story(call: Call) -> None:
        _, narrow = await call("POST", "/v1/deletes", {"where": WHERE})
        _, metrics = await call("POST", "/v1/deletes", {"kind": "metrics", "where": "name = 'cpu'"})
        _, view = await call("GET", f"/v1/deletes/{narrow['record']['delete_id']}", token=READER)
        assert (view["record"], view["active"]) == (narrow["record"], True)
        assert view["tables"] == [{"table": "logs", "honoured": False, "records_left": 3}]
        _, view = await call("GET", f"/v1/deletes/{metrics['record']['delete_id']}")
        assert view["tables"] == [
            {"table": "metrics", "honoured": True, "records_left": 0},
            {"table": "rollups", "honoured": True, "records_left": None},
        ]
        status, problem = await call("GET", "/v1/deletes/" + "0" * 26)
        assert (status, problem["code"]) == (404, "not_found")
        assert (await call("GET", "/v1/deletes/x"))[0] == 400

    place.deliver([metric_batch([1.0], name="memory", start=50)])
    ingest_locally(place.url)
    talk(place, story)


def test_deletes_are_listed_in_pages_and_a_damaged_one_is_shown(place: Deployment) -> None:
    async def story(call: Call) -> None:
        for agent in "abc":
            body = {"where": f"agent = '{agent}'"}
            assert (await call("POST", "/v1/deletes", body))[0] == 200
        damaged = place.root / "deletes/v1/7ZZZZZZZZZZZZZZZZZZZZZZZZZ.json"
        damaged.write_bytes(b"{}")
        seen, path = [], "/v1/deletes?limit=2"
        while path:
            _, page = await call("GET", path, token=READER)
            assert len(page["items"]) <= 2
            seen += page["items"]
            path = f"/v1/deletes?limit=2&after={page['next']}" if page["next"] else ""
        assert [one.get("agent_id") for one in seen[:3]] == ["a", "b", "c"]
        assert "not valid" in seen[3]["unreadable"]
        assert (await call("GET", "/v1/deletes?after=accepted/"))[0] == 400

    talk(place, story)


def test_only_an_operator_deletes_and_only_through_the_gate(place: Deployment) -> None:
    async def story(call: Call) -> None:
        body = {"where": WHERE}
        assert (await call("POST", "/v1/deletes", body, token=""))[0] == 401
        assert (await call("POST", "/v1/deletes", body, token="other"))[0] == 401
        for wanted in (body, {**body, "dry_run": True}):
            status, problem = await call("POST", "/v1/deletes", wanted, token=READER)
            assert (status, problem["code"]) == (403, "forbidden")
        assert (await call("GET", "/v1/deletes", token=READER))[0] == 200
        assert (await call("POST", "/v1/deletes", body, Host="evil.example"))[0] == 403
        assert (await call("POST", "/v1/deletes", body, Origin="https://evil.example"))[0] == 403
        status, _ = await call("POST", "/v1/deletes", body, Content_Type="text/plain")
        assert status == 415

    talk(place, story)
    assert stored(place) == []


REFUSED: list[object] = [
    [],
    {},
    {"where": ""},
    {"where": "agent = 'a' or 1 = 1"},
    {"where": 5},
    {"kind": "all", "where": "agent = 'a'"},
    {"where": "agent = 'a'", "limit": 5},
    {"where": "agent = 'a'", "delete_id": "mine"},
    {"where": "agent = 'a'", "delete_id": str(ULID.from_timestamp(1))},
    {"where": "agent = 'a'", "older_than_days": -1},
    {"where": "agent = 'a'", "older_than_days": "1"},
    {"where": "agent = 'a'", "principal": "operator:bob"},
]


def test_bad_input_is_refused_with_a_reason_and_writes_nothing(place: Deployment) -> None:
    async def story(call: Call) -> None:
        for body in REFUSED:
            status, problem = await call("POST", "/v1/deletes", body)
            assert (status, problem["code"]) == (400, "bad_request"), body
            assert problem["detail"], body

    talk(place, story)
    assert stored(place) == []


def test_each_delete_is_one_line_of_the_log_and_described(place: Deployment) -> None:
    async def story(call: Call) -> None:
        with capture_logs() as logs:
            _, written = await call("POST", "/v1/deletes", {"where": WHERE, "reason": "r"})
        (line,) = [one for one in logs if one["event"] == "delete_submitted"]
        assert line["delete_id"] == written["record"]["delete_id"]
        assert (line["by"], line["reason"], line["created"]) == ("operator:alice", "r", True)
        _, described = await call("GET", "/openapi.json")
        assert set(described["paths"]["/v1/deletes"]) == {"get", "post"}
        assert "409" in described["paths"]["/v1/deletes"]["post"]["responses"]
        assert "DeleteRequest" in described["components"]["schemas"]

    talk(place, story)


def put_rollups(place: Deployment, number: int, deletes: tuple[str, ...]) -> None:
    """Commit one row of `rollups` and the source range that it is made of."""
    day = dt.datetime(2026, 9, 21, 14, tzinfo=dt.UTC)
    row = {column.name: None for column in ROLLUPS.columns}
    row |= {"window": "1h", "window_start": day, "name": "cpu", "agent_id": "host-1"}
    row |= {"attributes": {}, "window_date": day.date()}
    table: DeltaTable = open_or_create_table(place.url, ROLLUPS)
    write_deltalake(
        table,
        pa.Table.from_pylist([row], schema=arrow_schema(ROLLUPS)),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction(ROLLUP_APP, number)]),
    )

    async def put() -> None:
        source = SourceRange(number=number, after={}, through={}, deletes=DeleteIds(listed=deletes))
        async with open_store(place.url) as store:
            await store.create(source_range_key(number), encode_record(source))

    asyncio.run(put())


def test_rollups_are_counted_by_their_times_and_honour_what_their_source_range_lists(
    place: Deployment,
) -> None:
    """The row is of the hour that begins at 14:00; the points begin at 14:13."""
    cpu = {"kind": "metrics", "where": "name = 'cpu'"}
    ids: list[str] = []

    async def count(call: Call, **changes: str) -> list[dict[str, object]]:
        _, found = await call("POST", "/v1/deletes", {**cpu, **changes, "dry_run": True})
        matches: list[dict[str, object]] = found["preview"]["matches"]
        return matches

    async def before(call: Call) -> None:
        assert await count(call) == [
            {"source": "metrics", "records": 3, "batches": 1},
            {"source": "rollups", "records": 1, "batches": None},
        ]
        assert (await count(call, **{"from": format_rfc3339(DAY0_NS)}))[-1]["records"] == 1
        for changes in (
            {"from": "2026-09-21T15:00:00Z"},
            {"from": "2026-09-20T00:00:00Z", "to": "2026-09-21T14:00:00Z"},
            {"where": "name = 'memory'"},
            {"where": "agent = 'host-2'"},
        ):
            assert (await count(call, **changes))[-1]["records"] == 0
        _, written = await call("POST", "/v1/deletes", cpu)
        ids.append(written["record"]["delete_id"])
        _, view = await call("GET", f"/v1/deletes/{ids[0]}")
        assert view["tables"] == [
            {"table": "metrics", "honoured": False, "records_left": 3},
            {"table": "rollups", "honoured": False, "records_left": None},
        ]

    async def after(call: Call) -> None:
        _, view = await call("GET", f"/v1/deletes/{ids[0]}")
        assert view["tables"][1] == {"table": "rollups", "honoured": True, "records_left": None}

    place.deliver([metric_batch([1.0, 2.0, 3.0], start=50)])
    ingest_locally(place.url)
    put_rollups(place, 1, ())
    talk(place, before)
    put_rollups(place, 2, (ids[0],))
    talk(place, after)


def test_the_command_counts_and_repeats_by_the_same_decision(place: Deployment) -> None:
    base = ("delete", "--store", place.url, "--json", "--where")
    given = (base[0], "--delete-id", str(ULID()), *base[1:])

    counted = sluice(*base, WHERE, "--dry-run")
    assert counted.returncode == 0, counted.stderr
    assert json.loads(counted.stdout)["preview"]["matches"][0]["records"] == 2
    assert stored(place) == []
    first, again = sluice(*given, WHERE), sluice(*given, WHERE)
    assert json.loads(first.stdout) == json.loads(again.stdout)
    other = sluice(*given, "agent = 'another'")
    assert other.returncode == 2
    assert "another delete has this id" in other.stderr
    (only,) = stored(place)
    assert only.principal.startswith("cli:")
