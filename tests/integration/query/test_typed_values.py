"""A value has the same JSON in every result: pending, in the lake, live, and in a download."""

import asyncio
import io
from contextlib import aclosing
from pathlib import Path

import aiohttp
import pyarrow.parquet as pq
import pytest
from aiohttp.test_utils import TestServer
from support.query_lake import (
    DAY0_NS,
    QueryClient,
    deployment,
    log_batch,
    make_query,
    run_query,
    sent,
    talk,
)
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_protocol.records import LogRecord, SpanRecord, logs_from_records, spans_from_records
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.values import BooleanText, BytesText, FloatText, IntegerText, JsonText
from sluice_query.following import LiveRecordsClient, follow_live
from sluice_query.result import QueryResult, result_lines
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings
from sluice_reconciler.app import make_operator_app
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store import open_store

VALUES = {
    "status": IntegerText("500"),
    "code": "500",
    "large": IntegerText("9223372036854775809"),
    "zero": IntegerText("-0"),
    "ratio": FloatText("1.50"),
    "far": FloatText("1e300"),
    "none": FloatText("NaN"),
    "ok": BooleanText("true"),
    "word": "true",
    "left": JsonText("null"),
    "list": JsonText('[1,"a",9223372036854775809]'),
    "map": JsonText('{"b":1.50,"a":{}}'),
    "raw": BytesText("AP8="),
}
SHOWN = (
    b'"attributes":{"code":"500","far":1e300,"large":9223372036854775809,"left":null,'
    b'"list":[1,"a",9223372036854775809],"map":{"b":1.50,"a":{}},"none":"NaN","ok":true,'
    b'"ratio":1.50,"raw":"AP8=","status":500,"word":"true","zero":-0},'
    b'"attribute_types":{"none":"float","raw":"bytes"}'
)


def typed(place: Path, *, plain: int = 0, at_ns: int = DAY0_NS) -> Deployment:
    """Return a deployment with a batch of a record with types, and others without."""
    made = deployment(place)
    record = LogRecord(ts_ns=DAY0_NS, body="typed", attributes=VALUES)
    others = [
        log_batch(["plain"], start=start, attributes={"code": "500"})
        for start in range(1, plain + 1)
    ]
    made.deliver([sent(logs_from_records([record]), at_ns=at_ns), *others])
    return made


def attributes_of(result: QueryResult) -> list[bytes]:
    """Return the lines of records without what is before their attributes."""
    lines = list(result_lines(result))[:-1]
    return [line[line.index(b'"attributes"') : line.index(b',"resource"')] for line in lines]


@pytest.mark.daily(1)
@pytest.mark.parametrize("plain", [0, 3])
def test_a_record_has_its_types_before_and_after_its_ingestion(tmp_path: Path, plain: int) -> None:
    """Alone and together with small batches without types; a search for a text finds it too."""
    made = typed(tmp_path, plain=plain)
    wanted = [SHOWN, *[b'"attributes":{"code":"500"}'] * plain]
    assert sorted(attributes_of(run_query(made, make_query()))) == sorted(wanted)
    ingest_locally(made.url)
    assert sorted(attributes_of(run_query(made, make_query()))) == sorted(wanted)
    assert attributes_of(run_query(made, make_query(text="typed"))) == [SHOWN]


def test_a_span_has_the_types_of_its_attributes(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    span = SpanRecord(ts_ns=DAY0_NS, name="GET", duration_ns=1, attributes=VALUES)
    made.deliver([sent(spans_from_records([span]))])
    pending = attributes_of(run_query(made, make_query(kind="spans")))
    ingest_locally(made.url)
    assert attributes_of(run_query(made, make_query(kind="spans"))) == pending == [SHOWN]


def test_a_download_has_the_types_of_the_table(tmp_path: Path) -> None:
    """NDJSON as a result, and Parquet with the two columns."""
    made = typed(tmp_path)
    ingest_locally(made.url)

    async def story(client: QueryClient) -> None:
        async with client.session.get(client.target("/v1/download")) as response:
            assert SHOWN in await response.read()
        async with client.session.get(client.target("/v1/download", format="parquet")) as response:
            rows = pq.read_table(io.BytesIO(await response.read())).to_pylist()
        assert dict(rows[0]["attributes"]) == VALUES
        assert dict(rows[0]["attribute_types"])["status"] == "integer"
        assert "code" not in dict(rows[0]["attribute_types"])

    talk(made, story)


def test_a_live_record_has_its_types(tmp_path: Path) -> None:
    """The lines of a reconciler are read without a number that loses digits."""
    made = typed(tmp_path, at_ns=SystemClock().now_ns())  # older batches are not kept

    async def first() -> QueryResult:
        async with open_store(made.url) as store, aiohttp.ClientSession() as session:
            given = ReconcilerSettings(
                tail_interval_s=0.05, pass_interval_s=0.05, live_bytes_max=1 << 20
            )
            service = await Reconciler.of(store, settings=given)
            async with TestServer(make_operator_app(service)) as server, asyncio.timeout(60):
                source = LiveRecordsClient(session=session, url=str(server.make_url("/")))
                searcher = Searcher(
                    store=store, store_url=made.url, settings=QuerySettings(), clock=SystemClock()
                )
                async with aclosing(follow_live(searcher, make_query(), source)) as found:
                    return await anext(one async for one in found if one.records)

    assert attributes_of(asyncio.run(first())) == [SHOWN]
