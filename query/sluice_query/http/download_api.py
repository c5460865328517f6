"""`/v1/download`: all records of a query as a file, in parts that are not in memory together."""

import asyncio
import io
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from aiohttp import web

from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import RECORD_TABLES
from sluice_protocol.errors import BadUsage, SluiceError
from sluice_protocol.fields import Kind
from sluice_query.http.read_api import NDJSON
from sluice_query.http.responses import LateResponse, given_parameters, problem_line, read_endpoint
from sluice_query.http.runner import QueryRunner, TooManyClients
from sluice_query.parameters import ORDERED, ParameterReader, check_given, parse_query
from sluice_query.pruning import newest_files
from sluice_query.request import Query, plain_name
from sluice_query.result import SUMMARY_KEY, QuerySummary, Row, record_json
from sluice_query.search import Searcher
from sluice_query.settings import ServeSettings
from sluice_query.statements import ordered_sql, result_columns, returned_columns
from sluice_web.endpoints import Endpoint
from sluice_web.parameters import ChoiceParameter, IntegerParameter, Parameter

ROWS_PER_PART: Final = 20_000
_MAPS: Final = ("attributes", "attribute_types", "resource", "labels")

ExportFormat = Literal["ndjson", "parquet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What is exported: at most `limit` records; the query's own limit has no effect."""

    query: Query
    limit: int
    format: ExportFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPart:
    """A part of the file; the last part has the summary."""

    data: bytes
    summary: QuerySummary | None = None


async def export_records(searcher: Searcher, export: Export) -> AsyncGenerator[ExportPart]:
    """Yield a file part by part, in the order of the query.

    An error may be raised after some parts.
    """
    query = export.query
    async with searcher.reading(query) as reader:
        read = await reader.read()
        # Nothing can be left out later: the file has begun.
        read = await reader.without_missing(read)
        evaluator = searcher.evaluator(reader, read)
        sources = await reader.bounded(partial(evaluator.sources, newest_files(read.files.read)))
        make = _ParquetWriter if export.format == "parquet" else _NdjsonWriter
        writer: _ParquetWriter | _NdjsonWriter = make(query.kind)
        rows_found = 0
        if sources.names:
            is_table = export.format == "parquet"
            columns = returned_columns(query.kind) if is_table else result_columns(query)
            # One record over the limit shows whether there are more.
            statement = ordered_sql(query, ", ".join(columns), sources, limit=export.limit + 1)
            engine = reader.engine
            rows = await reader.bounded(partial(engine.open_reader, statement, ROWS_PER_PART))
            while (found := await reader.bounded(partial(engine.next_rows, rows))) is not None:
                kept = found.slice(0, max(export.limit - rows_found, 0))
                rows_found += found.num_rows
                if kept.num_rows:
                    yield ExportPart(data=await reader.bounded(partial(writer.add, kept)))
        results, more = min(rows_found, export.limit), rows_found > export.limit
        summary = reader.summarize(QuerySummary(results=results, more=more), read)
        yield ExportPart(data=writer.finish(summary), summary=summary)


class _NdjsonWriter:
    """Records as NDJSON; the last line is the summary."""

    def __init__(self, kind: Kind) -> None:
        self._kind: Kind = kind

    def add(self, rows: pa.RecordBatch) -> bytes:
        lines = bytearray()
        for row in rows.to_pylist():
            lines += msgspec.json.encode(record_json(self._kind, _plain(row))) + b"\n"
        return bytes(lines)

    def finish(self, summary: QuerySummary) -> bytes:
        return msgspec.json.encode({"summary": summary}) + b"\n"


class _PartSink(io.RawIOBase):
    """A file that is only written, and whose bytes are taken away part by part."""

    def __init__(self) -> None:
        super().__init__()
        self._part = bytearray()
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer
        self._part += data
        self._size += len(data)
        return len(data)

    def tell(self) -> int:
        return self._size

    def take(self) -> bytes:
        part = bytes(self._part)
        self._part.clear()
        return part


class _ParquetWriter:
    """Records as a Parquet file; its metadata contains the summary."""

    def __init__(self, kind: Kind) -> None:
        whole = arrow_schema(RECORD_TABLES[kind])
        self._schema = pa.schema([whole.field(name) for name in returned_columns(kind)])
        self._sink = _PartSink()
        file = pa.PythonFile(self._sink, mode="w")
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")

    def add(self, rows: pa.RecordBatch) -> bytes:
        self._writer.write_table(pa.Table.from_batches([rows]).cast(self._schema))
        return self._sink.take()

    def finish(self, summary: QuerySummary) -> bytes:
        self._writer.add_key_value_metadata({SUMMARY_KEY: msgspec.json.encode(summary).decode()})
        self._writer.close()
        return self._sink.take()


def _plain(row: dict[str, Any]) -> Row:
    return row | {name: dict(row[name]) for name in _MAPS if row.get(name) is not None}


DOWNLOADS_MAX: Final = 2
EXPORT_MAX: Final = 10_000_000
_TYPES: Final[Mapping[ExportFormat, str]] = {
    "ndjson": NDJSON,
    "parquet": "application/vnd.apache.parquet",
}
_FORMATS: Final[Mapping[str, ExportFormat]] = {"ndjson": "ndjson", "parquet": "parquet"}
_FORMAT: Final = ChoiceParameter(name="format", choices=tuple(_FORMATS), default="ndjson")
_LIMIT: Final = IntegerParameter(name="limit", default=EXPORT_MAX, maximum=EXPORT_MAX)
EXPORTED: Final[tuple[Parameter, ...]] = (*ORDERED, _LIMIT, _FORMAT)


class DownloadApi:
    """The endpoint `/v1/download`."""

    def __init__(self, runner: QueryRunner, settings: ServeSettings) -> None:
        self._runner = runner
        self._limit_s = settings.download_s_max
        self._places = asyncio.Semaphore(DOWNLOADS_MAX)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            read_endpoint(
                path="/v1/download",
                handler=self._send_file,
                summary="Return all matching records as a file, NDJSON or Parquet",
                parameters=EXPORTED,
                result_type=NDJSON,
            ),
        )

    async def _send_file(self, request: web.Request) -> web.StreamResponse:
        given = given_parameters(request)
        check_given(given, EXPORTED, plain_name)
        read = ParameterReader(given, plain_name)
        limit, form = read.integer(_LIMIT), _FORMATS[read.choice(_FORMAT)]
        selecting = {name: given[name] for name in given if name not in {"limit", "format"}}
        searcher = self._runner.searcher
        query = parse_query(selecting, searcher.clock.now_ns(), known=ORDERED)
        if query.metric is not None:
            raise BadUsage("a file has records: write a log query")
        if self._places.locked():
            raise TooManyClients("downloads run", DOWNLOADS_MAX)
        settings = replace(searcher.settings, time_s_max=self._limit_s)
        exported = Export(query=query, limit=limit, format=form)
        response = LateResponse(
            request,
            {
                "Content-Type": _TYPES[form],
                "Content-Disposition": f'attachment; filename="sluice-{query.kind}.{form}"',
                "Cache-Control": "no-store",
            },
        )
        async with self._runner.counted(self._places) as counted, response.within(self._limit_s):
            try:
                parts = export_records(replace(searcher, settings=settings), exported)
                async with aclosing(parts) as found:
                    async for part in found:
                        await response.write(part.data)
                        if part.summary is not None:
                            counted.finish(part.summary)
            except SluiceError as error:
                if not response.started:
                    raise
                problem = response.problem(error)
                if form == "parquet":  # without its footer no reader accepts the file
                    response.abort()
                    raise ConnectionResetError from error
                await response.write(problem_line(problem))
            return await response.finish()
