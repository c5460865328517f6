"""The query service: its endpoints and how it is served."""

from collections.abc import Callable

from aiohttp import web

from sluice_protocol.system_clock import SystemIds
from sluice_query.deletes import Deletes
from sluice_query.http.deletes_api import DeletesApi
from sluice_query.http.download_api import DownloadApi
from sluice_query.http.read_api import ReadApi, TracesApi
from sluice_query.http.runner import QueryRunner
from sluice_query.http.tail_api import TailApi
from sluice_query.jaeger.api import JaegerApi
from sluice_query.loki.api import LokiApi
from sluice_query.prometheus.api import PrometheusApi
from sluice_query.search import Searcher
from sluice_query.settings import ServeSettings
from sluice_web.addresses import parse_allowed_hosts, parse_listen
from sluice_web.application import guarded_middlewares, make_application
from sluice_web.connection_guard import listening
from sluice_web.health import live_endpoint, metrics_endpoint, ready_endpoint
from sluice_web.listening import stop_event
from sluice_web.tokens import check_token_or_loopback, parse_operators


def make_query_app(searcher: Searcher, settings: ServeSettings) -> web.Application:
    """Return the service that answers from one searcher."""
    runner = QueryRunner(searcher)
    operators = parse_operators(settings.operators)
    deletes = Deletes(
        searcher=searcher,
        run=runner.search,
        running=runner.running,
        clock=searcher.clock,
        ids=SystemIds(),
    )
    tail = TailApi(runner, settings)
    return make_application(
        [
            *ReadApi(runner).endpoints(),
            *TracesApi(runner).endpoints(),
            *DownloadApi(runner, settings).endpoints(),
            *tail.endpoints(),
            *JaegerApi(runner).endpoints(),
            *PrometheusApi(runner).endpoints(),
            *LokiApi(runner, tail, settings.tail_s_max).endpoints(),
            *DeletesApi(deletes, operators).endpoints(),
            live_endpoint(),
            ready_endpoint(),
            metrics_endpoint(runner.metrics.registry),
        ],
        middlewares=guarded_middlewares(settings.api_token, operators),
        title="sluice query",
        allowed_hosts=parse_allowed_hosts(settings.allowed_hosts),
    )


async def serve_queries(
    searcher: Searcher, settings: ServeSettings, ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is called with the URL when the service listens."""
    host, _ = parse_listen(settings.listen)
    check_token_or_loopback(host, settings.api_token)
    stop = stop_event()
    async with listening(make_query_app(searcher, settings), settings.listen) as urls:
        ready(urls[0])
        await stop.wait()
