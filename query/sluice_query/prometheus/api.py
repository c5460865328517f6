"""The routes of Prometheus that read: remote read, labels, series, metadata, instant selectors.

A stock Prometheus with `remote_read` evaluates PromQL, so every other expression is refused, with
that advice. An error has the form of Prometheus.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from sluice_protocol.distribution import describe_missing_package
from sluice_protocol.errors import BadUsage, ErrorCode, SluiceError
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.http.responses import LateResponse, given_with_form
from sluice_query.http.runner import QueryRunner
from sluice_query.logql.expressions import Matcher, MatchOperator
from sluice_query.loki.answers import go_number, success
from sluice_query.prometheus.selectors import REMOTE_READ, parse_selector
from sluice_query.prometheus.series import (
    DESCRIBED,
    TYPES,
    SamplesPart,
    Selection,
    SeriesReader,
    reading_series,
)
from sluice_query.request import END_NS, FIRST_NS, LOOKBACK_NS, NS_PER_MS
from sluice_query.result import QuerySummary
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import JSON_TYPE, encode_json, json_response
from sluice_web.problems import (
    PROBLEM_RENDERER,
    HttpRefusal,
    Problem,
    ProblemRenderer,
    while_connected,
)

if TYPE_CHECKING:
    from sluice_doors.prometheus.read import ReadAnswer, ReadQuery

PREFIX: Final = "/api/v1"
VERSION: Final = "3.0.0"
"""The version of Prometheus whose routes these are."""
SAMPLES_MAX: Final = 5_000_000
"""Samples of an answer without chunks, which is in memory as a whole."""
LISTED_MAX: Final = 40_000
"""Names, values or series of a list, unless the client wants fewer: as many as Grafana wants."""
DESCRIBED_NS: Final = 24 * 3600 * NS_PER_S
"""Metrics with a sample in this time are described, unless the client sends a `start`."""
WARNINGS_HEADER: Final = "X-Sluice-Warnings"
"""The header with the reasons why an answer of remote read may be incomplete: it has no field."""
_WARNING_CHARS_MAX: Final = 2_000
_PROTOBUF: Final = "application/x-protobuf"
_CHUNKED: Final = "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse"
_HEALTH_CHECK: Final = "1+1"
"""The question that Grafana sends when a data source is saved."""
_STALE: Final = 0x7FF0_0000_0000_0002
_TIME: Final = re.compile(r"[+-]?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,2})?", re.ASCII)
_PARTS: Final = ("_total", "_count", "_sum", "_bucket")
"""Endings of the names of a metric's series."""
_ERRORS: Final = {400: "bad_data", 404: "not_found", 422: "execution", 503: "unavailable"}

_Answer = Callable[["PrometheusParameters", web.Request], Awaitable[dict[str, object]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusParameters:
    """The parameters of one request. Each error names the parameter."""

    given: Mapping[str, Sequence[str]]
    now_ns: UnixNs

    def optional(self, name: str) -> str:
        """Return the first value of a parameter; empty without one."""
        return next(iter(self.given.get(name, ("",))))

    def time_ns(self, name: str, default: int) -> int:
        """Return a time: seconds since 1970, or RFC 3339; times that no record has are cut."""
        text = self.optional(name)
        if not text:
            return default
        if _TIME.fullmatch(text):
            return int(min(max(Decimal(text) * NS_PER_S, Decimal(FIRST_NS)), Decimal(END_NS)))
        try:
            return parse_rfc3339(text)
        except BadUsage as error:
            raise BadUsage(
                f"{name} must be a Unix time in seconds, or RFC 3339, {name}=`{text[:40]}`"
            ) from error

    def limit(self) -> int:
        """Return how many names, values or series a list may have."""
        text = self.optional("limit")
        if not text or text == "0":
            return LISTED_MAX
        if not text.isascii() or not text.isdecimal():
            raise BadUsage(f"limit must be a number, limit=`{text[:40]}`")
        return min(int(text[:9]), LISTED_MAX)

    def selection(self) -> Selection:
        """Return the series that `match[]` selects, between `start` and `end`."""
        start_ns, end_ns = self.time_ns("start", FIRST_NS), self.time_ns("end", END_NS)
        if end_ns < start_ns:
            raise BadUsage("end is before start: swap them")
        groups = tuple(parse_selector(one) for one in self.given.get("match[]", ()))
        return Selection(
            start_ms=-(-start_ns // NS_PER_MS),
            end_ms=end_ns // NS_PER_MS,
            groups=() if () in groups else groups,
        )


class PrometheusApi:
    """The endpoints."""

    def __init__(self, runner: QueryRunner) -> None:
        self._runner = runner

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints, those with a selector for `GET` and for `POST` with a form."""
        routes: Mapping[str, tuple[_Answer, str]] = {
            "labels": (self._labels, "the names of labels of series"),
            "label/{name}/values": (self._values, "the values of a label of series"),
            "series": (self._series, "the labels of series"),
            "query": (self._query, "the latest samples that an instant selector finds"),
            "metadata": (self._metadata, "types, descriptions and units of metrics"),
            "status/buildinfo": (_buildinfo, "the version of Prometheus whose routes these are"),
            "query_range": (_refuse, "400: only a Prometheus with remote_read evaluates PromQL"),
            "query_exemplars": (_refuse, "400: exemplars are the series NAME_exemplar"),
        }
        reads = Endpoint(
            method="POST",
            path=f"{PREFIX}/read",
            handler=while_connected(self._read),
            summary="Return the samples that a request of remote read selects",
            body=bytes,
            body_type=_PROTOBUF,
            result_type=_PROTOBUF,
            reads=True,
        )
        return (
            reads,
            *(
                Endpoint(
                    method=method,
                    path=f"{PREFIX}/{path}",
                    handler=while_connected(self._handler(answer)),
                    summary=f"Return {summary}, in the form of Prometheus",
                    described=method == "GET",
                    result=dict[str, Any],
                    reads=True,
                )
                for path, (answer, summary) in routes.items()
                for method in ("GET", "POST")
            ),
        )

    def _handler(self, answer: _Answer) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def send(request: web.Request) -> web.StreamResponse:
            request[PROBLEM_RENDERER] = _REFUSALS
            given = PrometheusParameters(
                given=await given_with_form(request),
                now_ns=self._runner.searcher.clock.now_ns(),
            )
            return json_response(await answer(given, request))

        return send

    async def _found(
        self, selection: Selection, find: Callable[[SeriesReader], Awaitable[Any]]
    ) -> tuple[Any, QuerySummary]:
        """Return what is computed from the series of a selection, and what was read."""
        async with (
            self._runner.counted() as counted,
            reading_series(self._runner.searcher, selection) as series,
        ):
            found = await find(series)
            summary = series.summary
            counted.finish(summary)
        return found, summary

    async def _labels(self, given: PrometheusParameters, request: web.Request) -> dict[str, object]:
        del request
        limit = given.limit()
        names, summary = await self._found(
            given.selection(), lambda series: series.label_names(limit + 1)
        )
        return _listed(names, limit, summary)

    async def _values(self, given: PrometheusParameters, request: web.Request) -> dict[str, object]:
        name, limit = request.match_info["name"], given.limit()
        if not name.isascii() or not name.isidentifier():
            raise BadUsage(f"label must be letters, digits and _, label=`{name[:40]}`")
        values, summary = await self._found(
            given.selection(), lambda series: series.label_values(name, limit + 1)
        )
        return _listed(values, limit, summary)

    async def _series(self, given: PrometheusParameters, request: web.Request) -> dict[str, object]:
        del request
        if not given.given.get("match[]"):
            raise BadUsage('match[] must be given: a selector such as `up{job="api"}`')
        found, summary = await self._found(given.selection(), SeriesReader.series)
        return _listed([dict(labels) for labels in found], given.limit(), summary)

    async def _query(self, given: PrometheusParameters, request: web.Request) -> dict[str, object]:
        del request
        at_ns, text = given.time_ns("time", given.now_ns), given.optional("query")
        if "".join(text.split()) == _HEALTH_CHECK:
            return success({"resultType": "scalar", "result": [at_ns / NS_PER_S, "2"]})
        at_ms = at_ns // NS_PER_MS
        selection = Selection(
            start_ms=at_ms - LOOKBACK_NS // NS_PER_MS + 1,
            end_ms=at_ms,
            groups=(parse_selector(text),),
        )
        found, summary = await self._found(selection, _latest)
        result = [
            {"metric": dict(labels), "value": [at_ns / NS_PER_S, go_number(value)]}
            for labels, value in found
        ]
        return success({"resultType": "vector", "result": result}, [summary])

    async def _metadata(
        self, given: PrometheusParameters, request: web.Request
    ) -> dict[str, object]:
        del request
        recent = Selection(
            start_ms=given.time_ns("start", given.now_ns - DESCRIBED_NS) // NS_PER_MS,
            end_ms=END_NS // NS_PER_MS - 1,
        )
        rows, summary = await self._found(recent, SeriesReader.described)
        wanted = given.optional("metric")
        metrics = {
            name: [one] for name, one in metadata_of(rows).items() if not wanted or name == wanted
        }
        shown = dict([*metrics.items()][: given.limit()])
        return success(shown, [summary])

    async def _read(self, request: web.Request) -> web.StreamResponse:
        request[PROBLEM_RENDERER] = _TEXT_REFUSALS
        if request.content_type != _PROTOBUF:
            raise HttpRefusal(ErrorCode.UNSUPPORTED_MEDIA_TYPE, f"send Content-Type: {_PROTOBUF}")
        try:
            from sluice_doors.prometheus import read  # noqa: PLC0415 - of the extra `doors`
        except ImportError as error:
            raise BadUsage(describe_missing_package("doors", error.name)) from error
        wanted = read.parse_read_request(await request.read())
        chunked = wanted.answer == read.CHUNKS
        answer = read.ChunkedAnswer() if chunked else read.SampledAnswer()
        sending = _ReadResponse(self._runner, request, answer, chunked=chunked)
        return await sending.send(wanted.queries)


class _ReadResponse:
    """The response to one request of remote read."""

    def __init__(
        self, runner: QueryRunner, request: web.Request, answer: "ReadAnswer", *, chunked: bool
    ) -> None:
        self._runner = runner
        self._answer = answer
        self._chunked = chunked
        self._headers = {"Content-Type": _CHUNKED if chunked else _PROTOBUF}
        if not chunked:
            self._headers["Content-Encoding"] = "snappy"
        self._response = LateResponse(request, self._headers)
        self._samples = 0

    async def send(self, queries: "Sequence[ReadQuery]") -> web.StreamResponse:
        """Send the answer: chunks while they are read, samples when all are known."""
        response, searcher = self._response, self._runner.searcher
        async with response.within(searcher.settings.time_s_max + 1.0):
            try:
                for number, query in enumerate(queries):
                    await self._send_query(number, query)
                await response.write(self._answer.finish())
            except SluiceError:
                if not response.started:
                    raise
                response.abort()  # what the client has is incomplete, and it must notice
                raise ConnectionResetError from None
            return await response.finish()

    async def _send_query(self, number: int, query: "ReadQuery") -> None:
        if query.end_ms < query.start_ms:
            raise BadUsage("a query ends before it starts")
        selection = Selection(
            start_ms=query.start_ms,
            end_ms=query.end_ms,
            groups=(
                tuple(
                    Matcher(name, MatchOperator(sign), value)
                    for name, sign, value in query.matchers
                ),
            ),
        )
        await self._response.write(self._answer.begin(number))
        async with (
            self._runner.counted() as counted,
            reading_series(self._runner.searcher, selection) as series,
        ):
            warned = False
            async for part in series.samples():
                warned = warned or self._warn(series.summary)
                self._check(part)
                work = partial(self._answer.add, part.labels, part.times_ms, part.values)
                await self._response.write(await series.reader.bounded(work))
            self._warn(series.summary)
            counted.finish(series.summary)

    def _warn(self, summary: QuerySummary) -> bool:
        """State in the head why the answer may be incomplete, if it is not sent yet."""
        if summary.partial and not self._response.started:
            reasons = " ".join("; ".join(summary.reasons).split())
            self._response.headers[WARNINGS_HEADER] = reasons[:_WARNING_CHARS_MAX]
        return True

    def _check(self, part: SamplesPart) -> None:
        self._samples += len(part.times_ms)
        if not self._chunked and self._samples > SAMPLES_MAX:
            raise BadUsage(
                f"the answer has more than {SAMPLES_MAX} samples: add a matcher, choose a shorter"
                " range, or use Prometheus 3, which accepts streamed chunks"
            )


async def _latest(series: SeriesReader) -> list[tuple[tuple[tuple[str, str], ...], float]]:
    """Return the latest sample of each series, unless it is the marker of its end."""
    latest: dict[tuple[tuple[str, str], ...], Any] = {}
    async for part in series.samples():
        latest[part.labels] = part.values[-1:]
    return [
        (labels, float(value[0]))
        for labels, value in latest.items()
        if int(value.view("uint64")[0]) != _STALE
    ]


def metadata_of(
    rows: Sequence[tuple[str, int, str | None, str | None, str | None, bool]],
) -> dict[str, dict[str, str]]:
    """Return metadata by the names of metrics.

    A metric that no point describes has the type of its samples.
    """
    found: dict[str, dict[str, str]] = {}
    for name, _, type_, about, unit, rises in rows:
        if name.endswith(DESCRIBED) and type_ in TYPES:
            shown = {"sum": "counter" if rises else "gauge", "exponential_histogram": "histogram"}
            known = {"type": shown.get(type_, type_), "help": about or "", "unit": unit or ""}
            found[name.removesuffix(DESCRIBED)] = known
    for name, kind, type_, *_ in rows:
        is_part = any(name.removesuffix(end) in found for end in _PARTS)
        is_described = name.endswith(DESCRIBED) and type_ in TYPES
        if not is_part and not is_described:
            plain = {"type": "counter" if kind else "gauge", "help": "", "unit": ""}
            found.setdefault(name, plain)
    return dict(sorted(found.items()))


def _listed(found: Sequence[object], limit: int, summary: QuerySummary) -> dict[str, object]:
    """Return the answer with a list, and a warning if it is cut."""
    answer = success(found[:limit], [summary])
    if len(found) > limit:
        cut = f"results truncated due to limit, limit={limit}: add a matcher"
        answer["warnings"] = [*answer.get("warnings", ()), cut]  # type: ignore[misc]
    return answer


async def _buildinfo(given: PrometheusParameters, request: web.Request) -> dict[str, object]:
    """Return a version by which a client chooses its requests."""
    del given, request
    names = ("revision", "branch", "buildUser", "buildDate", "goVersion")
    return success({"version": VERSION, **dict.fromkeys(names, "sluice")})


async def _refuse(given: PrometheusParameters, request: web.Request) -> dict[str, object]:
    """Refuse a route that only an engine of PromQL can answer."""
    del given
    raise BadUsage(f"{request.path.rpartition('/')[2]} is not supported: {REMOTE_READ}")


def _refusal(request: web.Request, problem: Problem) -> web.Response:
    """Return an error as Prometheus sends it."""
    del request
    kind = _ERRORS.get(problem.status, "internal" if problem.status >= 500 else "bad_data")  # noqa: PLR2004 - RFC 9110
    body = {"status": "error", "errorType": kind, "error": problem.detail}
    return web.Response(status=problem.status, body=encode_json(body), content_type=JSON_TYPE)


def _text_refusal(request: web.Request, problem: Problem) -> web.Response:
    """Return an error of remote read, whose clients show its first line."""
    del request
    return web.Response(status=problem.status, text=problem.detail)


_REFUSALS: Final = ProblemRenderer(_refusal)
_TEXT_REFUSALS: Final = ProblemRenderer(_text_refusal)
