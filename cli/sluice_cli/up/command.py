"""`sluice up`: run everything on one machine, and print lines to paste for a new user."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, Final

from cyclopts import Parameter

from sluice_cli.shell.options import STORE_DEFAULT, Json, NewStoreUrl
from sluice_cli.shell.output import write_json
from sluice_cli.shell.running import RunningDeployment, announce
from sluice_cli.shell.settings import FILE_DEFAULT
from sluice_cli.up.home import AGENT_ID, LocalHome, prepare_store, write_settings
from sluice_cli.up.preflight import (
    check_disk,
    check_ports,
    check_writable,
    choose_addresses,
    select_services,
)
from sluice_cli.up.service_log import ServiceLog
from sluice_cli.up.services import HOST, SERVICES, LocalService
from sluice_cli.up.supervisor import Supervisor
from sluice_doors.table import DOORS, HTTP_DOORS
from sluice_protocol.errors import BadUsage
from sluice_protocol.system_clock import SystemClock
from sluice_store.mode import local_folder, refuse_nested_store
from sluice_store.url import check_store_url

LINE: Final = '{"message": "hello sluice"}'
METRIC: Final = (
    '{"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "demo_requests", "gauge":'
    ' {"dataPoints": [{"asDouble": 1}]}}]}]}]}'
)
SYSLOG: Final = f"{HOST}:5514"


def first_steps(
    services: Iterable[LocalService],
    addresses: Mapping[str, str],
    home: LocalHome,
    store: str,
) -> dict[str, str]:
    """Return what to paste, by purpose.

    Secrets are named by their files, never printed. `store` is the option with which a command
    finds the store, or empty.
    """
    gateway = f"http://{addresses['gateway']}"
    token = f"$(cat {quote(str(home.token))})"
    bearer = f'-H "Authorization: Bearer {token}"'
    steps = {
        "send a line": f"curl {bearer} {gateway}/v1/ingest --data '{LINE}'",
        "send a metric": (
            f"curl {bearer} -H 'Content-Type: application/json' {gateway}/v1/metrics"
            f" --data '{METRIC}'"
        ),
        "search": f"sluice query -q hello{store}",
        "plot": f"sluice metrics demo_requests{store}",
        "set up a client of docs/send": (f'export SLUICE_URL={gateway} SLUICE_TOKEN="{token}"'),
        "send OTLP": (
            f"export OTEL_EXPORTER_OTLP_ENDPOINT={gateway}"
            " OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
            f' OTEL_EXPORTER_OTLP_HEADERS="Authorization=Bearer%20{token}"'
        ),
        "send files and syslog": (
            f"sluice agent run --gateway {gateway} --key {quote(str(home.key))}"
            f" --agent-id {AGENT_ID} --paths 'logs/*.log'"
            f" --syslog udp://{SYSLOG} --syslog tcp://{SYSLOG}"
        ),
    }
    if "query" in addresses:
        steps["search over HTTP"] = (
            f"curl 'http://{addresses['query']}/v1/query?query=%7B%7D|=%22hello%22'"
        )
    for service in services:
        if service.page:
            steps[service.page] = f"http://{addresses[next(iter(service.ports))]}/"
    return steps


def client_settings(addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the address of each protocol, and how its clients send the token."""
    gateway = f"http://{addresses['gateway']}"
    urls = {name: f"{gateway}{DOORS[name].paths[0]}" for name in HTTP_DOORS}
    return {
        "Elasticsearch": f"{gateway}  API key, or the password of any user",
        "Loki": f"{urls['loki']}  bearer token, or the password of any user",
        "Prometheus": f"{urls['prometheus']}  bearer token, or the password of any user",
        "Splunk HEC": f"{urls['hec']}  token of the collector",
        "JSON": f"{urls['json']}  bearer token, or the password of any user",
        "OTLP over gRPC": f"http://{addresses['otlp_grpc']}  bearer token in `authorization`",
        "Fluent forward": f"{addresses['forward']}  no token and no shared key",
    }


HOME_DEFAULT: Final = Path(".sluice-up")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `sluice up` runs, and where.

    Attributes:
        home: Folder of the key, the token, the principals and the log.
        port: Ports by name, `NAME=PORT`; 0 selects a free one.
        without: Services that are not started.
        free_bytes_min: Free disk space that is required at the start.
        verbose: Print every line of the log, not warnings and errors only.
    """

    home: Path = HOME_DEFAULT
    port: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    free_bytes_min: int = 1 << 30
    verbose: Annotated[bool, Parameter(negative="")] = False


_OPTIONS = UpOptions()


def up(
    *,
    store: NewStoreUrl = STORE_DEFAULT,
    options: Annotated[UpOptions, Parameter(name="*")] = _OPTIONS,
    json: Json = False,
) -> int:
    """Run a gateway with all doors, the reconciler, queries and maintenance until Ctrl-C.

    It creates the store, a key and a token, unless they exist. A service that ends is restarted.
    All services listen on loopback addresses only. Without Java it runs without ingestion.
    """
    check_store_url(store)
    url = _absolute(store)
    ports = _parse_ports(options.port)
    check_ports(SERVICES, ports)  # before a folder is created
    services, notes = select_services(SERVICES, options.without)
    home = LocalHome(options.home.resolve())
    folder = local_folder(url)
    if folder is not None:
        refuse_nested_store(folder)
    check_writable(home.folder, "--home")
    if folder is not None:
        check_writable(folder, "--store")
        check_disk(folder, options.free_bytes_min)
    check_disk(home.folder, options.free_bytes_min)
    with home.locked():
        addresses = choose_addresses(services, ports, HOST)
        # Stop requests are handled from here: whatever was started is stopped again.
        return asyncio.run(
            _run(
                _Deployment(
                    url=url,
                    home=home,
                    services=services,
                    addresses=addresses,
                    notes=notes,
                    verbose=options.verbose,
                    as_json=json,
                )
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deployment:
    url: str
    home: LocalHome
    services: tuple[LocalService, ...]
    addresses: Mapping[str, str]
    notes: tuple[str, ...]
    verbose: bool
    as_json: bool


async def _run(deployment: _Deployment) -> int:
    home = deployment.home
    await prepare_store(deployment.url)
    home.create_secrets()
    if "SLUICE_CONFIG" not in os.environ and home.folder.parent == Path.cwd():
        write_settings(Path(FILE_DEFAULT), deployment.url, home.auditor_key)
    supervisor = Supervisor(
        services=deployment.services,
        places={
            **deployment.addresses,
            "store": deployment.url,
            "home": str(home.folder),
        },
        environment={**os.environ, "PYSPARK_PYTHON": sys.executable},
        log=ServiceLog(home.log, _show, verbose=deployment.verbose),
        show=_show,
        clock=SystemClock(),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.request_stop)
    _show(f"starting {', '.join(one.name for one in deployment.services)}; log: {home.log}")
    for note in deployment.notes:
        _show(note)
    announced: list[Path] = []
    supervisor.start()
    try:
        await supervisor.wait_ready()
        if not supervisor.stopping:
            with suppress(OSError):  # commands elsewhere need `--store` then
                announced.append(
                    announce(
                        RunningDeployment(
                            pid=os.getpid(),
                            store=deployment.url,
                            addresses=deployment.addresses,
                        )
                    )
                )
            _announce(deployment, supervisor)
        await supervisor.wait_stop()
        _show("stopping")
    finally:
        await supervisor.stop()
        for path in (home.state, *announced):
            path.unlink(missing_ok=True)
        supervisor.log.close()
    return 0


def _announce(deployment: _Deployment, supervisor: Supervisor) -> None:
    home, addresses = deployment.home, deployment.addresses
    here = home.folder.parent == Path.cwd()
    store = "" if here else f" --store {quote(deployment.url)}"
    steps = first_steps(deployment.services, addresses, home, store)
    clients = client_settings(addresses)
    state = {
        "store": deployment.url,
        "pid": os.getpid(),
        "services": {name: one.pid for name, one in supervisor.processes.items()},
        "addresses": dict(addresses),
        "token_file": str(home.token),
        "log": str(home.log),
        "notes": deployment.notes,
        "first_steps": steps,
        "clients": clients,
    }
    home.write_state(state)

    def write_processes() -> None:
        state["services"] = {name: one.pid for name, one in supervisor.processes.items()}
        with suppress(OSError):  # the disk is full: the next change writes it
            home.write_state(state)

    supervisor.on_processes = write_processes
    if deployment.as_json:
        write_json(state, sys.stdout)
        return
    _show(f"ready, store={deployment.url}")
    for purpose, line in steps.items():
        _show(f"\n  {purpose}:\n    {line}")
    _show(f"\n  other clients, with the token in {home.token}:")
    for protocol, settings in clients.items():
        _show(f"    {protocol:<16}{settings}")
    _show("\nCtrl-C stops everything.")


def _absolute(url: str) -> str:
    folder = local_folder(url)
    return url if folder is None else f"file://{folder.resolve()}"


def _parse_ports(given: tuple[str, ...]) -> dict[str, int]:
    ports = {}
    for one in given:
        name, _, number = one.partition("=")
        if not number.isascii() or not number.isdigit():
            raise BadUsage(f"cannot read port: write NAME=PORT, port=`{one}`")
        ports[name] = int(number)
    return ports


def _show(line: str) -> None:
    with suppress(BrokenPipeError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
