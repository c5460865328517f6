"""Benchmark `doors`: records and bytes of clients' requests per CPU second of the server processes.

The subject is `sluice gateway`. The control is the OpenTelemetry Collector from an OTLP receiver to
S3 without a queue, so that both respond after the data is in the store. It receives the same bodies
and writes to the same server, versitygw. It stores the request as JSON, which is the default of
`awss3exporter` (`collector`), and as protobuf (`collector-proto`). All run in turn, in one run.

The memory part opens 1 000 connections of mixed doors, and sends bodies of mixed sizes slowly.

    python -m benchmarks.doors                      # all sizes and memory; some minutes
    python -m benchmarks.doors --sizes 4MiB --rounds 3 --doors otlp
    python -m benchmarks.doors --sizes 1KiB --gateway=--door-own-frame-bytes=262144
    python -m benchmarks.doors --memory
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import aiohttp
import grpc
import uvloop
from tests.support.store_versitygw import CREDENTIALS, free_port, make_bucket, versitygw

from benchmarks.accept_servers import cpu_of, gateway_on, peak_bytes
from benchmarks.doors_bodies import OTLP, SHAPES, BodyShape, DoorBody, bodies
from benchmarks.end_to_end import WRITES
from benchmarks.measure import Sample, ratio, report
from benchmarks.peer_servers import BUCKETS, PeerServer, collector
from benchmarks.request_costs import read_gateway_counts
from sluice_gateway.door_tokens import create_token

COLLECTOR_RATIO_MIN: Final = 0.5
"""Bytes per CPU second of a whole OTLP request of 4 MiB, relative to the Collector's."""
MEMORY_SLACK_BYTES: Final = 150_000_000
CONNECTIONS: Final = 1_000
SIZES: Final = {"1KiB": 1 << 10, "256KiB": 256 << 10, "4MiB": 4 << 20}
REQUESTS: Final = {"1KiB": 400, "256KiB": 60, "4MiB": 12}
"""Requests in a round: enough that a hundredth of a second, the kernel's unit, is a few percent."""
COLLECTORS: Final = {"collector": "otlp_json", "collector-proto": "otlp_proto"}
_GRPC_METHOD: Final = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"

Send = Callable[[DoorBody], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The running processes; the gateway's are its process id and port."""

    gateway: tuple[int, int]
    grpc_port: int
    token: str
    collectors: Mapping[str, PeerServer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A server, a protocol and a way to send.

    `pid` is the process whose processor time is measured, and `metrics_port` has the count of
    writes to the store; None for the Collector.
    """

    shape: BodyShape
    pid: int
    send: Send
    metrics_port: int | None


@contextmanager
def servers(folder: Path, *more: str) -> Iterator[Servers]:
    """Run the store, a gateway with all doors and both Collectors."""
    token, grpc_port = create_token("bench-doors", [one.door for one in SHAPES]), free_port()
    flags = ["--otlp-grpc-listen", f"127.0.0.1:{grpc_port}", *more]
    for shape in SHAPES:
        flags += ["--doors", shape.door]
    with ExitStack() as stack:
        enter = stack.enter_context
        server = enter(versitygw(folder))
        for bucket in BUCKETS:
            asyncio.run(make_bucket(server.url(bucket), versioning=None))
        url = server.url(BUCKETS[0])
        yield Servers(
            gateway=enter(gateway_on(url, folder, *flags, more=token.principal)),
            grpc_port=grpc_port,
            token=token.token,
            collectors={
                name: enter(collector(folder, server.endpoint, BUCKETS[1], marshaler=marshaler))
                for name, marshaler in COLLECTORS.items()
            },
        )


@asynccontextmanager
async def subjects(running: Servers, doors: frozenset[str]) -> AsyncIterator[dict[str, Subject]]:
    """Yield what is measured, by name."""
    authorization = {"Authorization": f"Bearer {running.token}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))

        def over_http(shape: BodyShape, port: int, fields: Mapping[str, str]) -> Send:
            url = f"http://127.0.0.1:{port}{shape.path}"

            async def send(body: DoorBody) -> None:
                headers = {**shape.headers, **fields}
                async with session.post(url, data=body.sent, headers=headers) as answer:
                    text = await answer.read()
                    if answer.status not in {200, 204}:
                        raise RuntimeError(answer.status, text)

            return send

        pid, port = running.gateway
        found: dict[str, Subject] = {
            shape.door: Subject(
                shape=shape, pid=pid, send=over_http(shape, port, authorization), metrics_port=port
            )
            for shape in SHAPES
        }
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(f"127.0.0.1:{running.grpc_port}")
        )
        export: Callable[..., Awaitable[bytes]] = channel.unary_unary(_GRPC_METHOD)

        async def send_grpc(body: DoorBody) -> None:
            await export(
                body.sent, metadata=tuple((k.lower(), v) for k, v in authorization.items())
            )

        found["otlp-grpc"] = Subject(shape=OTLP, pid=pid, send=send_grpc, metrics_port=port)
        for name, other in running.collectors.items():
            send = over_http(OTLP, other.port, {})
            found[name] = Subject(shape=OTLP, pid=other.pid, send=send, metrics_port=None)
        yield {name: one for name, one in found.items() if not doors or one.shape.door in doors}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The requests of one subject in one round."""

    sample: Sample
    records: int
    writes: float


async def measure(subject: Subject, size: str) -> Measured:
    """Send the requests of one round."""
    made = bodies(subject.shape, SIZES[size])
    chosen = [next(made) for _ in range(REQUESTS[size])]
    writes = _writes(subject)
    started, spent = time.perf_counter(), cpu_of(subject.pid)
    waiting = iter(chosen)

    async def client() -> None:
        for body in waiting:
            await subject.send(body)

    await asyncio.gather(*(client() for _ in range(4 if size == "4MiB" else 32)))
    sample = Sample(
        wall_s=time.perf_counter() - started,
        cpu_s=max(0.01, cpu_of(subject.pid) - spent),
        units=sum(one.size_bytes for one in chosen),
    )
    return Measured(
        sample=sample,
        records=sum(one.records for one in chosen),
        writes=_writes(subject) - writes if subject.metrics_port else len(chosen),
    )


def _writes(subject: Subject) -> float:
    """Return the writes of the gateway to the store so far."""
    if subject.metrics_port is None:
        return 0.0
    made = read_gateway_counts(subject.metrics_port).calls
    return sum(made.get(verb, 0) for verb in WRITES)


async def speed(
    running: Servers, sizes: list[str], rounds: int, doors: frozenset[str]
) -> dict[str, list[Measured]]:
    """Measure every subject with every size, in turn."""
    found: dict[str, list[Measured]] = {}
    async with subjects(running, doors) as chosen:
        for size in sizes:
            for number in range(rounds + 1):
                for name, subject in chosen.items():
                    measured = await measure(subject, size)
                    if number:
                        found.setdefault(f"{size} {name}", []).append(measured)
    return found


def lines(found: Mapping[str, list[Measured]]) -> tuple[list[str], dict[str, float]]:
    """Return the printed lines, and the ratios to the default Collector by name."""
    shown, medians = [], {}
    for name, rounds in found.items():
        size, _, who = name.partition(" ")
        samples = [one.sample for one in rounds]
        per_s = sorted(1 / one.cpu_per_unit / 1e6 for one in samples)
        records = median(one.records / one.sample.cpu_s for one in rounds)
        puts = median(1_000 * one.writes / one.records for one in rounds)
        line = (
            f"{size:7} {who:16} {median(per_s):7.2f} MB ({per_s[0]:.2f} to {per_s[-1]:.2f}),"
            f" {records:9,.0f} records per CPU s; {puts:8.2f} PUTs per 1,000 records"
        )
        for control in COLLECTORS:
            other = found.get(f"{size} {control}")
            if other and who.startswith("otlp"):
                theirs = [one.sample for one in other]
                low, middle, high = ratio(samples, theirs, lambda one: 1 / one.cpu_per_unit)
                medians[f"{name} {control}"] = middle
                line += f"; {middle:.2f} x {control} ({low:.2f} to {high:.2f})"
        shown.append(line)
    return shown, medians


# --- memory ---------------------------------------------------------------------------------------


async def flood(running: Servers) -> Counter[int]:
    """Open all connections, send bodies of mixed sizes slowly, and count the statuses."""
    statuses: Counter[int] = Counter()
    connected = asyncio.Event()
    prepared = {
        (shape.door, size): [next(made) for _ in range(4)]
        for shape in SHAPES
        for size in SIZES
        for made in [bodies(shape, SIZES[size])]
    }
    open_now = 0

    async def client(number: int) -> None:
        nonlocal open_now
        shape = SHAPES[number % len(SHAPES)]
        # One connection in eight sends the largest bodies, and half of them the smallest.
        size = ("1KiB", "256KiB", "1KiB", "256KiB", "1KiB", "4MiB", "1KiB", "256KiB")[
            number // 5 % 8
        ]
        body = prepared[shape.door, size][number % 4].sent
        reader, writer = await asyncio.open_connection("127.0.0.1", running.gateway[1])
        open_now += 1
        if open_now == CONNECTIONS:
            connected.set()
        await connected.wait()
        try:
            statuses[await _request(reader, writer, shape, body, running)] += 1
        except (OSError, asyncio.IncompleteReadError):
            statuses[0] += 1
        finally:
            writer.transport.abort()  # a refused body is not sent to its end
            with suppress(OSError):
                await writer.wait_closed()

    async with asyncio.timeout(300):
        await asyncio.gather(*map(client, range(CONNECTIONS)))
    return statuses


async def _request(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    shape: BodyShape,
    body: bytes,
    running: Servers,
) -> int:
    fields = {
        "Host": f"127.0.0.1:{running.gateway[1]}",
        "Authorization": f"Bearer {running.token}",
        "Content-Length": str(len(body)),
        "User-Agent": "benchmark",
        **shape.headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(f"POST {shape.path} HTTP/1.1\r\n{head}\r\n".encode())
    step = max(1, len(body) // 20)
    for start in range(0, len(body), step):
        writer.write(body[start : start + step])
        await writer.drain()
        await asyncio.sleep(0.1)
    return int((await reader.readuntil(b"\r\n")).split()[1])


def memory(running: Servers, budget_bytes: int) -> tuple[str, bool]:
    """Return the line of the memory part, and whether the bar is met."""
    pid = running.gateway[0]
    before = peak_bytes(pid)
    statuses = uvloop.run(flood(running))
    peak, limit = peak_bytes(pid), budget_bytes + MEMORY_SLACK_BYTES
    counts = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
    line = (
        f"memory: peak {peak / 1e6:.0f} MB with {CONNECTIONS} connections (before"
        f" {before / 1e6:.0f} MB), target <= {limit / 1e6:.0f} MB; responses {counts}"
    )
    return line, peak <= limit


def main(words: list[str]) -> int:
    """Run the benchmark; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks.doors")
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--doors", nargs="*", default=[])
    parser.add_argument("--gateway", nargs="*", default=[], help="flags, such as --workers=2")
    parser.add_argument("--memory", action="store_true", help="only the memory part")
    wanted = parser.parse_args(words)
    os.environ.update(CREDENTIALS | {"AWS_EC2_METADATA_DISABLED": "true"})
    shown: list[str] = []
    samples: dict[str, list[Sample]] = {}
    medians: dict[str, float] = {}
    met = True
    with (
        tempfile.TemporaryDirectory(prefix="doors-") as folder,
        servers(Path(folder), *wanted.gateway) as running,
    ):
        if not wanted.memory:
            found = uvloop.run(speed(running, wanted.sizes, wanted.rounds, frozenset(wanted.doors)))
            shown, medians = lines(found)
            samples = {name: [one.sample for one in rounds] for name, rounds in found.items()}
    if wanted.memory or not wanted.doors:
        with (
            tempfile.TemporaryDirectory(prefix="doors-") as folder,
            servers(Path(folder), *wanted.gateway) as running,
        ):
            line, met = memory(running, 256 << 20)
            shown.append(line)
    report("doors", shown, samples)
    return int(not met or medians.get("4MiB otlp collector", 1.0) < COLLECTOR_RATIO_MIN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
