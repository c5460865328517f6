"""What ships the lines of a log file to storage: sluice, and what people use instead.

Each is configured for durability as its documentation recommends; the settings are in the results.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

import boto3
from support.constants import command_with_constants
from support.gateway import GatewayProcess, start_gateways
from support.gateway_tls import SERVER, TestAuthority
from support.local_deployment import clean_environment
from support.sluice_process import SluiceProcess, run_process
from support.store_versitygw import ACCESS, SECRET, free_port, wait_for_port
from support.store_versitygw import command as versitygw_command
from verify.link import FaultyLink, linked

from sluice_agent.sending.signing_key import make_key, principal_entry
from sluice_protocol.distribution import read_version

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sluice"
DEBIAN: Final = CACHE / "debian"
COLLECTOR: Final = CACHE / "bin" / "otelcol-shipper"
FLUENT_BIT_VERSION: Final = "5.1.1"
FLUENT_BIT: Final = CACHE / "bin" / f"fluent-bit-{FLUENT_BIT_VERSION}"
RECIPE: Final = Path(__file__).parents[2] / "deploy/clients/otelcol-shipper.yaml"
CONSUMER: Final = Path(__file__).parents[2] / "deploy/clients/kafka/FileConsumer.java"
LINE: Final = re.compile(rb"line (\d{8})\b")
DISK_BYTES: Final = 64 << 20


@dataclass
class Shipper:
    """One program or a chain of them, from a log file to storage.

    `disk` is a small file system with the state of the program that reads the file. `links` are the
    ways to storage and, if there is one, to the servers in the middle.
    """

    name: str
    settings: str
    folder: Path
    store_port: int
    store_link: FaultyLink
    middle_link: FaultyLink
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    kills: int = 0

    @property
    def disk(self) -> Path:
        return self.folder / "state"

    @property
    def log(self) -> Path:
        return self.folder / "app.log"

    @property
    def version(self) -> str:
        found = re.search(r"filelogreceiver (v\S+)", RECIPE.read_text())
        return f"OpenTelemetry Collector {found[1]}" if found else ""

    has_middle: ClassVar[bool] = False

    async def prepare(self) -> None:
        """Make what has to exist before the start."""

    def command(self, name: str) -> list[str]:
        """Return the command of one of the processes; `reader` reads the file."""
        raise NotImplementedError

    def start(self, name: str) -> None:
        environment = clean_environment()
        with (self.folder / f"{name}.out").open("ab") as out:
            self.processes[name] = SluiceProcess(
                self.command(name), cwd=self.folder, stdout=out, stderr=out,
                stdin=subprocess.DEVNULL, env=environment | self.environment(),
            )  # fmt: skip

    def environment(self) -> dict[str, str]:
        return {}

    async def start_all(self) -> None:
        self.start("reader")

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.kills += 1

    async def replace_server(self) -> None:
        """Kill one of the servers in the middle, and start another after a second."""

    def lines(self) -> Counter[bytes]:
        """Return how often storage contains each line."""
        return Counter(number for body in self.bodies() for number in LINE.findall(body))

    def bodies(self) -> Iterator[bytes]:
        """Return everything that is stored."""
        raise NotImplementedError

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)


class InBucket(Shipper):
    """Stores objects in a bucket of the S3 server."""

    @property
    def bucket(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", f"{self.name}-{self.folder.name}".lower())[:63].strip("-")

    async def prepare(self) -> None:
        self.client = boto3.client(
            "s3", endpoint_url=f"http://127.0.0.1:{self.store_port}", region_name="us-east-1",
            aws_access_key_id=ACCESS, aws_secret_access_key=SECRET,
        )  # fmt: skip
        self.client.create_bucket(Bucket=self.bucket)

    def bodies(self) -> Iterator[bytes]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        for page in pages:
            for one in page.get("Contents", ()):
                yield self.client.get_object(Bucket=self.bucket, Key=one["Key"])["Body"].read()

    def close(self) -> None:
        super().close()
        self.client.close()


@dataclass
class Sluice(InBucket):
    """The agent, a balancer, two gateways and a reconciler."""

    has_middle: ClassVar[bool] = True
    gateways: list[GatewayProcess] = field(default_factory=list)

    @property
    def version(self) -> str:
        return f"sluice {read_version()}"

    def _url(self, port: int) -> str:
        return f"s3://{self.bucket}?endpoint=http://127.0.0.1:{port}&region=us-east-1"

    async def prepare(self) -> None:
        await super().prepare()
        self.client.put_bucket_versioning(
            Bucket=self.bucket, VersioningConfiguration={"Status": "Enabled"}
        )
        made = make_key(self.disk / "key.pem")
        entry = principal_entry("agent", "host-1", made)
        (self.folder / "principals.toml").write_text(entry)
        for word in ("init", "doctor"):
            await asyncio.to_thread(self._run, word, "--store", self._url(self.store_port))

    def _run(self, *words: str) -> bytes:
        command = [sys.executable, "-m", "sluice_cli", *words]
        done = run_process(command, timeout=120, env=clean_environment(), cwd=self.folder)
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        output: bytes = done.stdout
        return output

    async def start_all(self) -> None:
        self.gateways = await asyncio.to_thread(self._gateways, 2)
        self.middle_link.targets = lambda: [one.port for one in self.gateways]
        self.start("reconciler")
        self.start("reader")

    def _gateways(self, count: int) -> list[GatewayProcess]:
        url, principals = self._url(self.store_link.port), self.folder / "principals.toml"
        return start_gateways(count, self.folder, url, principals)

    def command(self, name: str) -> list[str]:
        if name == "reconciler":
            address = f"127.0.0.1:{free_port()}"
            words = ("reconciler", "--store", self._url(self.store_link.port), "--listen", address)
            return [*command_with_constants(), *words]
        return [
            *(*command_with_constants(), "agent", "run", "--agent-id", "host-1"),
            *("--gateway", f"http://127.0.0.1:{self.middle_link.port}"),
            *("--key", str(self.disk / "key.pem"), "--spool", str(self.disk / "spool")),
            *("--paths", f"{self.log}*", "--host-metrics-s", "0"),
        ]

    async def replace_server(self) -> None:
        self.gateways.pop(0).kill()
        self.kills += 1
        await asyncio.sleep(1)
        self.gateways += await asyncio.to_thread(self._gateways, 1)

    def bodies(self) -> Iterator[bytes]:
        url = self._url(self.store_port)
        statement = ("sql", "SELECT body FROM logs", "--since", "1d", "--output", "csv")
        yield self._run(*statement, "--store", url)

    def close(self) -> None:
        super().close()
        for one in self.gateways:
            one.kill()


READ_FILE: Final = """
  file_log:
    include: ["{log}*"]
    start_at: beginning
    {storage}
    retry_on_failure: {{enabled: true, max_elapsed_time: 0s}}
"""
TO_BUCKET: Final = """
  awss3:
    s3uploader: {{region: us-east-1, s3_bucket: {bucket}, endpoint: "{endpoint}",
      s3_force_path_style: true, disable_ssl: true}}
    retry_on_failure: {{enabled: true, max_elapsed_time: 0s}}
    {queue}
"""
SERVICE: Final = """
receivers: {receivers}
exporters: {exporters}
extensions:
  file_storage: {{directory: "{state}", fsync: true, create_directory: true}}
service:
  extensions: [file_storage]
  telemetry: {{metrics: {{level: none}}, logs: {{level: warn}}}}
  pipelines: {{logs: {{receivers: [{receiver}], exporters: [{exporter}]}}}}
"""
PERSISTENT: Final = "sending_queue: {enabled: true, storage: file_storage, queue_size: 100000}"


class Collector(InBucket):
    """One Collector reads the file and stores objects; the queue is in memory or on disk."""

    persistent: ClassVar[bool] = False

    def _config(self) -> str:
        return SERVICE.format(
            state=self.disk,
            receiver="file_log",
            exporter="awss3",
            receivers=READ_FILE.format(
                log=self.log, storage="storage: file_storage" if self.persistent else ""
            ),
            exporters=TO_BUCKET.format(
                bucket=self.bucket,
                endpoint=f"http://127.0.0.1:{self.store_link.port}",
                queue=PERSISTENT if self.persistent else "",
            ),
        )

    def command(self, name: str) -> list[str]:
        config = self.folder / f"{name}.yaml"
        config.write_text(self._config())
        return [str(COLLECTOR), "--config", str(config)]


class DurableCollector(Collector):
    """With positions of the file and the queue on disk."""

    persistent: ClassVar[bool] = True


class CollectorChain(Collector):
    """A Collector with a queue on disk, a balancer, and two Collectors that store objects.

    Those in the middle have no queue, so they respond after the object is stored.
    """

    has_middle: ClassVar[bool] = True
    persistent: ClassVar[bool] = True

    async def start_all(self) -> None:
        self.ports = {name: free_port() for name in ("server-1", "server-2")}
        for name, port in self.ports.items():
            self.start(name)
            await asyncio.to_thread(wait_for_port, port, self.processes[name])
        self.middle_link.targets = lambda: list(self.ports.values())
        self.start("reader")

    def command(self, name: str) -> list[str]:
        config = self.folder / f"{name}.yaml"
        if name == "reader":
            url = f"http://127.0.0.1:{self.middle_link.port}"
            text = SERVICE.format(
                state=self.disk,
                receiver="file_log",
                exporter="otlp_http",
                receivers=READ_FILE.format(log=self.log, storage="storage: file_storage"),
                exporters=f'\n  otlp_http:\n    endpoint: "{url}"\n    {PERSISTENT}\n'
                "    retry_on_failure: {enabled: true, max_elapsed_time: 0s}\n",
            )
        else:
            address = f"127.0.0.1:{self.ports[name]}"
            text = SERVICE.format(
                state=self.folder / name,
                receiver="otlp",
                exporter="awss3",
                receivers=f"\n  otlp: {{protocols: {{http: {{endpoint: '{address}'}}}}}}",
                exporters=TO_BUCKET.format(
                    bucket=self.bucket,
                    endpoint=f"http://127.0.0.1:{self.store_link.port}",
                    queue="",
                ),
            )
        config.write_text(text)
        return [str(COLLECTOR), "--config", str(config)]

    async def replace_server(self) -> None:
        name = min(self.ports)
        self.kill(name)
        await asyncio.sleep(1)
        self.ports[name] = self.ports.pop(name)
        self.start(name)


# `retry_limit no_limits` would be reduced to 5, after which the output gives a file up.
FLUENT_BIT_CONFIG: Final = """
[SERVICE]
    flush 1
    log_level info
    storage.path {disk}/chunks
    storage.sync full
    scheduler.cap 10
[INPUT]
    name tail
    tag app
    path {log}
    read_from_head on
    refresh_interval 5
    db {disk}/tail.db
    db.sync full
    storage.type filesystem
[OUTPUT]
    name s3
    match *
    bucket {bucket}
    region us-east-1
    endpoint {endpoint}
    store_dir {disk}/s3
    use_put_object on
    total_file_size 1M
    upload_timeout 1s
    retry_limit 1000000
    tls.ca_file {authority}
"""


class FluentBit(InBucket):
    """Fluent Bit with offsets, chunks and the files of its S3 output on disk.

    It sends over TLS, to a second server over the same folder. Without TLS its output stops at the
    first connection that is closed before the response: `flb_http_get_response_data` of 5.1.1
    takes the end of the stream as a reason to read again, without end.
    """

    @property
    def version(self) -> str:
        return f"Fluent Bit {FLUENT_BIT_VERSION}"

    def environment(self) -> dict[str, str]:
        return {"ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}

    async def start_all(self) -> None:
        self.port = free_port()
        self.authority = TestAuthority(self.folder / "tls")
        self.start("store")
        await asyncio.to_thread(wait_for_port, self.port, self.processes["store"])
        self.store_link.targets = lambda: [self.port]
        self.start("reader")

    def command(self, name: str) -> list[str]:
        if name == "store":
            pem = self.authority.issue("store", usage=SERVER)
            options = ("--cert", str(pem.certificate), "--key", str(pem.key))
            return versitygw_command(self.folder.parent, self.port, *options)
        config = self.folder / f"{name}.conf"
        config.write_text(
            FLUENT_BIT_CONFIG.format(
                disk=self.disk,
                log=self.log,
                bucket=self.bucket,
                endpoint=f"https://127.0.0.1:{self.store_link.port}",
                authority=self.authority.path,
            )
        )
        return [str(FLUENT_BIT), "--config", str(config)]


TO_KAFKA: Final = """
  kafka:
    brokers: ["127.0.0.1:{port}"]
    logs: {{topic: lines, encoding: raw}}
    producer: {{required_acks: -1}}
    retry_on_failure: {{enabled: true, max_elapsed_time: 0s}}
    {queue}
"""
BROKER: Final = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=LINK://127.0.0.1:{port},DIRECT://127.0.0.1:{direct},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=LINK://127.0.0.1:{link},DIRECT://127.0.0.1:{direct}
listener.security.protocol.map=LINK:PLAINTEXT,DIRECT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=DIRECT
controller.listener.names=CONTROLLER
log.dirs={folder}/log
log.flush.interval.messages=1
offsets.topic.replication.factor=1
"""


class Kafka(Shipper):
    """A Collector with a queue on disk sends to a broker, from which a consumer writes a file.

    The consumer has a connection that no fault concerns.
    """

    @property
    def version(self) -> str:
        jar = next((CACHE / "kafka" / "libs").glob("kafka_2.13-*.jar"))
        return f"{super().version}, Kafka {jar.stem.rpartition('-')[2]}"

    async def prepare(self) -> None:
        self.port, self.direct = free_port(), free_port()
        self.store_link.targets = lambda: [self.port]
        (self.folder / "broker.properties").write_text(
            BROKER.format(
                port=self.port,
                direct=self.direct,
                controller=free_port(),
                link=self.store_link.port,
                folder=self.folder,
            )
        )
        words = ("format", "--standalone", "--cluster-id", "AAAAAAAAAAAAAAAAAAAAAA")
        command = [*self._java("kafka.tools.StorageTool"), *words, "--config", "broker.properties"]
        done = await asyncio.to_thread(run_process, command, timeout=120, cwd=self.folder)
        assert done.returncode == 0, done.stderr.decode()[-2000:]

    def _java(self, program: str) -> list[str]:
        return ["java", "-Xmx256m", "-cp", str(CACHE / "kafka" / "libs" / "*"), program]

    async def start_all(self) -> None:
        self.start("broker")
        await asyncio.to_thread(wait_for_port, self.direct, self.processes["broker"])
        self.start("consumer")
        self.start("reader")

    def command(self, name: str) -> list[str]:
        if name == "broker":
            return [*self._java("kafka.Kafka"), "broker.properties"]
        if name == "consumer":
            server = f"127.0.0.1:{self.direct}"
            return [*self._java(str(CONSUMER)), server, "lines", str(self.folder / "consumed")]
        config = self.folder / "reader.yaml"
        config.write_text(
            SERVICE.format(
                state=self.disk,
                receiver="file_log",
                exporter="kafka",
                receivers=READ_FILE.format(log=self.log, storage="storage: file_storage"),
                exporters=TO_KAFKA.format(port=self.store_link.port, queue=PERSISTENT),
            )
        )
        return [str(COLLECTOR), "--config", str(config)]

    def bodies(self) -> Iterator[bytes]:
        path = self.folder / "consumed"
        yield path.read_bytes() if path.exists() else b""


SYSLOG_READER: Final = """@version: 3.38
source s {{ file("{folder}/app.log" flags(no-parse) read-old-records(yes)); }};
destination d {{ network("127.0.0.1" port({port}) transport("tcp") time-reopen(1)
  disk-buffer(reliable(yes) disk-buf-size(16777216) mem-buf-size(1048576) dir("{disk}"))); }};
log {{ source(s); destination(d); flags(flow-control); }};
"""
SYSLOG_WRITER: Final = """@version: 3.38
source s {{ network(ip("127.0.0.1") port({port}) transport("tcp") flags(no-parse)); }};
destination d {{ file("{folder}/received/all" create-dirs(yes)); }};
log {{ source(s); destination(d); flags(flow-control); }};
"""


class SyslogNg(Shipper):
    """Syslog-ng with a reliable disk buffer sends over TCP to another, which writes a file."""

    @property
    def version(self) -> str:
        return "syslog-ng 3.38"

    def environment(self) -> dict[str, str]:
        libraries = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/syslog-ng")
        return {"LD_LIBRARY_PATH": ":".join(str(DEBIAN / one) for one in libraries)}

    async def start_all(self) -> None:
        self.store_link.has_responses = False
        self.port = free_port()
        self.store_link.targets = lambda: [self.port]
        self.start("writer")
        await asyncio.to_thread(wait_for_port, self.port, self.processes["writer"])
        self.start("reader")

    def command(self, name: str) -> list[str]:
        config, place = self.folder / f"{name}.conf", self.folder / name
        place.mkdir(exist_ok=True)
        if name == "reader":
            place = self.disk
            text = SYSLOG_READER.format(
                folder=self.folder, port=self.store_link.port, disk=self.disk
            )
        else:
            text = SYSLOG_WRITER.format(folder=self.folder, port=self.port)
        config.write_text(text)
        return [
            *(str(DEBIAN / "usr/sbin/syslog-ng"), "--foreground", "--stderr", "--no-caps"),
            *("-f", str(config), "--module-path", str(DEBIAN / "usr/lib/syslog-ng/3.38")),
            *("-R", str(place / "persist"), "-p", str(self.folder / f"{name}.pid")),
            *("-c", str(self.folder / f"{name}.control")),
        ]

    def bodies(self) -> Iterator[bytes]:
        path = self.folder / "received/all"
        yield path.read_bytes() if path.exists() else b""


SHIPPERS: Final[dict[str, tuple[type[Shipper], str]]] = {
    "sluice": (Sluice, "agent, balancer, two gateways, reconciler, S3; all defaults"),
    "Collector": (Collector, "file_log, awss3; retries without end; no storage"),
    "Collector with storage": (
        DurableCollector,
        "file_log and sending_queue with file_storage and fsync, awss3; retries without end",
    ),
    "Collectors": (
        CollectorChain,
        "as with storage, then otlp_http, balancer, two Collectors without queue, awss3",
    ),
    "Fluent Bit": (
        FluentBit,
        (
            "tail with db and db.sync full, storage.type filesystem, storage.sync full; s3 over TLS"
            " with store_dir, use_put_object, total_file_size 1M, upload_timeout 1s,"
            " retry_limit 10^6"
        ),
    ),
    "Collector, Kafka": (
        Kafka,
        "as with storage, kafka with all acks; a broker that flushes each batch, a consumer, file",
    ),
    "syslog-ng": (SyslogNg, "flow control, reliable disk buffer, TCP, syslog-ng, file"),
}


@asynccontextmanager
async def shipping(shipper: Shipper) -> AsyncIterator[None]:
    """Run a shipper until the end of the block."""
    shipper.disk.mkdir(parents=True)
    size = ("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(shipper.disk))
    mounted = await _succeeds(*size)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(linked(shipper.store_link))
        await stack.enter_async_context(linked(shipper.middle_link))
        try:
            await shipper.prepare()
            await shipper.start_all()
            yield
        finally:
            try:
                await asyncio.to_thread(shipper.close)
            finally:
                if mounted:
                    await _succeeds("umount", "-l", str(shipper.disk))


async def _succeeds(*command: str) -> bool:
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
    return await process.wait() == 0


def make_shipper(
    name: str, folder: Path, store_port: int, links: Callable[[], FaultyLink]
) -> Shipper:
    """Return one of `SHIPPERS`; `links` makes a link to the S3 server."""
    kind, settings = SHIPPERS[name]
    return kind(name, settings, folder, store_port, links(), links())
