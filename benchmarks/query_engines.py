"""Other search engines for the benchmark `query`: the same lines, the same questions.

DuckDB reads the Parquet files of the lake. chdb and tantivy build tables and indexes of their own
from them; `rg` or `grep` reads the lines as zstd. chdb, tantivy and ripgrep are no dependencies of
sluice: `pip install chdb tantivy` adds them, and the table names the ones that are missing.
"""

import importlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow.parquet as pq

MINUTE_NS: Final = 60 * 10**9
NEWEST: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question, in the forms that the engines understand.

    Attributes:
        text: A plain text, or a pattern.
        tokens: Whole words that every match has, for indexes of words.
        phrase: The query of tantivy; empty if it has none.
        finds: What is returned: `records`, the `newest` 100, or a `count` by minute.
    """

    name: str
    text: str = ""
    tokens: tuple[str, ...] = ()
    phrase: str = ""
    is_regex: bool = False
    ignore_case: bool = False
    tenant: str = ""
    finds: str = "records"

    @property
    def tail(self) -> str:
        """The end of a statement of SQL for what is returned."""
        if self.finds == "newest":
            return f"ORDER BY ts DESC LIMIT {NEWEST}"
        return "GROUP BY 1" if self.finds == "count" else "ORDER BY ts LIMIT 1001"

    @property
    def shown(self) -> str:
        """What a statement of SQL selects."""
        return f"ts // {MINUTE_NS}, count(*)" if self.finds == "count" else "ts, body"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine that is ready: the costs of its index, and a function that runs a question.

    The function returns the number of rows, or None for a question that it does not support.
    """

    name: str
    index_bytes: int
    build_s: float
    answer: Callable[[Question], int | None]


def open_engines(
    files: Sequence[str], folder: Path, threads: int, *, only_duckdb: bool
) -> tuple[list[Engine], list[str]]:
    """Build every engine that is installed; return them, and why others are missing."""
    found, missing = [_open_duckdb(files, threads)], list[str]()
    if only_duckdb:
        return found, missing
    for name, build in (("chdb", _build_chdb), ("tantivy", _build_tantivy)):
        try:
            module = importlib.import_module("chdb.session" if name == "chdb" else name)
        except ImportError:
            missing.append(f"{name} is not installed: pip install {name}")
            continue
        found.append(build(module, files, folder / name))
    found.append(_build_lines(files, folder / "lines"))
    if shutil.which("rg") is None:
        missing.append("ripgrep is not installed: the row grep is of GNU grep")
    return found, missing


def _open_duckdb(files: Sequence[str], threads: int) -> Engine:
    connection = duckdb.connect(config={"threads": threads})
    connection.execute("SET VARIABLE files = ?", [list(files)])

    def answer(question: Question) -> int:
        where, values = "true", [question.text]
        if question.is_regex:
            where = "regexp_matches(body, ?)"
        elif question.text:
            where = (
                "contains(lower(body), lower(?))" if question.ignore_case else "contains(body, ?)"
            )
        elif question.tenant:
            where, values = "attributes['tenant'] = ?", [question.tenant]
        else:
            values = []
        text = (
            f"SELECT {question.shown} FROM (SELECT ts_ns AS ts, body, attributes"  # noqa: S608 - constants
            f" FROM read_parquet(getvariable('files'))) WHERE {where} {question.tail}"
        )
        return len(connection.execute(text, values).fetchall())

    return Engine(name="DuckDB", index_bytes=0, build_s=0, answer=answer)


def _build_chdb(module: Any, files: Sequence[str], folder: Path) -> Engine:  # noqa: ANN401 - untyped
    session = module.Session(str(folder))
    started = time.perf_counter()
    session.query("CREATE DATABASE bench")
    session.query(
        "CREATE TABLE bench.logs (ts Int64, body String, tenant LowCardinality(String),"
        " INDEX words lower(body) TYPE text(tokenizer = splitByNonAlpha))"
        " ENGINE = MergeTree ORDER BY ts"
    )
    for file in files:
        source = f"SELECT ts_ns, body, attributes['tenant'] FROM file('{file}', Parquet)"  # noqa: S608
        session.query(f"INSERT INTO bench.logs {source}")
    session.query("OPTIMIZE TABLE bench.logs FINAL")
    build_s = time.perf_counter() - started
    size = str(
        session.query(
            "SELECT sum(secondary_indices_compressed_bytes) FROM system.parts"
            " WHERE table = 'logs' AND active",
            "CSV",
        )
    )

    def answer(question: Question) -> int:
        text = question.text.replace("\\", "\\\\").replace("'", "\\'")
        conditions = []
        if question.tokens:
            words = ", ".join(f"'{one.lower()}'" for one in question.tokens)
            conditions.append(f"hasAllTokens(lower(body), [{words}])")
        if question.is_regex:
            conditions.append(f"match(body, '{text}')")
        elif question.text:
            conditions.append(f"body {'ILIKE' if question.ignore_case else 'LIKE'} '%{text}%'")
        if question.tenant:
            conditions.append(f"tenant = '{question.tenant}'")
        where = " AND ".join(conditions) or "1"
        shown = question.shown.replace("//", "DIV")
        found = session.query(
            f"SELECT {shown} FROM bench.logs WHERE {where} {question.tail}",  # noqa: S608 - constants
            "JSONEachRow",
        )
        return str(found).count("\n")

    return Engine(name="chdb", index_bytes=int(size), build_s=build_s, answer=answer)


def _build_tantivy(module: Any, files: Sequence[str], folder: Path) -> Engine:  # noqa: ANN401 - untyped
    folder.mkdir()
    schema = module.SchemaBuilder()
    schema.add_text_field("body", stored=True)
    schema.add_text_field("tenant", tokenizer_name="raw")
    schema.add_integer_field("ts", stored=True, fast=True, indexed=False)
    index = module.Index(schema.build(), path=str(folder))
    started = time.perf_counter()
    writer = index.writer(256_000_000, num_threads=2)
    for ts, body, tenant in _rows(files):
        writer.add_document(module.Document(ts=ts, body=body, tenant=tenant))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    build_s = time.perf_counter() - started
    searcher = index.searcher()

    def answer(question: Question) -> int | None:
        if question.finds == "count":
            buckets = {"histogram": {"field": "ts", "interval": MINUTE_NS}}
            found = searcher.aggregate(module.Query.all_query(), {"minutes": buckets})
            return len(found["minutes"]["buckets"])
        if not question.phrase and not question.tenant:
            return None
        parsed = index.parse_query(question.phrase or f"tenant:{question.tenant}", ["body"])
        if question.finds == "newest":
            hits = searcher.search(parsed, NEWEST, order_by_field="ts").hits
        else:
            hits = searcher.search(parsed, 1001).hits
        return len([searcher.doc(address) for _, address in hits])

    # Its other files are those of the stored lines.
    size = sum(one.stat().st_size for one in folder.iterdir() if one.suffix != ".store")
    return Engine(name="tantivy", index_bytes=size, build_s=build_s, answer=answer)


def _build_lines(files: Sequence[str], path: Path) -> Engine:
    with path.open("wb") as sink:
        packing = subprocess.Popen(
            ("zstd", "-3", "-q", "-c"), stdin=subprocess.PIPE, stdout=sink, bufsize=1 << 20
        )
        for _, body, _ in _rows(files):
            if packing.stdin is not None:
                packing.stdin.write(body.encode() + b"\n")
        packing.communicate()
    tool = shutil.which("rg")

    def answer(question: Question) -> int | None:
        if question.tenant or question.finds != "records":
            return None
        flags = ["-i"] * question.ignore_case
        flags += [] if question.is_regex and tool else ["-E" if question.is_regex else "-F"]
        reading = subprocess.Popen(("zstd", "-dcq", str(path)), stdout=subprocess.PIPE)
        found = subprocess.run(
            (tool or "grep", *flags, "-e", question.text),
            stdin=reading.stdout,
            stdout=subprocess.PIPE,
            check=False,
        )
        reading.wait()
        return found.stdout.count(b"\n")

    return Engine(name="ripgrep" if tool else "grep", index_bytes=0, build_s=0, answer=answer)


def _rows(files: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(columns=["ts_ns", "body", "attributes"]):
            ts, bodies, maps = (column.to_pylist() for column in batch.columns)
            for at_ns, body, pairs in zip(ts, bodies, maps, strict=True):
                yield at_ns, body, dict(pairs)["tenant"]


def read_bytes() -> int:
    """Return how many bytes this process has read from files; mapped ones are not counted."""
    for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    return 0
