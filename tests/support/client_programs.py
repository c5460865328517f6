"""Real clients of the doors: where `deploy/clients/build.sh` put them, and how a test runs one.

Also here: clients that are libraries of a program, and the OpenTelemetry Collector behind them;
clients that send metrics they have collected: Prometheus and collectd; clients that follow files:
Filebeat, Fluent Bit, Promtail, rsyslog, syslog-ng and Telegraf.

The records of a program are the lines of its standard input.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import Template
from typing import Protocol

from support.door_fleet import Fleet
from support.store_versitygw import free_port, wait_for_port

from sluice_doors.table import DoorName

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sluice"
BIN, DEBIAN = CACHE / "bin", CACHE / "debian"
NODE, JAVA, PYTHON = CACHE / "node", CACHE / "java", CACHE / "python"
SEND = Path(__file__).parents[2] / "docs/send"
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/syslog-ng")
NUMBER = re.compile(rb"record-(\d{8})")
STOPPED_S = 90
SAMPLE = ("--kind", "metrics", '{{record="{record}"}}')
"""Options of `sluice query` that find a sample by its label."""


def line_of(number: int) -> str:
    """Return the text of a record, which contains its number wherever it is stored."""
    return f"GET /checkout 200 record-{number:08d}"


class Sending(Protocol):
    """A client that runs."""

    def feed(self, numbers: range) -> None:
        """Hand records to the client, which sends them when it decides to."""

    def stop(self) -> None:
        """Stop the client cleanly; it may send what it still has."""

    def errors(self) -> list[str]:
        """Return what the client itself reports as lost, by its counters or its log."""


@dataclass(frozen=True, kw_only=True)
class ClientCase:
    """A client and what is known of it; `docs/doors.md` has the same facts as a table.

    Attributes:
        name: The name of its page and configuration in `docs/send`.
        door: The protocol that it speaks.
        start: Runs it until the block ends.
        retries: Whether it repeats a request that failed.
        keeps_identity: Whether a repeated request has the same records.
        lost_max: Records that it can lose although it repeats requests.
        search: Options of `sluice query` that find one record, as its page describes.
    """

    name: str
    door: DoorName
    start: Callable[[Fleet, Path], AbstractContextManager[Sending]]
    retries: bool = True
    keeps_identity: bool = True
    lost_max: int = 0
    search: tuple[str, ...] = ("-q", "{record}")


def environment(served: Fleet, **more: str) -> dict[str, str]:
    """Return what the configurations in `docs/send` read from the environment."""
    host, _, port = served.address.partition(":")
    return {
        **os.environ,
        "SLUICE_URL": served.url,
        "SLUICE_HOST": host,
        "SLUICE_PORT": port,
        "SLUICE_TOKEN": served.token,
        **more,
    }


def substituted(name: str, into: Path, values: Mapping[str, str]) -> Path:
    """Do as `envsubst` does, for a client that reads no environment variables."""
    path = into / name
    path.write_text(Template((SEND / name).read_text()).substitute(values), encoding="utf-8")
    return path


def debian_environment() -> dict[str, str]:
    """Return the environment of programs that are unpacked and not installed."""
    return {"LD_LIBRARY_PATH": ":".join(str(DEBIAN / one) for one in LIBRARIES)}


@dataclass
class Program:
    """A client that runs as a process.

    Attributes:
        process: The process.
        log: Its output.
        faults: What its log must not contain.
        clean: Exit codes of a clean stop.
    """

    process: subprocess.Popen[bytes]
    log: Path
    faults: re.Pattern[str]
    clean: tuple[int, ...] = (0,)
    extra: list[str] = field(default_factory=list)

    def stop(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        else:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(STOPPED_S)
        if code not in self.clean:
            self.extra.append(f"exit code {code}")

    def errors(self) -> list[str]:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if self.faults.search(line)] + self.extra


@contextmanager
def program(
    command: Iterable[object],
    log: Path,
    env: Mapping[str, str],
    *,
    faults: str,
    stdin: bool = False,
    clean: tuple[int, ...] = (0,),
) -> Iterator[Program]:
    """Run a client until the block ends."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(part) for part in command],
            env=dict(env),
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=log.parent,
        )
    try:
        yield Program(process, log, re.compile(faults), clean)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdin is not None:
            with suppress(OSError):  # what the client has not read is lost
                process.stdin.close()


OTLP_RECORDS = 100
"""Records of one request to the Collector."""
LOKI4J_RECORDS = 500
"""Records of a batch, `maxItems` in its configuration."""
JAVA_PROGRAM = Path(__file__).parents[2] / "deploy/clients/java/LogLines.java"


@dataclass
class Piped:
    """A program that logs the lines of its standard input."""

    program: Program
    form: Callable[[int], str] = line_of

    def feed(self, numbers: range) -> None:
        pipe = self.program.process.stdin
        assert pipe is not None
        pipe.write("".join(f"{self.form(number)}\n" for number in numbers).encode())
        pipe.flush()

    def stop(self) -> None:
        self.program.stop()

    def errors(self) -> list[str]:
        return self.program.errors()


@contextmanager
def opentelemetry_node(served: Fleet, folder: Path) -> Iterator[Piped]:
    # Node looks for packages in the folders above the program.
    (folder / "node_modules").symlink_to(NODE / "node_modules")
    path = folder / "opentelemetry-node.mjs"
    path.write_bytes((SEND / "opentelemetry-node.mjs").read_bytes())
    env = environment(served, OTEL_LOG_LEVEL="info")
    with program(
        ["node", path], folder / "client.log", env, faults=r"[Ee]rror|dropped", stdin=True
    ) as started:
        yield Piped(started)


def pino_line(number: int) -> str:
    """Return a record as pino writes it."""
    return json.dumps({"level": 30, "time": time.time_ns() // 10**6, "msg": line_of(number)})


@contextmanager
def pino_loki(served: Fleet, folder: Path) -> Iterator[Piped]:
    command = [
        *(NODE / "node_modules/.bin/pino-loki", "--hostname", served.url),
        *("--user", "pino", "--password", served.token, "--labels", '{"app":"shop"}'),
        *("--batching-interval", "1", "--batching-max-buffer-size", "0"),
    ]
    with program(
        command, folder / "client.log", environment(served), faults=r"[Ee]rror", stdin=True
    ) as started:
        yield Piped(started, pino_line)


@contextmanager
def loki4j(served: Fleet, folder: Path) -> Iterator[Piped]:
    command = [
        *("java", f"-Dlogback.configurationFile={SEND}/logback.xml", "-cp", f"{JAVA}/*"),
        JAVA_PROGRAM,
    ]
    faults = r"[Dd]ropped|[Uu]nable"
    with program(
        command, folder / "client.log", environment(served), faults=faults, stdin=True
    ) as started:
        yield Piped(started)


def python_library(
    name: str, *, faults: str, folder_of_packages: Path | None = PYTHON
) -> Callable[[Fleet, Path], AbstractContextManager[Piped]]:
    """Return what starts the program of a page in Python.

    Args:
        name: The page.
        faults: What it logs when it loses a record.
        folder_of_packages: Where its library is; None if it is installed with the tests.
    """
    more = {} if folder_of_packages is None else {"PYTHONPATH": str(folder_of_packages)}

    @contextmanager
    def start(served: Fleet, folder: Path) -> Iterator[Piped]:
        command = [sys.executable, SEND / f"{name}.py"]
        env = environment(served, **more)
        with program(command, folder / "client.log", env, faults=faults, stdin=True) as started:
            yield Piped(started)

    return start


@contextmanager
def fluency(served: Fleet, folder: Path) -> Iterator[Piped]:
    host, _, port = served.address.partition(":")
    env = environment(served, FLUENT_HOST=host, FLUENT_PORT=port)
    faults = r"chunk dropped|BufferFull|Exception in thread"
    with program(
        ["java", "-cp", f"{JAVA}/*", SEND / "fluency.java"],
        folder / "client.log",
        env,
        faults=faults,
        stdin=True,
    ) as started:
        yield Piped(started)


@dataclass
class Collector:
    """An OpenTelemetry Collector that receives the records as requests of OTLP in JSON."""

    program: Program
    url: str

    def feed(self, numbers: range) -> None:
        for start in range(0, len(numbers), OTLP_RECORDS):
            body = json.dumps(_otlp(numbers[start : start + OTLP_RECORDS])).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(self.url, body, headers)
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status == 200

    def stop(self) -> None:
        self.program.stop()

    def errors(self) -> list[str]:
        return self.program.errors()


def _otlp(numbers: range) -> dict[str, object]:
    now = str(time.time_ns())
    records = [{"timeUnixNano": now, "body": {"stringValue": line_of(each)}} for each in numbers]
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}


@contextmanager
def opentelemetry_collector(served: Fleet, folder: Path) -> Iterator[Collector]:
    port = free_port()
    env = environment(served, OTLP_LISTEN=f"127.0.0.1:{port}")
    command = [BIN / "otelcol", "--config", SEND / "opentelemetry-collector.yaml"]
    with program(command, folder / "client.log", env, faults=r"Dropping data") as started:
        wait_for_port(port, started.process)
        yield Collector(started, f"http://127.0.0.1:{port}/v1/logs")


elasticsearch_python = python_library("elasticsearch-python", faults=r"Error")
splunk_handler = python_library(
    "splunk-handler", faults=r"Exception in Splunk logging handler|dropped"
)
opentelemetry_python = python_library(
    "opentelemetry-python", faults=r"ERROR|[Dd]ropp|[Qq]ueue full", folder_of_packages=None
)

LIBRARY_CLIENTS = (
    ClientCase(name="opentelemetry-collector", door="otlp", start=opentelemetry_collector),
    ClientCase(
        name="elasticsearch-python",
        door="elasticsearch",
        start=elasticsearch_python,
    ),
    ClientCase(
        name="splunk-handler",
        door="hec",
        start=python_library(
            "splunk-handler", faults=r"Exception in Splunk logging handler|dropped"
        ),
    ),
    ClientCase(name="fluency", door="forward", start=fluency),
    ClientCase(name="opentelemetry-node", door="otlp", start=opentelemetry_node),
    ClientCase(
        name="opentelemetry-python",
        door="otlp",
        start=python_library(
            "opentelemetry-python", faults=r"ERROR|[Dd]ropp|[Qq]ueue full", folder_of_packages=None
        ),
    ),
    ClientCase(name="pino-loki", door="loki", start=pino_loki, retries=False),
    # It drops a batch whose connection breaks: one for each gateway that is killed.
    ClientCase(name="loki4j", door="loki", start=loki4j, lost_max=2 * LOKI4J_RECORDS),
)


FAILED = (
    "prometheus_remote_storage_samples_failed_total",
    "prometheus_remote_storage_samples_dropped_total",
)


class Exporter(ThreadingHTTPServer):
    """An exporter that shows each portion of samples in exactly one scrape."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Scrape)
        self.portion = ""
        self.scraped = threading.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Scrape(BaseHTTPRequestHandler):
    server: Exporter

    def do_GET(self) -> None:
        shown, self.server.portion = self.server.portion, ""
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(shown.encode())
        if shown:
            self.server.scraped.set()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@dataclass
class Prometheus:
    """A Prometheus that scrapes the records as samples with the value 1."""

    program: Program
    exporter: Exporter
    url: str
    counted: list[str] = field(default_factory=list)

    def feed(self, numbers: range) -> None:
        self.exporter.scraped.clear()
        self.exporter.portion = "".join(
            f'shop_records{{record="record-{number:08d}"}} 1\n' for number in numbers
        )
        assert self.exporter.scraped.wait(60), "Prometheus does not scrape"

    def stop(self) -> None:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        self.counted += [
            line for line in lines if line.startswith(FAILED) and not line.endswith(" 0")
        ]
        self.program.stop()

    def errors(self) -> list[str]:
        return self.program.errors() + self.counted


@contextmanager
def prometheus(served: Fleet, folder: Path) -> Iterator[Prometheus]:
    exporter, address = Exporter(), f"127.0.0.1:{free_port()}"
    threading.Thread(target=exporter.serve_forever, daemon=True).start()
    values = environment(served, SCRAPE_INTERVAL="2s", SCRAPE_TARGET=exporter.address)
    config = substituted("prometheus.yml", folder, values)
    command = [
        *(DEBIAN / "usr/bin/prometheus", f"--config.file={config}"),
        *(f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address={address}"),
    ]
    try:
        with program(
            command, folder / "client.log", values, faults="non-recoverable error"
        ) as started:
            yield Prometheus(started, exporter, f"http://{address}")
    finally:
        exporter.shutdown()
        exporter.server_close()


@dataclass
class Collectd:
    """A collectd that receives the records as values through its socket."""

    program: Program
    path: Path
    log: Path

    def feed(self, numbers: range) -> None:
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(self.path))
            answers = control.makefile("rb")
            for number in numbers:
                value = f"PUTVAL shop-1/shop-record-{number:08d}/gauge interval=10"
                control.sendall(f"{value} {time.time():.3f}:1\n".encode())
                assert answers.readline().startswith(b"0 ")

    def stop(self) -> None:
        self.program.stop()

    def errors(self) -> list[str]:
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if "write_http plugin" in line] + self.program.errors()


@contextmanager
def collectd(served: Fleet, folder: Path) -> Iterator[Collectd]:
    log, path = folder / "collectd.log", folder / "collectd.sock"
    values = environment(served, COLLECTD_LOG=str(log), COLLECTD_SOCKET=str(path))
    config = substituted("collectd.conf", folder, values)
    unpacked = (
        f'BaseDir "{folder}"\nPIDFile "{folder}/collectd.pid"\n'
        f'PluginDir "{DEBIAN}/usr/lib/collectd"\nTypesDB "{DEBIAN}/usr/share/collectd/types.db"\n'
    )
    config.write_text(unpacked + config.read_text(encoding="utf-8"), encoding="utf-8")
    command = [DEBIAN / "usr/sbin/collectd", "-f", "-C", config]
    env = values | debian_environment()
    with program(command, folder / "client.log", env, faults=r"[Ee]rror") as started:
        until = time.monotonic() + 30
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.05)
        yield Collectd(started, path, log)


METRIC_CLIENTS = (
    ClientCase(name="prometheus", door="prometheus", start=prometheus, search=SAMPLE),
    ClientCase(
        name="collectd",
        door="json",
        start=collectd,
        retries=False,
        search=('{{plugin_instance="{record}"}}',),
    ),
)


@dataclass
class Follower:
    """A client that follows a file."""

    program: Program
    path: Path
    form: str = "{line}"

    def feed(self, numbers: range) -> None:
        lines = (self.form.format(line=line_of(n), number=n, ns=time.time_ns()) for n in numbers)
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    def stop(self) -> None:
        self.program.stop()

    def errors(self) -> list[str]:
        return self.program.errors()


@contextmanager
def filebeat(served: Fleet, folder: Path) -> Iterator[Follower]:
    path = folder / "shop.log"
    path.touch()
    config = folder / "filebeat.yml"
    config.write_bytes((SEND / "filebeat.yml").read_bytes())
    config.chmod(0o600)  # Filebeat refuses a configuration that others may write
    command = [BIN / "filebeat", "-e", "-c", config, "--path.home", folder / "home"]
    faults = r"Dropping event|Cannot index event|dropped\":[1-9]|panic"
    with program(
        command,
        folder / "client.log",
        environment(served, LOG_FILES=str(path)),
        faults=faults,
    ) as started:
        yield Follower(started, path)


@contextmanager
def fluent_bit(served: Fleet, folder: Path, config: str = "fluent-bit.conf") -> Iterator[Follower]:
    """Run it on the files of a folder; run again there, it continues."""
    path, storage = folder / "shop.log", folder / "storage"
    path.touch()
    storage.mkdir(exist_ok=True)
    host, _, port = served.address.partition(":")
    env = environment(
        served,
        LOG_FILES=str(path),
        STORAGE=str(storage),
        FORWARD_HOST=host,
        FORWARD_PORT=port,
        SHARED_KEY=served.shared_key,
        HOSTNAME="shop-1",
    )
    faults = r"cannot be retried|no retries left"
    command = [BIN / "fluent-bit", "-c", SEND / config]
    with program(command, folder / "client.log", env, faults=faults) as started:
        yield Follower(started, path)


@contextmanager
def rsyslog(served: Fleet, folder: Path) -> Iterator[Follower]:
    path, work = folder / "shop.log", folder / "rsyslog"
    path.touch()
    work.mkdir()
    modules = DEBIAN / "usr/lib/x86_64-linux-gnu/rsyslog"
    config = folder / "rsyslog.conf"
    config.write_bytes((SEND / "rsyslog.conf").read_bytes())
    env = environment(served, LOG_FILES=str(path), RSYSLOG_WORK=str(work)) | debian_environment()
    command = [DEBIAN / "usr/sbin/rsyslogd", "-n", "-iNONE", "-M", modules, "-f", config]
    faults = r"bulkmode insert does not return array|message lost|discard"
    with program(command, folder / "client.log", env, faults=faults) as started:
        yield Follower(started, path)


@contextmanager
def syslog_ng(served: Fleet, folder: Path) -> Iterator[Follower]:
    path, state = folder / "shop.log", folder / "syslog-ng"
    path.touch()
    state.mkdir()
    env = environment(served, LOG_FILES=str(path)) | debian_environment()
    command = [
        *(DEBIAN / "usr/sbin/syslog-ng", "--foreground", "--stderr", "--no-caps"),
        *("-f", SEND / "syslog-ng.conf", "--module-path", DEBIAN / "usr/lib/syslog-ng/3.38"),
        *("-R", state / "persist", "-p", state / "pid", "-c", state / "control"),
    ]
    faults = r"[Mm]essages? dropped|Target server .* down, drop|Error parsing"
    with program(command, folder / "client.log", env, faults=faults) as started:
        yield Follower(started, path)


@contextmanager
def telegraf(served: Fleet, folder: Path) -> Iterator[Follower]:
    path = folder / "shop.influx"
    path.touch()
    config = folder / "input.conf"
    config.write_text(
        f'[[inputs.tail]]\nfiles = ["{path}"]\ninitial_read_offset = "beginning"\n'
        'path_tag = ""\ndata_format = "influx"\nwatch_method = "poll"\n'
        "max_undelivered_lines = 100000\n"
    )
    command = [BIN / "telegraf", "--config", SEND / "telegraf.conf", "--config", config]
    with program(
        command, folder / "client.log", environment(served), faults=r"dropped|overflow"
    ) as started:
        yield Follower(started, path, "shop,record=record-{number:08d} value=1 {ns}")


@contextmanager
def promtail(served: Fleet, folder: Path) -> Iterator[Follower]:
    path = folder / "shop.log"
    path.touch()
    command = [BIN / "promtail", "-config.expand-env=true", "-config.file", SEND / "promtail.yaml"]
    env = environment(served, LOG_FILES=str(path), POSITIONS=str(folder / "positions.yaml"))
    with program(command, folder / "client.log", env, faults=r"final error|dropp") as started:
        yield Follower(started, path)


FOLLOWERS = (
    ClientCase(name="filebeat", door="elasticsearch", start=filebeat),
    ClientCase(name="fluent-bit", door="json", start=fluent_bit),
    ClientCase(name="promtail", door="loki", start=promtail),
    ClientCase(name="rsyslog", door="elasticsearch", start=rsyslog, keeps_identity=False),
    ClientCase(name="syslog-ng", door="json", start=syslog_ng, keeps_identity=False),
    ClientCase(
        name="telegraf", door="prometheus", start=telegraf, keeps_identity=False, search=SAMPLE
    ),
)
