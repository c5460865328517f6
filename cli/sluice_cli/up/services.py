"""The services of a deployment on one machine, as data: one entry adds a service."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, get_args

from sluice_doors.table import DoorName

HOST: Final = "127.0.0.1"
DOOR_PRINCIPAL: Final = "local"
"""The sender through the doors, with the token or by Fluent's protocol."""

_DRAIN_S: Final = "3"
"""Time for a service to finish running work; all services must have stopped after 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalService:
    """One service, which runs as one process.

    Attributes:
        words: The command line after `sluice`. `{store}`, `{home}` and the names of ports in
            braces are replaced; a port becomes `HOST:PORT`.
        ports: The ports that it listens on, by name, with their defaults. The first serves
            `ready_path`.
        ready_path: Responds with 200 when the service is ready.
        peers: Ports of other services by the option that names their URL. A service that does not
            run here is not named.
        optional: Whether the deployment starts without it, with a note, if something is missing.
        without: What does not happen without it; the note contains it.
        page: The title of its web page at `/`; empty without a page.
    """

    name: str
    words: tuple[str, ...]
    ports: Mapping[str, int]
    ready_path: str
    peers: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    needs_java: bool = False
    optional: bool = False
    without: str = ""
    page: str = ""

    def command(self, places: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command line with all places filled in."""
        words = [word.format_map(places) for word in self.words]
        for option, port in self.peers.items():
            if port in places:
                words += [option, f"http://{places[port]}"]
        return tuple(words)


def _all_doors() -> tuple[str, ...]:
    return tuple(word for door in get_args(DoorName) for word in ("--doors", door))


SERVICES: Final = (
    LocalService(
        name="gateway",
        words=(
            *("gateway", "--store", "{store}", "--listen", "{gateway}"),
            *("--principals", "{home}/principals.toml", "--drain-time-s-max", _DRAIN_S),
            *("--otlp-grpc-listen", "{otlp_grpc}", "--forward-listen", "{forward}"),
            # Clients of Fluent's protocol report success before any handshake. The port is of
            # this machine only, so one without a key is accepted instead of losing its records.
            *("--forward-principal", DOOR_PRINCIPAL),
            *_all_doors(),
        ),
        ports=MappingProxyType({"gateway": 8080, "otlp_grpc": 4317, "forward": 24224}),
        ready_path="/readyz",
        modules=(
            *("cramjam", "grpc", "msgpack", "opentelemetry", "ptars", "pyarrow"),
            "uvloop",
        ),
    ),
    LocalService(
        name="reconciler",
        words=(
            *("reconciler", "--store", "{store}", "--listen", "{reconciler}"),
            *("--live-bytes-max", str(16 << 20)),
        ),
        ports=MappingProxyType({"reconciler": 8081}),
        ready_path="/readyz",
    ),
    LocalService(
        name="query",
        words=("query", "serve", "--store", "{store}", "--listen", "{query}"),
        ports=MappingProxyType({"query": 8383}),
        ready_path="/livez",
        peers=MappingProxyType({"--reconciler": "reconciler"}),
        modules=("deltalake", "duckdb", "pyarrow"),
    ),
    LocalService(
        name="console",
        words=("console", "--store", "{store}", "--listen", "{console}"),
        ports=MappingProxyType({"console": 8484}),
        ready_path="/livez",
        peers=MappingProxyType(
            {"--reconciler": "reconciler", "--query": "query", "--gateways": "gateway"}
        ),
        page="console",
    ),
    LocalService(
        name="maintain",
        words=(
            *("maintain", "--store", "{store}", "--listen", "{maintain}"),
            *("--stop-grace-s", _DRAIN_S, "--gc.key-file", "{home}/auditor.pem"),
        ),
        ports=MappingProxyType({"maintain": 8083}),
        ready_path="/livez",
        modules=("deltalake", "pyarrow", "pyspark"),
        needs_java=True,
        optional=True,
        without="records stay searchable but do not reach the Delta tables",
        page="maintenance",
    ),
)
"""Every service; a service is started with its place in this order, and all stop together."""
