"""Clients that send metrics they have collected: Prometheus and collectd."""

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from support.client_programs import (
    DEBIAN,
    SAMPLE,
    ClientCase,
    Program,
    debian_environment,
    environment,
    program,
    substituted,
)
from support.door_fleet import Fleet
from support.store_versitygw import free_port

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
        search=("--attribute", "plugin_instance={record}"),
    ),
)
