"""Benchmark `query`: searches of sluice next to DuckDB, chdb, tantivy and ripgrep, in one table.

    SLUICE_BENCH_LINES=30000000 python -m benchmarks.query [--without s3,serve]

The lines are all different; one of them has a text that no other has. DuckDB reads the files of the
lake; the others build their own index from them (`query_engines`). Every question is interleaved in
each round. In addition: whole commands in new processes, the same store on an S3 server behind
20 ms of latency, and the query service with 1 and with 16 clients.
"""

import argparse
import asyncio
import io
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import aiohttp
import numpy as np
import pyarrow.parquet as pq
from tests.support.store_versitygw import CREDENTIALS, free_port, make_bucket, versitygw

from benchmarks.accept_servers import child
from benchmarks.query_engines import MINUTE_NS, NEWEST, Engine, Question, open_engines, read_bytes
from sluice_lake.data_files import list_files
from sluice_lake.delta import find_table, open_or_create_table
from sluice_lake.records import DecodedBatch, records_table
from sluice_lake.tables import BATCHES, LOGS, accepted_date
from sluice_protocol.fields import KINDS
from sluice_protocol.frame import decode_frame, encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.outcomes import Found
from sluice_protocol.records import logs_from_lines
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.engine import IdleEngines
from sluice_query.logql.expressions import (
    LineFilter,
    LineOperator,
    LogQuery,
    Matcher,
    MatchOperator,
)
from sluice_query.logql.planning import narrowed
from sluice_query.request import Histogram, Query
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings
from sluice_spark.commits import commit_files
from sluice_spark.index import group_files, make_chunk
from sluice_spark.written_files import (
    ROW_GROUP_ROWS,
    WrittenFile,
    file_statistics,
    parquet_options,
    partition_folder,
)
from sluice_store import StoreMode, create_authority, open_store

LINES: Final = int(os.environ.get("SLUICE_BENCH_LINES", "3000000"))
ROUNDS: Final = int(os.environ.get("SLUICE_BENCH_ROUNDS", "15"))
LINES_PER_FRAME: Final = 50_000
RARE_AT: Final = LINES // 2 // LINES_PER_FRAME * LINES_PER_FRAME
FRAMES_PER_FILE: Final = 20
START_NS: Final = 1_790_000_000 * NS_PER_S
LATENCY_S: Final = 0.02
CLIENTS: Final = (1, 16)
SERVED_S: Final = 8.0
RARE: Final = "user=4242424242 is banned"
RARE_TOKENS: Final = ("user", "4242424242", "is", "banned")
QUESTIONS: Final = (
    Question(name="needle", text=RARE, tokens=RARE_TOKENS, phrase='"user 4242424242 is banned"'),
    Question(
        name="absent",
        text="user=4242424243 is banned",
        tokens=("user", "4242424243", "is", "banned"),
        phrase='"user 4242424243 is banned"',
    ),
    Question(
        name="frequent, newest 100",
        text="handled on path",
        tokens=("handled", "on", "path"),
        phrase='"handled on path"',
        finds="newest",
    ),
    Question(
        name="in any case",
        text=RARE.upper(),
        tokens=RARE_TOKENS,
        phrase='"USER 4242424242 IS BANNED"',
        ignore_case=True,
    ),
    Question(name="regex", text=r"user=42424242\d+ is (banned|gone)", is_regex=True),
    Question(name="attribute equals", tenant="tenant-7"),
    Question(name="count by minute", finds="count"),
)
SCANS: Final = (
    Question(name="scan: part of a number", text="8123 "),
    Question(name="scan: regex", text=r"user=7[0-9]+3 .*took 99\d ms", is_regex=True),
)


def _frame(first: int) -> bytes:
    rng = np.random.default_rng(first)
    took, user = rng.integers(0, 1000, LINES_PER_FRAME), rng.integers(0, 10**9, LINES_PER_FRAME)
    lines = [
        b"request %d of user=%d handled on path /api/v2/items/%d took %d ms" % (n, u, u % 9973, t)
        for n, (u, t) in enumerate(zip(user.tolist(), took.tolist(), strict=True), first)
    ]
    if first == RARE_AT:
        lines[7] = RARE.encode()
    ts = START_NS + np.arange(first, first + LINES_PER_FRAME, dtype=np.int64) * 1_000_000
    who = Identity(
        agent_id="host-1", boot_id="b", seq_start=first, seq_end=first + LINES_PER_FRAME - 1
    )
    return encode_frame(
        identity=who,
        columns=logs_from_lines(
            lines, ts, attributes={"tenant": f"tenant-{first // LINES_PER_FRAME}"}
        ),
    )


def _write_file(root: Path, first: int, place: int, spent: "Built") -> WrittenFile:
    bodies = [_frame(first + n * LINES_PER_FRAME) for n in range(FRAMES_PER_FILE)]
    started = time.process_time()
    frames = [decode_frame(one) for one in bodies]
    batches = [
        DecodedBatch(frame=one, accepted_at_ns=START_NS, sequence=place + 1) for one in frames
    ]
    table = records_table("logs", batches)
    spent.raw_bytes += table.column("body").nbytes
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, **parquet_options(table.schema)) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
    date = accepted_date(START_NS)
    path = f"{partition_folder(LOGS.partition_column, date)}/{place:05d}.parquet"
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(sink.getvalue())
    spent.ingest_s += time.process_time() - started
    return WrittenFile(
        table=LOGS.name,
        path=path,
        partition=date,
        size_bytes=len(sink.getvalue()),
        written_at_ms=0,
        stats=file_statistics(LOGS, writer.writer.metadata),
    )


@dataclass(slots=True)
class Built:
    """The costs of the lake and of its index: processor time, and bytes."""

    ingest_s: float = 0
    index_s: float = 0
    raw_bytes: int = 0
    index_bytes: int = 0


async def _prepare(url: str, root: Path) -> Built:
    """Write the lake and its index chunks."""
    built = Built()
    async with open_store(url, StoreMode.CREATE) as store:
        await create_authority(store)
    opened = open_or_create_table(url, LOGS)
    open_or_create_table(url, BATCHES)
    step = LINES_PER_FRAME * FRAMES_PER_FILE
    facts = [_write_file(root, n, n // step, built) for n in range(0, LINES, step)]
    commit_files(opened, LOGS, facts, {0: len(facts)}, {})
    return built


def _index(url: str, built: Built) -> None:
    opened = find_table(url, LOGS)
    started = time.process_time()
    for group in group_files(list_files(opened, LOGS)):
        make_chunk(url, KINDS["logs"], group)
    built.index_s = time.process_time() - started
    folder = Path(url.removeprefix("file://"))
    built.index_bytes = sum(one.stat().st_size for one in folder.rglob("*.lmindex"))


def query_of(question: Question) -> Query:
    """Return a question as a query of sluice."""
    whole = Query(from_ns=UnixNs(START_NS), to_ns=UnixNs(START_NS + (LINES + 1) * 1_000_000))
    operator, text = LineOperator.CONTAINS, question.text
    if question.is_regex or question.ignore_case:
        operator = LineOperator.MATCHES
        text = text if question.is_regex else re.escape(text)
        text = f"(?i){text}" if question.ignore_case else text
    lines = (LineFilter(operator, (text,)),) if text else ()
    tenant = Matcher("tenant", MatchOperator.EQUAL, question.tenant)
    whole = narrowed(whole, LogQuery((tenant,) if question.tenant else (), lines))
    if question.finds == "newest":
        return replace(whole, newest_first=True, limit=NEWEST)
    if question.finds == "count":
        return replace(whole, view=Histogram(step_ns=MINUTE_NS))
    return whole


@dataclass(slots=True)
class Row:
    """The measurements of one question with one engine."""

    walls_s: list[float] = field(default_factory=list)
    read: int = 0
    results: int | None = 0

    @property
    def p50_s(self) -> float:
        """The median."""
        return statistics.median(self.walls_s)

    @property
    def p99_s(self) -> float:
        """The nearest rank; with fewer than 100 rounds, the slowest."""
        return sorted(self.walls_s)[max(0, -(-len(self.walls_s) * 99 // 100) - 1)]

    def text(self) -> str:
        """Return the figures, or a dash for a question without a form in the engine."""
        if self.results is None:
            return "-"
        return f"{self.p50_s * 1000:.1f} / {self.p99_s * 1000:.1f} ms, {self.read >> 10} KiB"


@asynccontextmanager
async def searching(url: str) -> AsyncIterator[Searcher]:
    """Open the store of a warm process; every query opens the tables again."""
    engines = IdleEngines()
    async with open_store(url) as store:
        yield Searcher(
            store=store,
            store_url=url,
            settings=QuerySettings(),
            clock=SystemClock(),
            engines=engines,
        )
    engines.close()


async def ask(searcher: Searcher, question: Question, row: Row) -> None:
    """Run a question of sluice once."""
    started = time.perf_counter()
    found = await searcher.search(query_of(question))
    row.walls_s.append(time.perf_counter() - started)
    row.read, row.results = found.summary.bytes_read, found.summary.results
    if found.summary.reasons:
        raise SystemExit(f"partial answer: {found.summary.reasons}")


async def compare(url: str, engines: Sequence[Engine]) -> dict[str, dict[str, Row]]:
    """Run every question with every engine in each round, in turn; the first round is dropped."""
    every = (*QUESTIONS, *SCANS)
    rows = {one.name: {"sluice": Row(), **{e.name: Row() for e in engines}} for one in every}
    async with searching(url) as searcher:
        for number in range(ROUNDS + 1):
            for question in every:
                own = rows[question.name]
                await ask(searcher, question, own["sluice"])
                for engine in engines:
                    if own[engine.name].results is None:
                        continue
                    started, read = time.perf_counter(), read_bytes()
                    own[engine.name].results = engine.answer(question)
                    own[engine.name].walls_s.append(time.perf_counter() - started)
                    own[engine.name].read = read_bytes() - read
                if number == 0:
                    for row in own.values():
                        row.walls_s.clear()
    return rows


def commands(url: str, files: Sequence[str] = ()) -> dict[str, Row]:
    """Run whole commands in new processes, with warm files; without `files`, those of sluice."""
    ends = (format_rfc3339(START_NS), format_rfc3339(START_NS + (LINES + 1) * 1_000_000))
    sluice = (str(Path(sys.executable).with_name("sluice")), "query", "--store", url)
    of_duckdb = (
        "import duckdb, sys; duckdb.connect().execute('SELECT ts_ns, body FROM read_parquet(?)"
        " WHERE contains(body, ?)', [sys.argv[2:], sys.argv[1]]).fetchall()"
    )
    found: dict[str, Row] = {}
    for question in QUESTIONS[:2]:
        runs: dict[str, tuple[str, ...]] = {
            f"sluice query, {question.name}": (
                *sluice,
                "-q",
                question.text,
                "--from",
                ends[0],
                "--to",
                ends[1],
            ),
        }
        if files:
            command = (sys.executable, "-c", of_duckdb, question.text, *files)
            runs[f"DuckDB in Python, {question.name}"] = command
            runs["python -c pass"] = (sys.executable, "-c", "pass")
        for name in runs:
            found.setdefault(name, Row())
        for _ in range(ROUNDS // 2 + 1):
            for name, command in runs.items():
                started = time.perf_counter()
                quiet = subprocess.DEVNULL
                subprocess.run(command, check=True, stdout=quiet, stderr=quiet, env=_environment())
                found[name].walls_s.append(time.perf_counter() - started)
    return found


def _environment() -> dict[str, str]:
    return {one: value for one, value in os.environ.items() if one != "PYTHONDONTWRITEBYTECODE"}


@contextmanager
def delayed(endpoint: str) -> Iterator[str]:
    """Run a proxy in a separate process that delays what clients send by `LATENCY_S`."""
    port = free_port()
    with child(
        sys.executable, "-m", "benchmarks.query", "proxy", str(port), endpoint.rpartition(":")[2]
    ):
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"


async def proxy(port: int, to: int) -> None:
    """Forward connections; what clients send arrives `LATENCY_S` later."""

    async def forward(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
    ) -> None:
        while body := await reader.read(1 << 20):
            await asyncio.sleep(delay_s)
            writer.write(body)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", to)
        await asyncio.gather(
            forward(reader, back, LATENCY_S), forward(there, writer, 0), return_exceptions=True
        )

    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        await server.serve_forever()


async def on_s3(url: str, folder: Path) -> dict[str, Row]:
    """Copy the store to an S3 server, and run questions and commands behind its latency."""
    rows = {one.name: Row() for one in QUESTIONS}
    os.environ.update({**CREDENTIALS, "AWS_REGION": "us-east-1"})
    with versitygw(folder) as server:
        await make_bucket(server.url("bench"))
        async with open_store(url) as here, open_store(server.url("bench"), StoreMode.CREATE) as s3:
            async for page in here.list(""):
                for one in page.objects:
                    read = await here.get(one.key)
                    if isinstance(read, Found):
                        await s3.create(one.key, read.body)
        with delayed(server.endpoint) as endpoint:
            slow = server.url("bench").replace(server.endpoint, endpoint)
            async with searching(slow) as searcher:
                for number in range(ROUNDS // 2 + 1):
                    for question in QUESTIONS:
                        await ask(searcher, question, rows[question.name])
                        if number == 0:
                            rows[question.name].walls_s.clear()
            rows |= commands(slow)
    return rows


async def served(url: str) -> dict[int, float]:
    """Return the needles for each second that the query service finds for some clients."""
    port = free_port()
    sluice = str(Path(sys.executable).with_name("sluice"))
    found: dict[int, float] = {}
    given = {
        "query": f'{{}} |= "{RARE}"',
        "from": format_rfc3339(START_NS),
        "to": format_rfc3339(START_NS + LINES * 1_000_000),
    }
    with child(sluice, "query", "serve", "--store", url, "--listen", f"127.0.0.1:{port}"):
        async with aiohttp.ClientSession() as session:

            async def one() -> None:
                async with session.get(f"http://127.0.0.1:{port}/v1/query", params=given) as got:
                    body = await got.read()
                    if got.status != 200 or RARE.encode() not in body:
                        raise SystemExit(f"the service did not find the needle: {body[:300]!r}")

            for _ in range(400):
                try:
                    await one()
                    break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)
            for clients in CLIENTS:
                ends, done = time.perf_counter() + SERVED_S, 0

                async def client(ends: float = ends) -> int:
                    count = 0
                    while time.perf_counter() < ends:
                        await one()
                        count += 1
                    return count

                done = sum(await asyncio.gather(*(client() for _ in range(clients))))
                found[clients] = done / SERVED_S
    return found


def table_of(rows: dict[str, dict[str, Row]]) -> Iterator[str]:
    """Yield the table: a row for each question, a column for each engine.

    The last column has how many times as long as sluice DuckDB took in the rounds: the least, the
    median and the greatest ratio.
    """
    engines = list(next(iter(rows.values())))
    yield f"| p50 / p99, bytes read | {' | '.join(engines)} | DuckDB / sluice |"
    yield "|---" * (len(engines) + 2) + "|"
    for name, own in rows.items():
        ratios = sorted(
            theirs / ours
            for ours, theirs in zip(own["sluice"].walls_s, own["DuckDB"].walls_s, strict=True)
        )
        shown = [f"{one:.1f}" for one in (ratios[0], statistics.median(ratios), ratios[-1])]
        found = " | ".join(own[one].text() for one in engines)
        yield f"| {name} | {found} | {' · '.join(shown)} |"


def _print_parts(url: str, files: Sequence[str], folder: Path, without: Sequence[str]) -> None:
    """Run the parts after the table and print their figures."""
    if "cold" not in without:
        for name, row in commands(url, files).items():
            print(f"{name}, whole command: {row.text()}", flush=True)
    if "s3" not in without:
        for name, row in asyncio.run(on_s3(url, folder / "s3")).items():
            print(f"sluice on S3 with 20 ms, {name}: {row.text()}", flush=True)
    if "serve" not in without:
        for clients, rate in asyncio.run(served(url)).items():
            print(f"query serve, {clients} clients: {rate:.1f} needles a second", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its tables."""
    if arguments[:1] == ["proxy"]:
        asyncio.run(proxy(int(arguments[1]), int(arguments[2])))
        return 0
    parser = argparse.ArgumentParser(prog="benchmarks.query")
    parser.add_argument(
        "--without", default="", help="parts: engines (all but DuckDB), cold, s3, serve"
    )
    parser.add_argument("--folder", default=None, help="where the lakes are written")
    given = parser.parse_args(arguments)
    without = given.without.split(",")
    with tempfile.TemporaryDirectory(prefix="sluice-bench-query-", dir=given.folder) as place:
        folder = Path(place)
        url, root = f"file://{folder}/store", folder / "store" / "lake" / "v1" / "logs"
        (folder / "store").mkdir()
        built = asyncio.run(_prepare(url, root))
        _index(url, built)
        files = [str(path) for path in sorted(root.rglob("*.parquet"))]
        size = sum(Path(one).stat().st_size for one in files)
        print(
            f"{LINES:,} lines, {built.raw_bytes >> 20} MiB, {size >> 20} MiB of Parquet", flush=True
        )
        print(
            f"index of sluice: {built.index_bytes / built.raw_bytes:.2%} of the lines,"
            f" {built.index_s:.1f} s of processor time, {built.index_s / built.ingest_s:.2f} x that"
            " of decoding and writing the files",
            flush=True,
        )
        engines, missing = open_engines(
            files, folder, QuerySettings().threads, only_duckdb="engines" in without
        )
        for engine in engines:
            if engine.build_s:
                share = engine.index_bytes / built.raw_bytes
                print(f"index of {engine.name}: {share:.2%} of the lines, {engine.build_s:.1f} s")
        print(*missing, sep="\n", flush=True)
        print(*table_of(asyncio.run(compare(url, engines))), sep="\n", flush=True)
        _print_parts(url, files, folder, without)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
