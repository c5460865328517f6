"""Servers of the benchmark `peers`: each is built if necessary, started and stopped by its pid."""

import base64
import contextlib
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.support.store_versitygw import Server, free_port

from benchmarks.accept_servers import gateway_on, tree_cpu_of
from benchmarks.peer_figures import BUCKET, COLLECTOR, DIRECTORY, KAFKA, NATS
from sluice_protocol.distribution import read_version
from sluice_protocol.keys import blob_key
from sluice_protocol.units import Digest

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sluice"
BUILD: Final = Path("deploy/clients/build.sh")
_COLLECTOR_RECIPE: Final = Path("deploy/clients/otelcol-s3.yaml")
START_S_MAX: Final = 60
PARTITIONS: Final = 16
BUCKETS: Final = ("sluice", "collector")
MESSAGE_BYTES_MAX: Final = 4 << 20

_NATS: Final = """
listen: "127.0.0.1:{port}"
max_payload: {bytes_max}
jetstream {{ store_dir: "{folder}", sync_interval: always }}
"""
_KAFKA: Final = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={folder}
num.partitions={partitions}
log.flush.interval.messages=1
message.max.bytes={bytes_max}
"""
_JVM: Final = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)
"""The options of `kafka-server-start.sh`."""
_OTELCOL: Final = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{s3: {{endpoint: "{endpoint}", s3_bucket: {bucket}, marshaler: {marshaler}}}}}
service:
  telemetry: {{metrics: {{level: none}}, logs: {{level: error}}}}
  pipelines: {{logs: {{receivers: [otlp], exporters: [s3]}}}}
"""


class PeerUnavailable(Exception):
    """A peer cannot be built or started; the text states why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerServer:
    """A running server; `pid` is measured, with the processes that it starts.

    `store_pid` is the object store behind it; None without a store.
    """

    kind: Literal["http", "kafka", "nats"]
    port: int
    pid: int
    version: str
    store_pid: int | None = None

    def cpu_s(self) -> tuple[float, float]:
        """Return the processor seconds of the server and of its store so far."""
        store = 0.0 if self.store_pid is None else tree_cpu_of(self.store_pid)
        return tree_cpu_of(self.pid), store


def built(program: str) -> None:
    """Build or fetch a program into the cache unless it is there."""
    done = subprocess.run([BUILD, program], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise PeerUnavailable(f"cannot build: {lines[-1].strip() if lines else BUILD}")


@contextmanager
def _process(command: list[str | Path], port: int, log: Path) -> Iterator[int]:
    """Run a server until the end of the block; yield its pid when it listens."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        _wait_for_port(port, process, log)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.perf_counter() + START_S_MAX
    while time.perf_counter() < until_s and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    last = "".join(log.read_text(errors="replace").splitlines()[-1:])
    raise PeerUnavailable(f"does not listen on its port: exit code {process.poll()}, {last}")


@contextmanager
def nats_server(folder: Path) -> Iterator[PeerServer]:
    """Run NATS JetStream, which syncs each message to disk before it acknowledges it."""
    built("nats_server")
    found = (CACHE / "bin").glob("nats-server-*")
    program = max(found, key=lambda one: one.stat().st_mtime)  # the one that was built last
    port, config = free_port(), folder / "nats.conf"
    config.write_text(_NATS.format(port=port, folder=folder / "nats", bytes_max=MESSAGE_BYTES_MAX))
    with _process([program, "-c", config], port, folder / "nats.log") as pid:
        yield PeerServer(kind="nats", port=port, pid=pid, version=program.name)


@contextmanager
def kafka_broker(folder: Path) -> Iterator[PeerServer]:
    """Run a Kafka broker with its own controller, which flushes each batch of a producer."""
    built("kafka")
    libraries = CACHE / "kafka" / "libs"
    port, config = free_port(), folder / "kafka.properties"
    config.write_text(
        _KAFKA.format(
            port=port,
            controller=free_port(),
            folder=folder / "kafka",
            partitions=PARTITIONS,
            bytes_max=MESSAGE_BYTES_MAX,
        )
    )
    program = shutil.which("java")
    if program is None:
        raise PeerUnavailable("cannot start: java is missing; install Java 17")
    java = [program, "-cp", f"{libraries}/*"]
    cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
    # An id may begin with a dash, so it is in one word with its option.
    words = ["format", "--standalone", f"--cluster-id={cluster}", f"--config={config}"]
    done = subprocess.run(
        [*java, "kafka.tools.StorageTool", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PeerUnavailable(f"cannot format the log: {done.stderr.strip() or done.stdout}")
    command: list[str | Path] = [program, *_JVM, *java[1:], "kafka.Kafka", config]
    with _process(command, port, folder / "kafka.log") as pid:
        jar = next(libraries.glob("kafka_2.13-*.jar"))
        yield PeerServer(kind="kafka", port=port, pid=pid, version=jar.stem)


@contextmanager
def collector(
    folder: Path,
    endpoint: str,
    bucket: str,
    *,
    marshaler: str = "otlp_proto",
    store_pid: int | None = None,
) -> Iterator[PeerServer]:
    """Run the Collector with an exporter to S3 and no queue.

    `marshaler` is `otlp_proto`, or `otlp_json`, the default of `awss3exporter`. `store_pid` is the
    process of the object store, and `folder` is for configuration and log.
    """
    built("collector_s3")
    port, config = free_port(), folder / f"{marshaler}.yaml"
    config.write_text(
        _OTELCOL.format(port=port, endpoint=endpoint, bucket=bucket, marshaler=marshaler)
    )
    command: list[str | Path] = [CACHE / "bin" / "otelcol-s3", "--config", config]
    with _process(command, port, folder / f"{marshaler}.log") as pid:
        found = re.search(r"otlpreceiver (v\S+)", _COLLECTOR_RECIPE.read_text())
        shown = f"OpenTelemetry Collector {found[1] if found else ''}"
        yield PeerServer(kind="http", port=port, pid=pid, version=shown, store_pid=store_pid)


@contextmanager
def sluice_gateway(
    folder: Path, url: str, workers: int, store_pid: int | None = None
) -> Iterator[PeerServer]:
    """Run a gateway that checks the signature of every upload.

    The file of principals is written to `folder`.
    """
    folder.mkdir()
    with gateway_on(url, folder, "--workers", str(workers)) as (pid, port):
        yield PeerServer(
            kind="http",
            port=port,
            pid=pid,
            version=f"sluice {read_version()}, {interpreter()}",
            store_pid=store_pid,
        )


def interpreter() -> str:
    """Return the version of the interpreter, and whether the distribution has compiled it.

    Distributions compile it with profiles; a compilation by hand usually does without.
    """
    origin = "of the distribution" if sys.base_prefix == "/usr" else "compiled here"
    return f"Python {platform.python_version()} {origin}"


@contextmanager
def directory_gateway(folder: Path, workers: int, *, fresh: bool) -> Iterator[PeerServer]:
    """Run a gateway on a directory.

    A directory that is not fresh has every folder of blobs, as after some 10^6 batches; a new
    folder is made for nearly each of the first 10^4.
    """
    files = folder / "files"
    for number in range(0 if fresh else 1 << 16):
        blob = files / blob_key(Digest(f"{number:04x}".ljust(64, "0")))
        blob.parent.mkdir(parents=True)
    with sluice_gateway(folder / "gateway-files", f"file://{files}", workers) as server:
        yield server


def servers(
    folder: Path, store: Server, workers: int, *, fresh: bool
) -> dict[str, AbstractContextManager[PeerServer]]:
    """Return what is measured, by name; each starts when its block is entered.

    Two of them use the object store. With `fresh`, the first batches after a start are measured.
    """
    return {
        DIRECTORY: directory_gateway(folder, workers, fresh=fresh),
        KAFKA: kafka_broker(folder),
        NATS: nats_server(folder),
        BUCKET: sluice_gateway(
            folder / "gateway-s3", store.url(BUCKETS[0]), workers, store_pid=store.pid
        ),
        COLLECTOR: collector(folder, store.endpoint, BUCKETS[1], store_pid=store.pid),
    }
