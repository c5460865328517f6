"""`/v1/download`: all records of a query as a file."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from aiohttp import web

from sluice_protocol.errors import SluiceError
from sluice_query.errors import TooManyClients
from sluice_query.export import Export, ExportFormat, export_records
from sluice_query.parameters import ORDERED, ParameterReader, check_given, parse_query
from sluice_query.read_endpoints import given_parameters, read_endpoint
from sluice_query.request import plain_name
from sluice_query.responses import LateResponse, problem_line
from sluice_query.runner import QueryRunner
from sluice_query.settings import ServeSettings
from sluice_query.streams_api import NDJSON
from sluice_web.endpoints import Endpoint
from sluice_web.parameters import ChoiceParameter, IntegerParameter, Parameter

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
    """The endpoint of downloads."""

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
