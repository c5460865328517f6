"""The live tail and downloads over HTTP, with a real lake, pending batches and a reconciler."""

import asyncio
import io
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow.parquet as pq
import pytest
from aiohttp.test_utils import TestServer
from support.query_lake import (
    DAY0_NS,
    QueryClient,
    deployment,
    log_batch,
    many_lines,
    served_queries,
    talk,
)
from support.spark_lake import Deployment, Sent
from support.spark_local import ingest_locally
from support.store_versitygw import free_port

from sluice_protocol.units import NS_PER_S
from sluice_query.http import download_api
from sluice_query.result import Row
from sluice_query.settings import QuerySettings
from sluice_reconciler.app import make_operator_app
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store import open_store


@pytest.fixture
def place(tmp_path: Path) -> Deployment:
    return deployment(tmp_path)


def batch_of_now(lines: list[str], start: int, age_s: int = 0) -> Sent:
    """Return a batch that is accepted now, of records that are older."""
    now_ns = time.time_ns()
    at_ns = now_ns - age_s * NS_PER_S
    return log_batch(lines, start=start, from_ns=at_ns, step_ns=1, at_ns=now_ns)


async def deliver_now(place: Deployment, lines: list[str], start: int, age_s: int = 0) -> None:
    batch = batch_of_now(lines, start, age_s)
    await asyncio.to_thread(place.deliver, [batch])


async def events(
    client: QueryClient, headers: dict[str, str] | None = None, **given: object
) -> AsyncIterator[tuple[str, dict[str, str], Any]]:
    """Yield the name, the fields and the data of each event."""
    url = client.target("/v1/tail", **({"from_": "1m"} | given)).partition("&to=")[0]
    async with client.session.get(url, headers=headers or {}) as response:
        assert response.status == 200, await response.read()
        assert response.headers["Content-Type"] == "text/event-stream"
        fields: dict[str, str] = {}
        async for line in response.content:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif "event" in fields:
                yield fields["event"], fields, json.loads(fields["data"])
                fields = {}


async def gathered(
    found: AsyncIterator[tuple[str, dict[str, str], Any]], count: int
) -> tuple[list[str], str]:
    """Return that many bodies, and the position after them."""
    bodies: list[str] = []
    async with asyncio.timeout(30):
        async for name, fields, data in found:
            if name == "record":
                bodies.append(data["body"])
            elif len(bodies) >= count:
                assert fields["id"] == data["position"]
                return bodies, data["position"]
    raise AssertionError("the tail ended")


def test_a_tail_returns_each_new_record_once_and_resumes(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        hour_ago_ns = time.time_ns() - 3600 * NS_PER_S
        old = log_batch(["old"], from_ns=hour_ago_ns, at_ns=hour_ago_ns)
        await asyncio.to_thread(place.deliver, [old])
        await deliver_now(place, ["a", "b"], 1)
        found = events(client)
        assert (await gathered(found, 2))[0] == ["a", "b"]
        await deliver_now(place, ["late", "x"], 3, age_s=7200)
        shown, position = await gathered(found, 2)
        # An old record is new if it was accepted recently.
        assert shown == ["late", "x"]
        await found.aclose()  # type: ignore[attr-defined]
        await asyncio.to_thread(ingest_locally, place.url)
        await deliver_now(place, ["while paused"], 5)
        browser = {"headers": {"Last-Event-ID": position}, "after": "p.1"}
        for more in (browser, {"after": position}):
            found = events(client, **more)  # type: ignore[arg-type]
            shown, _ = await gathered(found, 1)
            # What was accepted shortly before the position may be repeated.
            assert shown[-1] == "while paused"
            assert len(shown) == len(set(shown))
            assert "old" not in shown
            await found.aclose()  # type: ignore[attr-defined]

    talk(place, story)


def test_a_tail_has_an_end_and_filters(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        await deliver_now(place, ["an error", "b"], 0)
        found = [one async for one in events(client, query='{} |= "error"', highlight="true")]
        assert [name for name, _, _ in found] == ["record", "state"]
        assert found[0][2]["highlights"] == [[3, 8]]
        assert not found[1][2]["more"]

    talk(place, story, tail_s_max=0.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"after": "x"}, "after is not a position"),
        ({"after": "p."}, "after is not a position"),
        ({"after": "p." + "9" * 30}, "after is not a position"),
        ({"after": "r.1"}, "after is a position of a reconciler"),
        ({"metric": "cpu"}, "unknown parameter"),
        ({"limit": "0"}, "limit must be a number"),
    ],
)
def test_a_bad_tail_is_refused(place: Deployment, given: dict[str, str], message: str) -> None:
    async def story(client: QueryClient) -> None:
        url = client.target("/v1/tail", **given)
        async with client.session.get(re.sub("&to=[0-9]+", "", url)) as response:
            assert response.status == 400
            assert message in (await response.json())["detail"]

    talk(place, story)


def test_only_so_many_clients_follow(place: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice_query.http.tail_api.TAILS_MAX", 1)

    async def story(client: QueryClient) -> None:
        await deliver_now(place, ["a"], 0)
        first = events(client)
        await gathered(first, 1)
        url = client.target("/v1/tail").partition("?")[0]
        async with client.session.get(url) as response:
            assert (response.status, (await response.json())["code"]) == (503, "overloaded")
        await first.aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(30):
            while True:
                async with client.session.get(url) as response:
                    if response.status == 200:
                        break
                await asyncio.sleep(0.1)

    talk(place, story)


async def test_a_tail_reads_the_live_records_of_a_reconciler(place: Deployment) -> None:
    found = ReconcilerSettings(tail_interval_s=0.05, pass_interval_s=0.05, live_bytes_max=1 << 20)
    async with open_store(place.url) as store:
        service = await Reconciler.of(store, settings=found)
        async with TestServer(make_operator_app(service)) as server:
            url = str(server.make_url("/"))
            async with served_queries(place, reconciler=url) as client:
                await _follow_live(client, place)


async def _follow_live(client: QueryClient, place: Deployment) -> None:
    await asyncio.to_thread(place.accept, [batch_of_now(["a", "b"], 0)])
    found = events(client, from_="0")
    shown, position = await gathered(found, 2)
    assert shown == ["a", "b"]
    assert position.startswith("r.")
    await found.aclose()  # type: ignore[attr-defined]
    await asyncio.to_thread(place.accept, [batch_of_now(["c"], 2)])
    assert (await gathered(events(client, from_="0", after=position), 1))[0] == ["c"]


def test_an_unreachable_reconciler_is_a_problem(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        url = client.target("/v1/tail").partition("?")[0]
        async with client.session.get(url) as response:
            assert response.status == 503
            assert "reconciler is unreachable" in (await response.json())["detail"]

    talk(place, story, reconciler=f"http://127.0.0.1:{free_port()}")


RECORDS = 10_000
ROWS_PER_PART = 4096


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    made = deployment(tmp_path_factory.mktemp("full"))
    made.deliver([log_batch(many_lines(RECORDS), step_ns=1_000, attributes={"k": "v"})])
    ingest_locally(made.url)
    made.deliver([log_batch(["pending"], start=RECORDS, from_ns=DAY0_NS - 1)])
    return made


RANGE = {"from_": DAY0_NS - 1}


async def download(client: QueryClient, **given: object) -> tuple[aiohttp.ClientResponse, bytes]:
    async with client.session.get(client.target("/v1/download", **RANGE, **given)) as response:
        return response, await response.read()


@pytest.mark.daily(1)
@pytest.mark.parametrize("limit", [RECORDS + 1, RECORDS, ROWS_PER_PART, 1])
def test_a_download_has_all_records_in_order(
    full: Deployment, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when they are more than one part, or exactly one."""
    monkeypatch.setattr(download_api, "ROWS_PER_PART", ROWS_PER_PART)

    async def story(client: QueryClient) -> None:
        given = {"limit": limit, **RANGE}
        wanted: list[Row] = (await client.lines("/v1/query", **given))[:-1]
        assert wanted[0]["body"] == "pending"
        response, body = await download(client, limit=limit)
        assert (
            response.headers["Content-Disposition"] == 'attachment; filename="sluice-logs.ndjson"'
        )
        *lines, last = [json.loads(line) for line in body.splitlines()]
        assert lines == wanted
        assert (last["summary"]["results"], last["summary"]["more"]) == (limit, limit <= RECORDS)
        _, body = await download(client, limit=limit, format="parquet")
        file = pq.ParquetFile(io.BytesIO(body))
        table = file.read()
        assert table["body"].to_pylist() == [one["body"] for one in wanted]
        summary = json.loads(file.metadata.metadata[b"sluice.summary"])
        assert (summary["results"], summary["partial"]) == (limit, False)

    talk(full, story)


def test_an_empty_download_is_a_valid_file(full: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        _, body = await download(client, format="parquet", query='{agent="none"}')
        table = pq.ParquetFile(io.BytesIO(body)).read()
        assert (table.num_rows, table.column_names[:2]) == (0, ["agent_id", "boot_id"])
        _, body = await download(client, query='{agent="none"}')
        assert list(json.loads(body)) == ["summary"]

    talk(full, story)


def test_a_download_over_its_time_is_not_a_complete_file(full: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        for form in ("ndjson", "parquet"):
            try:
                response, body = await download(client, format=form)
            except aiohttp.ClientError:
                continue
            assert (response.status, json.loads(body)["code"]) == (503, "overloaded")

    talk(full, story, QuerySettings(threads=1), download_s_max=0.001)


def test_only_so_many_downloads_run(full: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice_query.http.download_api.DOWNLOADS_MAX", 0)

    async def story(client: QueryClient) -> None:
        response, body = await download(client)
        assert (response.status, json.loads(body)["code"]) == (503, "overloaded")

    talk(full, story)
