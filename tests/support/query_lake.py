"""Queries over a small deployment, with builders of batches and queries.

Also here: the query service of a deployment, in this process; journals of gateway processes, and
the record of a reconciler, written into a deployment; what tests of views and streams share: a lake
with overlapping files, and its records.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import numpy as np
from support.builders import make_identity, manifest_of
from support.constants import settings_with
from support.spark_lake import Deployment, Sent
from support.spark_local import ingest_locally

from sluice_protocol.columns import Columns
from sluice_protocol.frame import encode_frame
from sluice_protocol.journals import (
    DISCOVERY,
    DiscoveryRecord,
    GatewayProcess,
    JournalHeader,
    encode_journal,
    journal_key,
    process_name,
    registration_key,
)
from sluice_protocol.manifests import encode_record
from sluice_protocol.record_deletes import DeleteRecord, delete_key
from sluice_protocol.records import LogRecord, MetricPoint, logs_from_records, metrics_from_records
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_query.engine import IdleEngines
from sluice_query.http.service import make_query_app
from sluice_query.logql.expressions import LineFilter, LineOperator, LogQuery
from sluice_query.logql.planning import narrowed, plan_query
from sluice_query.pending import attach_spool
from sluice_query.request import Query
from sluice_query.result import QueryResult
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings, ServeSettings
from sluice_store import StoreMode, open_store, read_authority
from sluice_web.connection_guard import listening

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


def make_query(logql: str | None = None, *, text: str | None = None, **changes: object) -> Query:
    """Return a query over the first day, for a question of LogQL or for lines with a text."""
    wide = Query(from_ns=UnixNs(DAY0_NS), to_ns=UnixNs(DAY0_NS + 86_400 * NS_PER_S))
    query = replace(wide, **changes)  # type: ignore[arg-type]
    if text is not None:
        contains = LineFilter(LineOperator.CONTAINS, (text,))
        return narrowed(query, LogQuery((), (contains,)))
    return query if logql is None else plan_query(logql, query)


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


RANGE = {"from": str(DAY0_NS), "to": str(DAY0_NS + 86_400 * 10**9)}
Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class QueryClient:
    """A client of the service."""

    url: str
    session: aiohttp.ClientSession

    def target(self, path: str, *more: tuple[str, str], **given: object) -> str:
        """Return the URL of a route, by default with the range of the test's records."""
        pairs: Pairs = [(name.rstrip("_"), str(value)) for name, value in given.items()]
        named = {name for name, _ in pairs}
        pairs += [one for one in RANGE.items() if one[0] not in named]
        return f"{self.url}{path}?{urlencode([*pairs, *more])}"

    async def get(self, path: str, *more: tuple[str, str], **given: object) -> tuple[int, Any]:
        """Return the status and the JSON of a response."""
        async with self.session.get(self.target(path, *more, **given)) as response:
            return response.status, json.loads(await response.read())

    async def lines(self, path: str, *more: tuple[str, str], **given: object) -> list[Any]:
        async with self.session.get(self.target(path, *more, **given)) as response:
            body = await response.read()
            assert response.status == 200, body
            return [json.loads(line) for line in body.splitlines()]


@asynccontextmanager
async def served_queries(
    place: Deployment, settings: QuerySettings | None = None, **serving: Any
) -> AsyncIterator[QueryClient]:
    engines = IdleEngines()
    async with (
        open_store(place.url) as store,
        aiohttp.ClientSession() as session,
        AsyncExitStack() as stack,
    ):
        stack.callback(engines.close)
        searcher = Searcher(
            store=store,
            store_url=place.url,
            settings=settings or QuerySettings(threads=2),
            clock=SystemClock(),
            engines=engines,
        )
        async with listening(
            make_query_app(searcher, settings_with(ServeSettings, **serving)), "127.0.0.1:0"
        ) as urls:
            yield QueryClient(urls[0], session)


def talk(
    place: Deployment,
    story: Callable[[QueryClient], Awaitable[None]],
    settings: QuerySettings | None = None,
    **serving: Any,
) -> None:
    """Run a conversation with the service."""

    async def run() -> None:
        async with served_queries(place, settings, **serving) as client:
            await story(client)

    asyncio.run(run())


@dataclass
class JournalWriter:
    """One gateway process of a deployment."""

    place: Deployment
    collector_id: str = "gw-1"
    process: str = ""
    number: int = 0

    def now_ns(self) -> UnixNs:
        """Return the store's clock."""

        async def read() -> UnixNs:
            async with open_store(self.place.url) as store:
                return (await store.get(ObjectKey("doctor/v1/none"))).date_ns  # type: ignore[union-attr]

        return asyncio.run(read())

    def put(self, key: ObjectKey, body: bytes) -> None:
        async def write() -> None:
            async with open_store(self.place.url) as store:
                await store.overwrite(key, body)

        asyncio.run(write())

    def register(self) -> "JournalWriter":
        self.process = process_name(self.now_ns(), "0" * 26)
        body = GatewayProcess(
            collector_id=self.collector_id,
            process=self.process,
            acceptance="s3_manifest",
            started_at_unix_ns=self.now_ns(),
        )
        self.put(registration_key(self.process), encode_record(body))
        return self

    def journal(self, batches: Sequence[Sent]) -> UnixNs:
        """Write the next object; return the time through which it is complete."""
        through_ns = self.now_ns()
        self.number += 1
        header = JournalHeader(
            process=self.process,
            number=self.number,
            complete_through_unix_ns=through_ns,
            batches=len(batches),
        )
        body = encode_journal(header, [encode_record(one.manifest) for one in batches])
        self.put(journal_key(self.process, self.number), body)
        return through_ns

    def publish(self, *, age_s: float = 30.0) -> UnixNs:
        """Write the record of a reconciler that processed the journals and then stopped."""
        through_ns = UnixNs(self.now_ns() - int(age_s * NS_PER_S))
        record = DiscoveryRecord(
            complete_through_unix_ns=through_ns,
            listed=0,
            journals={self.process: self.number} if self.number else {},
            pass_began_unix_ns=through_ns,
            journaled_since_unix_ns=0,
        )
        self.put(DISCOVERY, encode_record(record))
        return through_ns


FILES = 3
LINES = 40


def overlapping_ingestions(folder: Path) -> Deployment:
    """Return three ingestions, each with a file per agent, and a pending batch; times overlap."""
    made = deployment(folder)
    for part in range(FILES + 1):
        batches = [
            log_batch(
                [
                    f"line {part} {n} of {agent}{' error' if n % 7 == 0 else ''}"
                    for n in range(LINES)
                ],
                agent=agent,
                start=part * LINES,
                from_ns=DAY0_NS + part * 30 * NS_PER_S,
                attributes={"path": f"/var/log/{part % 2}", "a=b": "x"},
            )
            for agent in ("host-1", "host-2")
        ]
        made.deliver(batches)
        if part < FILES:
            ingest_locally(made.url)
    return made


def records(lines: list[Any]) -> list[Any]:
    """Return the lines of an answer that are records."""
    return [line for line in lines if "agent_id" in line]
