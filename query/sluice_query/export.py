"""All records of a query as a file, in parts, so that they are never in memory together."""

import io
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import RECORD_TABLES
from sluice_protocol.manifests import Kind
from sluice_query.pruning import newest_files
from sluice_query.request import Query
from sluice_query.result import QuerySummary, Row, record_json
from sluice_query.search import Searcher
from sluice_query.sql import ordered_sql, returned_columns

ROWS_PER_PART: Final = 20_000
SUMMARY_KEY: Final = "sluice.summary"
_MAPS: Final = ("attributes", "resource")

ExportFormat = Literal["ndjson", "parquet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What is exported.

    Attributes:
        query: The query; its limit has no effect.
        limit: Most records.
        format: The form of the file.
    """

    query: Query
    limit: int
    format: ExportFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPart:
    """A part of the file.

    Attributes:
        data: Its bytes.
        summary: The summary; in the last part only.
    """

    data: bytes
    summary: QuerySummary | None = None


async def export_records(searcher: Searcher, export: Export) -> AsyncGenerator[ExportPart]:
    """Yield a file part by part, in the order of the query.

    Raises:
        SluiceError: As `Searcher.search`; also after some parts.
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
            columns = ", ".join(returned_columns(query.kind))
            # One record over the limit shows whether there are more.
            statement = ordered_sql(query, columns, sources, limit=export.limit + 1)
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
    return row | {name: dict(row[name]) for name in _MAPS if row[name] is not None}
