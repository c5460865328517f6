"""Clients that are libraries of a program, and the OpenTelemetry Collector behind them.

The records of a program are the lines of its standard input.
"""

import json
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.client_programs import (
    BIN,
    JAVA,
    NODE,
    PYTHON,
    SEND,
    ClientCase,
    Program,
    environment,
    line_of,
    program,
)
from support.door_fleet import Fleet
from support.store_versitygw import free_port, wait_for_port

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
