"""Composition root of the console: sources, endpoints, static files, and the server."""

import asyncio
import base64
import gzip
import hashlib
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from typing import Final

import aiohttp
import structlog
from aiohttp import hdrs, web

from sluice_console.access import ConsoleAccess, read_visitors
from sluice_console.agents import AgentReports
from sluice_console.api import BatchPages, ConsoleApi, QueuePages
from sluice_console.audit_pages import AuditPages, CandidatePages
from sluice_console.explore import ExploreApi
from sluice_console.gateways import GatewayAddresses, GatewayCounters, checked_url
from sluice_console.metrics import ConsoleMetrics
from sluice_console.oidc import OidcLogin, OidcProvider, PendingLogins
from sluice_console.policies import PolicyPages, PolicyProofs
from sluice_console.reconcilers import ServiceClient
from sluice_console.sampler import SampledSources, Sampler
from sluice_console.sessions import LoginLimit, SessionBook
from sluice_console.settings import ConsoleSettings, OidcSettings, split_list
from sluice_maintain.lake_state import make_lake_reader
from sluice_protocol.clock import Clock
from sluice_protocol.distribution import describe_missing_package
from sluice_protocol.errors import BadUsage, ErrorCode
from sluice_protocol.prices import S3_US_EAST_1, PriceTable
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_reconciler.explain import ReadLake
from sluice_store.authority import open_deployment
from sluice_store.conflicts import DecisionsReader, StoredConflicts
from sluice_store.port import ObjectStore
from sluice_web.addresses import parse_allowed_hosts
from sluice_web.application import make_application
from sluice_web.connection_guard import listening
from sluice_web.endpoints import Endpoint
from sluice_web.health import live_endpoint, metrics_endpoint, ready_endpoint
from sluice_web.listening import ServerOptions, stop_event
from sluice_web.problems import HttpRefusal, problem_middleware
from sluice_web.process_limits import MMAP_THRESHOLD, set_allocator_options
from sluice_web.tokens import CHALLENGE

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_IMPORT_MAP: Final = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)
_FIELDS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFile:
    """One file in memory."""

    media_type: str
    body: bytes
    compressed: bytes
    etag: str


def read_site() -> Mapping[str, StaticFile]:
    """Return every file of the site by its path below `static/`."""
    found: dict[str, StaticFile] = {}
    _read_folder(files("sluice_console") / "static", "", found)
    return found


def _read_folder(folder: Traversable, prefix: str, found: dict[str, StaticFile]) -> None:
    for one in folder.iterdir():
        if one.is_dir():
            _read_folder(one, f"{prefix}{one.name}/", found)
            continue
        media_type = _TYPES.get("." + one.name.rpartition(".")[2])
        if media_type is not None:
            body = one.read_bytes()
            found[prefix + one.name] = StaticFile(
                media_type=media_type,
                body=body,
                compressed=gzip.compress(body, 9, mtime=0),
                etag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
            )


def content_policy(page: bytes) -> str:
    """Return the Content-Security-Policy of the page.

    Scripts and styles come from this origin only. The one inline element is the import map, which
    is allowed by its hash. Trusted Types prevent turning strings into HTML or scripts.
    """
    found = _IMPORT_MAP.search(page.decode())
    digest = hashlib.sha256((found[1] if found else "").encode()).digest()
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'sha256-{base64.b64encode(digest).decode()}'",
            "style-src 'self'",
            "img-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


class ConsoleSite:
    """The endpoints of the static files, and the fields of every response."""

    def __init__(self) -> None:
        self._files = read_site()
        self._policy = content_policy(self._files["index.html"].body)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path="/",
                handler=self._send_page,
                summary="Return the page",
                result_type="text/html",
                linked=True,
                needs_token=False,
            ),
            Endpoint(
                method="GET",
                path="/static/{path:.+}",
                handler=self._send_file,
                summary="Return a file of the page",
                result_type="application/octet-stream",
                needs_token=False,
            ),
        )

    async def add_fields(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the security fields; a signal of aiohttp calls it before each response."""
        response.headers.update(_FIELDS)
        response.headers[hdrs.CONTENT_SECURITY_POLICY] = self._policy
        response.headers.setdefault(hdrs.CACHE_CONTROL, "no-store")
        del request

    async def _send_page(self, request: web.Request) -> web.Response:
        return self._send(request, "index.html")

    async def _send_file(self, request: web.Request) -> web.Response:
        return self._send(request, request.match_info["path"])

    def _send(self, request: web.Request, path: str) -> web.Response:
        found = self._files.get(path)
        if found is None:
            raise HttpRefusal(ErrorCode.NOT_FOUND, "no such file: open the page `/`")
        headers = {
            hdrs.CONTENT_TYPE: found.media_type,
            hdrs.ETAG: found.etag,
            hdrs.CACHE_CONTROL: "no-cache",
            hdrs.VARY: hdrs.ACCEPT_ENCODING,
        }
        if request.headers.get(hdrs.IF_NONE_MATCH) == found.etag:
            return web.Response(status=304, headers=headers)
        body = found.body
        if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
            headers[hdrs.CONTENT_ENCODING] = "gzip"
            body = found.compressed
        return web.Response(body=body, headers=headers)


BODY_BYTES_MAX = 64 * 1024
_STOP_S = 5.0
MAPPED_BYTES_MIN = 64 * 1024
"""Blocks of this size are mapped separately, so that the kernel gets them back.

A sample with the last hour is a JSON document of some 70 KB. glibc raises its limit for mapped
blocks after a large one was freed. It then takes such documents from the heap, where small blocks
between them keep the pages: 8.6 MB of free memory after half a day of samples. A fixed limit costs
one mapping for each document, and there is one in ten seconds. Source: `mallopt(3)`.
"""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class _ServiceClients:
    reconcilers: tuple[ServiceClient, ...]
    gateways: GatewayAddresses
    query: ServiceClient | None

    @property
    def checked(self) -> tuple[ServiceClient, ...]:
        """The services whose responses each sample checks."""
        return self.reconcilers if self.query is None else (*self.reconcilers, self.query)


@asynccontextmanager
async def open_console(
    store: ObjectStore,
    url: str,
    settings: ConsoleSettings,
    clock: Clock,
    prices: PriceTable = S3_US_EAST_1,
    read_lake: ReadLake | None = None,
) -> AsyncIterator[web.Application]:
    """Yield the application of a store, with its clients of other services.

    Refuse a console that would be open beyond this machine.
    """
    async with aiohttp.ClientSession(auto_decompress=True) as session:
        clients = _make_clients(settings, session)
        agents = AgentReports(store, clients.reconcilers, clock, settings.list_batches_max)
        conflicts = StoredConflicts(store, DecisionsReader(store), clock=clock, ids=SystemIds())
        metrics = ConsoleMetrics()
        policies = PolicyProofs(settings.policies, clock, metrics)
        sources = SampledSources(
            url=url,
            store=store,
            conflicts=conflicts,
            agents=agents,
            clients=clients.checked,
            counters=GatewayCounters(clients.gateways, clock),
            policies=policies,
            prices=prices,
        )
        sampler = Sampler(sources, clock, metrics, settings.sample_s)
        api = ConsoleApi(store, url, sampler, agents, conflicts)
        reader = read_lake or make_lake_reader(store, url)
        access, logins = _make_logins(settings, session, clock)
        site = ConsoleSite()
        trusted_keys = split_list(settings.trusted_keys)
        app = make_application(
            [
                *site.endpoints(),
                *logins,
                *api.endpoints(),
                *BatchPages(store, clock, reader).endpoints(),
                *QueuePages(store, clients.reconcilers, sampler).endpoints(),
                *AuditPages(store, clock, trusted_keys).endpoints(),
                *CandidatePages(store, trusted_keys).endpoints(),
                *PolicyPages(settings.policies, policies).endpoints(),
                *ExploreApi(clients.query).endpoints(),
                live_endpoint(),
                ready_endpoint(),
                metrics_endpoint(metrics.registry),
            ],
            middlewares=(problem_middleware(challenge=CHALLENGE), access.middleware()),
            title="sluice console",
            allowed_hosts=parse_allowed_hosts(settings.allowed_hosts),
            body_bytes_max=BODY_BYTES_MAX,
        )
        app.on_response_prepare.append(site.add_fields)
        app.on_shutdown.append(api.close)
        app.cleanup_ctx.append(_sampling(sampler, policies))
        yield app


def _make_logins(
    settings: ConsoleSettings, session: aiohttp.ClientSession, clock: Clock
) -> tuple[ConsoleAccess, tuple[Endpoint, ...]]:
    """Return who has access, and the endpoints of logins."""
    sessions = SessionBook(clock, lambda: secrets.token_urlsafe(32), settings.session_s)
    limit = LoginLimit(clock)
    access = ConsoleAccess(read_visitors(settings), sessions, limit)
    by_oidc = _oidc_endpoints(settings.oidc, session, sessions, limit, clock)
    return access, (*access.endpoints(), *by_oidc)


def _oidc_endpoints(
    settings: OidcSettings,
    session: aiohttp.ClientSession,
    sessions: SessionBook,
    limit: LoginLimit,
    clock: Clock,
) -> tuple[Endpoint, ...]:
    if not settings.issuer:
        return ()
    if find_spec("joserfc") is None:
        raise BadUsage(describe_missing_package("console-oidc", "joserfc"))
    provider = OidcProvider(session, settings, clock)
    logins = PendingLogins(clock, lambda: secrets.token_urlsafe(32))
    return OidcLogin(provider, settings, logins, sessions, limit, clock).endpoints()


def _make_clients(settings: ConsoleSettings, session: aiohttp.ClientSession) -> _ServiceClients:
    token = settings.reconciler_token
    return _ServiceClients(
        reconcilers=tuple(
            _client("reconciler", one, token, session) for one in split_list(settings.reconciler)
        ),
        gateways=GatewayAddresses(
            split_list(settings.gateways), session, tls_name=settings.gateways_tls_name
        ),
        query=_client("query", settings.query, settings.query_token, session)
        if settings.query
        else None,
    )


def _client(service: str, url: str, token: str, session: aiohttp.ClientSession) -> ServiceClient:
    return ServiceClient(
        service=service, url=checked_url(service, url), token=token, session=session
    )


def _sampling(
    sampler: Sampler, policies: PolicyProofs
) -> Callable[[web.Application], AsyncIterator[None]]:
    async def run_sampler(app: web.Application) -> AsyncIterator[None]:
        del app
        task = asyncio.create_task(sampler.run())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await policies.close()

    return run_sampler


async def serve_console(
    url: str,
    settings: ConsoleSettings,
    ready: Callable[[str], None],
    prices: PriceTable = S3_US_EAST_1,
) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is called with the URL when the console listens."""
    read_visitors(settings)
    set_allocator_options({MMAP_THRESHOLD: MAPPED_BYTES_MIN})
    stop = stop_event()
    options = ServerOptions(shutdown_s=_STOP_S)
    async with (
        open_deployment(url) as store,
        open_console(store, url, settings, SystemClock(), prices) as app,
        listening(app, settings.listen, options) as urls,
    ):
        log.info("console_listening", urls=urls)
        ready(urls[0])
        await stop.wait()
