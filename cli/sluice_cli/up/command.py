"""`sluice up`: run everything on one machine, and print lines to paste for a new user.

Checks before the start make a missing requirement one line with its remedy. The files of the
deployment are its settings, key, token, principals, lock and state. `prepare_store` creates its
store if there is none, and checks it.
"""

import asyncio
import errno
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, Final, get_args

from cyclopts import Parameter

from sluice_agent.sending.signing_key import make_key, principal_entry, read_key
from sluice_cli.shell.options import STORE_DEFAULT, Json, NewStoreUrl
from sluice_cli.shell.output import format_size, write_json
from sluice_cli.shell.running import RunningDeployment, announce
from sluice_cli.shell.settings import FILE_DEFAULT
from sluice_cli.up.service_log import ServiceLog
from sluice_cli.up.services import DOOR_PRINCIPAL, HOST, SERVICES, LocalService
from sluice_cli.up.supervisor import Supervisor
from sluice_doors.table import DOORS, HTTP_DOORS, DoorName
from sluice_gateway.door_tokens import create_token
from sluice_protocol.authority import Authority
from sluice_protocol.distribution import describe_missing_package
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import AUTHORITY_SETTINGS
from sluice_protocol.outcomes import Found
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_spark.jvm import describe_missing_java
from sluice_store.authority import create_authority, read_authority
from sluice_store.doctor import examine, read_doctor, seal_result, write_result
from sluice_store.port import ObjectStore
from sluice_store.url import (
    StoreMode,
    check_store_url,
    is_local,
    local_folder,
    open_store,
    refuse_nested_store,
)

AGENT_ID: Final = "local-agent"


@dataclass(frozen=True, slots=True)
class LocalHome:
    """The folder of one deployment."""

    folder: Path

    @property
    def principals(self) -> Path:
        """Who may send: the agent's key, and the token of the doors."""
        return self.folder / "principals.toml"

    @property
    def token(self) -> Path:
        """The token of the doors."""
        return self.folder / "token"

    @property
    def key(self) -> Path:
        """The key of an agent on this machine."""
        return self.folder / "agent.pem"

    @property
    def auditor_key(self) -> Path:
        """The key that signs audits; the first audit creates it."""
        return self.folder / "auditor.pem"

    @property
    def log(self) -> Path:
        """The common log."""
        return self.folder / "up.log"

    @property
    def state(self) -> Path:
        """The running deployment as JSON; it exists while the supervisor runs."""
        return self.folder / "up.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Own the folder until the block ends, or refuse; the lock ends with the process."""
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BadUsage(
                    "sluice is already running here: stop it, or pass another `--home`,"
                    f" path=`{self.folder}`"
                ) from error
            yield

    def create_secrets(self) -> None:
        """Create the key, the token and the principals file, each readable by its owner only.

        Existing ones are kept. The principals file is written last: without it all are replaced.
        """
        if self.principals.exists():
            return
        made = create_token(DOOR_PRINCIPAL, get_args(DoorName))
        _write_private(self.token, made.token + "\n")
        key = read_key(self.key) if self.key.exists() else make_key(self.key)
        entries = f"{principal_entry(AGENT_ID, AGENT_ID, key)}\n{made.principal}"
        _write_private(self.principals, entries)

    def write_state(self, state: object) -> None:
        """Write the state of the running deployment."""
        _write_private(self.state, json.dumps(state, indent=1) + "\n")


def write_settings(path: Path, store_url: str, auditor_key: Path) -> bool:
    """Write a settings file with the store and the auditor's key; return False if one exists."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(
                "# Commands in this folder use this store and this key of audits.\n"
                f"store = {json.dumps(store_url)}\n"
                f"key_file = {json.dumps(str(auditor_key))}\n"
            )
    except FileExistsError:
        return False
    return True


def _write_private(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


async def prepare_store(url: str) -> Authority:
    """Create the settings of the authority unless the store has some, and examine a new bucket.

    Refuse an acceptance mode that needs a spool.
    """
    async with open_store(url, StoreMode.CREATE) as store:
        authority = await _read_or_create(store, url)
        if authority.acceptance != "s3_manifest":
            raise BadUsage(
                "cannot run on this store: it accepts in the spool of one gateway; start `sluice"
                f" gateway --spool` instead, acceptance=`{authority.acceptance}`, url=`{url}`"
            )
        # The gateway examines a directory, but leaves a bucket to an operator.
        if not is_local(url) and await read_doctor(store) is None:
            result = await examine([store], [url], SystemIds())
            await write_result(store, result, seal_result(result), SystemClock())
    return authority


async def _read_or_create(store: ObjectStore, url: str) -> Authority:
    if not isinstance(await store.get(AUTHORITY_SETTINGS), Found):
        return await create_authority(store)
    try:
        return await read_authority(store)
    except InvalidRecord as error:
        raise BadUsage(f"cannot read the settings of the store: {error}, url=`{url}`") from error


_PORT_MAX = 65_535


def missing_requirement(service: LocalService) -> str | None:
    """Return the missing requirement of a service and how to get it, or None."""
    for module in service.modules:
        if importlib.util.find_spec(module) is None:
            return describe_missing_package("up", module)
    return describe_missing_java() if service.needs_java else None


def select_services(
    services: Iterable[LocalService], without: Iterable[str]
) -> tuple[tuple[LocalService, ...], tuple[str, ...]]:
    """Return the services to run, and a note on each one that cannot run here."""
    offered = tuple(services)
    left_out = set(without)
    unknown = sorted(left_out - {one.name for one in offered})
    if unknown:
        names = ", ".join(one.name for one in offered)
        raise BadUsage(f"no such service: use one of {names}, without=`{unknown[0]}`")
    selected, notes = [], []
    for service in offered:
        if service.name in left_out:
            continue
        missing = missing_requirement(service)
        if missing is None:
            selected.append(service)
        elif service.optional:
            notes.append(f"{service.name} is off, {service.without}: {missing}")
        else:
            raise BadUsage(f"cannot start {service.name}: {missing}")
    return tuple(selected), tuple(notes)


def check_ports(services: Iterable[LocalService], chosen: Mapping[str, int]) -> None:
    """Check ports that were chosen by name, against those of every service.

    The port of a service that does not run here has no effect.
    """
    wanted = {name: port for one in services for name, port in one.ports.items()}
    unknown = sorted(set(chosen) - set(wanted))
    if unknown:
        raise BadUsage(f"no such port: use one of {', '.join(sorted(wanted))}, port=`{unknown[0]}`")
    names: dict[int, str] = {}
    for name, port in {**wanted, **chosen}.items():
        if port > _PORT_MAX:
            raise BadUsage(
                f"no such port: a port is a number from 1 to {_PORT_MAX}, or 0 for a free one,"
                f" port=`{name}={port}`"
            )
        other = names.setdefault(port, name)
        if port and other != name:
            raise BadUsage(
                f"two services with one port: choose another number for {other} or {name},"
                f" port=`{port}`"
            )


def choose_addresses(
    services: Iterable[LocalService], chosen: Mapping[str, int], host: str
) -> dict[str, str]:
    """Return the free address of each port of the services; port 0 selects a free one.

    `chosen` ports, which `check_ports` accepts, replace the defaults.
    """
    wanted = {name: port for one in services for name, port in one.ports.items()}
    reserved: dict[str, socket.socket] = {}
    try:
        for name, default in wanted.items():
            reserved[name] = _reserve(name, host, chosen.get(name, default))
        return {name: f"{host}:{one.getsockname()[1]}" for name, one in reserved.items()}
    finally:
        for one in reserved.values():
            one.close()


def _reserve(name: str, host: str, port: int) -> socket.socket:
    reserved = socket.socket()
    try:
        # Without SO_REUSEPORT: gateways share ports, and one of another deployment may listen.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
        reserved.listen(1)
    except OSError as error:
        reserved.close()
        if error.errno == errno.EACCES:
            raise BadUsage(
                "cannot listen: this user may not use the port; pass a number above 1023 as"
                f" `--port {name}=PORT`, listen=`{host}:{port}`"
            ) from error
        raise BadUsage(
            f"cannot listen: {error.strerror}; stop the program that uses the port, or pass"
            f" `--port {name}=PORT` (0 selects a free one), listen=`{host}:{port}`"
        ) from error
    return reserved


def check_disk(folder: Path, free_bytes_min: int) -> None:
    """Refuse a folder on a disk without `free_bytes_min`."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < free_bytes_min:
        raise BadUsage(
            "disk nearly full: free some space, or pass a smaller `--free-bytes-min`,"
            f" free=`{format_size(free_bytes)}`, minimum=`{format_size(free_bytes_min)}`,"
            f" path=`{folder}`"
        )


def check_writable(folder: Path, option: str) -> None:
    """Create a folder if it does not exist, and check that this user can write to it.

    The error names the option.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except FileExistsError as error:
        raise BadUsage(
            f"a file is where a folder is required: pass another `{option}`, path=`{folder}`"
        ) from error
    except OSError as error:
        raise BadUsage(
            f"cannot write: {error.strerror}; change to a folder that you own, or pass `{option}`,"
            f" path=`{folder}`"
        ) from error


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
