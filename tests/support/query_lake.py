"""Queries over a small deployment, with builders of batches and queries."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from support.builders import make_identity, manifest_of
from support.spark_lake import Deployment, Sent

from sluice_protocol.columns import Columns
from sluice_protocol.frame import encode_frame
from sluice_protocol.manifests import encode_record
from sluice_protocol.record_deletes import DeleteRecord, delete_key
from sluice_protocol.records import LogRecord, MetricPoint, logs_from_records, metrics_from_records
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.answer.result import QueryResult
from sluice_query.question.request import Query
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings
from sluice_query.sources.spool import attach_spool
from sluice_store import StoreMode, open_store, read_authority

DAY0_NS = 1_790_000_000 * NS_PER_S
MINUTE_NS = 60 * NS_PER_S


def deployment(root: Path, lanes: int = 2) -> Deployment:
    return Deployment(root=root / "store", lanes=lanes).init()


def sent(
    columns: Columns,
    *,
    start: int = 0,
    agent: str = "host-1",
    at_ns: int = DAY0_NS,
    resource: tuple[tuple[str, str], ...] = (("service.name", "web"),),
) -> Sent:
    who = make_identity(start, count=len(columns), agent=agent)
    frame = encode_frame(identity=who, columns=columns, resource=resource)
    return Sent(manifest=manifest_of(frame, at_ns=at_ns), frame=frame, rows=())


def log_batch(
    lines: Sequence[str],
    *,
    start: int = 0,
    agent: str = "host-1",
    from_ns: int = DAY0_NS,
    step_ns: int = NS_PER_S,
    attributes: Mapping[str, str] | None = None,
    at_ns: int = DAY0_NS,
) -> Sent:
    records = [
        LogRecord(ts_ns=from_ns + place * step_ns, body=line, attributes=attributes or {})
        for place, line in enumerate(lines)
    ]
    return sent(logs_from_records(records), start=start, agent=agent, at_ns=at_ns)


def metric_batch(
    values: Sequence[float],
    *,
    name: str = "cpu",
    start: int = 0,
    agent: str = "host-1",
    from_ns: int = DAY0_NS,
    step_ns: int = 10 * NS_PER_S,
) -> Sent:
    points = [
        MetricPoint(ts_ns=from_ns + place * step_ns, name=name, value=value)
        for place, value in enumerate(values)
    ]
    return sent(metrics_from_records(points), start=start, agent=agent)


def make_query(**changes: object) -> Query:
    wide = Query(from_ns=UnixNs(DAY0_NS), to_ns=UnixNs(DAY0_NS + 86_400 * NS_PER_S))
    return replace(wide, **changes)  # type: ignore[arg-type]


def run_query(
    place: Deployment,
    query: Query,
    settings: QuerySettings | None = None,
    spool: Deployment | None = None,
) -> QueryResult:
    async def run() -> QueryResult:
        async with open_store(place.url, StoreMode.CREATE) as store, AsyncExitStack() as stack:
            local = None
            if spool is not None:
                opened = await stack.enter_async_context(open_store(spool.url, StoreMode.CREATE))
                local = await attach_spool(opened, await read_authority(store))
            searcher = Searcher(
                store=store,
                store_url=place.url,
                settings=settings or QuerySettings(threads=2),
                clock=SystemClock(),
                spool=local,
            )
            return await searcher.search(query)

    return asyncio.run(run())


def bodies(result: QueryResult) -> list[object]:
    return [row["body"] for row in result.records]


def put_delete(place: Deployment, record: DeleteRecord) -> None:
    async def put() -> None:
        async with open_store(place.url, StoreMode.CREATE) as store:
            await store.create(delete_key(record.delete_id), encode_record(record))

    asyncio.run(put())


def many_lines(count: int, seed: int = 1) -> list[str]:
    """Return lines that are all different."""
    rng = np.random.default_rng(seed)
    return [f"request {place} took {ms} ms" for place, ms in enumerate(rng.integers(0, 999, count))]
