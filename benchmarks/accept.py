"""Accepting uploads over S3, beside the bare store calls that it stands on.

Everything is its own process: a store that speaks just enough S3 (`stub`), the gateway under test,
a plain gateway over aioboto3 (`plain`), and this one, which is client and control. The control of
latency and of processor time is the project's own S3 adapter, called for the two PUTs of an accept
plus one hash. Figures are ratios within a round; the machine is shared.

    python -m benchmarks.accept                # all parts
    python -m benchmarks.accept latency cpu    # some of: latency cpu memory
"""

import asyncio
import base64
import contextlib
import functools
import hashlib
import io
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Final

import aiohttp
import numpy as np
import uvloop
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from benchmarks.measure import Sample, ratio, report
from sluice_protocol.columns import LogColumns, TextColumn
from sluice_protocol.frame import encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key, blob_key, digest_of
from sluice_protocol.signatures import content_digest, sign_request
from sluice_protocol.units import ObjectKey
from sluice_store import create_authority, open_store

SIZES: Final = {"1 KiB": 1 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20}
LATENCY_MS: Final = 20
ROUNDS: Final = 5
KEY: Final = Ed25519PrivateKey.generate()
MANIFEST: Final = b'{"about":"the size of a manifest"}'.ljust(640)
SERIAL: Final = itertools.count()
"""Every frame of a run has a sequence number of its own: nothing is accepted twice by chance."""


# --- the store: just enough S3 -------------------------------------------------------------------


def serve_stub(latency_ms: str) -> None:
    """Serves PUT with `If-None-Match`, GET, HEAD and an empty listing, each after `latency_ms`."""
    held: dict[str, tuple[bytes, str, str]] = {}
    delay_s = float(latency_ms) / 1000
    await_s = asyncio.sleep

    async def answer(request: web.BaseRequest) -> web.Response:
        if "Expect" in request.headers:  # the SDK waits for it, as it does at S3
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        body = await request.content.read()
        if delay_s:
            await await_s(delay_s)
        if request.query_string.startswith("list-type"):
            return web.Response(text=_EMPTY_LISTING, content_type="application/xml")
        if request.method == "PUT":
            return _stub_put(held, request, body)
        if request.path.count("/") < 2:
            return web.Response()
        found = held.get(request.path)
        if found is None:
            return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>")
        headers = {"ETag": '"e"', "Last-Modified": found[2], "x-amz-checksum-sha256": found[1]}
        return web.Response(body=found[0], headers=headers)

    _serve(answer)


_EMPTY_LISTING: Final = (
    '<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>'
    "<KeyCount>0</KeyCount></ListBucketResult>"
)


def _stub_put(
    held: dict[str, tuple[bytes, str, str]], request: web.BaseRequest, body: bytes
) -> web.Response:
    if request.headers.get("If-None-Match") == "*" and request.path in held:
        return web.Response(status=412, text="<Error><Code>PreconditionFailed</Code></Error>")
    checksum = request.headers.get("x-amz-checksum-sha256", "")
    kept = body if len(body) < 2048 else b""
    held[request.path] = (kept, checksum, formatdate(usegmt=True))
    return web.Response(headers={"ETag": '"e"'})


def _serve(answer: Callable[[web.BaseRequest], Awaitable[web.Response]]) -> None:
    async def main() -> None:
        runner = web.ServerRunner(web.Server(answer, access_log=None))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    uvloop.run(main())


# --- the plain gateway: what a first version over the SDK does ------------------------------------


def serve_plain(endpoint: str) -> None:
    """Reads, hashes and puts twice through aioboto3; checks neither sender nor frame."""
    import aioboto3  # noqa: PLC0415 - only this process has it
    from botocore.config import Config  # noqa: PLC0415

    async def main() -> None:
        config = Config(max_pool_connections=256, retries={"total_max_attempts": 1})
        session = aioboto3.Session(region_name="us-east-1")
        async with session.client("s3", endpoint_url=endpoint, config=config) as client:
            serial = itertools.count()

            async def answer(request: web.BaseRequest) -> web.Response:
                body = await request.content.read()
                digest = hashlib.sha256(body)
                checksum = base64.b64encode(digest.digest()).decode()
                put = functools.partial(client.put_object, Bucket="plain", IfNoneMatch="*")
                await put(Key=f"raw/{digest.hexdigest()}", Body=body, ChecksumSHA256=checksum)
                await put(Key=f"accepted/{os.getpid()}-{next(serial)}", Body=MANIFEST)
                return web.json_response({"status": "accepted"})

            runner = web.ServerRunner(web.Server(answer, access_log=None))
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            print(runner.addresses[0][1], flush=True)
            await asyncio.Event().wait()

    uvloop.run(main())


# --- processes -----------------------------------------------------------------------------------


@contextmanager
def child(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process for the time of the block."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=_environment())
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _environment() -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    return os.environ | keys | {"AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}


def first_line(process: subprocess.Popen[bytes]) -> int:
    """Gives the port that a process of this file prints."""
    if process.stdout is None:
        raise RuntimeError
    return int(process.stdout.readline())


@contextmanager
def stub(latency_ms: float) -> Iterator[str]:
    """Runs the store; gives its URL."""
    with child(sys.executable, "-m", "benchmarks.accept", "stub", str(latency_ms)) as process:
        yield f"http://127.0.0.1:{first_line(process)}"


def store_url(endpoint: str) -> str:
    """Gives the store URL over the stub."""
    return f"s3://bench/run?endpoint={endpoint}&region=us-east-1"


@contextmanager
def gateway(endpoint: str, *flags: str) -> Iterator[tuple[int, int]]:
    """Runs `sluice gateway` over the stub; gives its process id and port."""
    raw = KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    asyncio.run(_init(endpoint))
    with tempfile.TemporaryDirectory(prefix="gateway-") as folder:
        principals = Path(folder) / "principals.toml"
        principals.write_text(
            '[[principals]]\nname = "bench"\nagents = ["bench"]\n'
            f'keys = [{{ id = "k", ed25519 = "{base64.b64encode(raw).decode()}" }}]\n'
        )
        port = _free_port()
        command = (
            *(sys.executable, "-c", "from sluice_cli.main import main; main()", "gateway"),
            *("--store", store_url(endpoint), "--listen", f"127.0.0.1:{port}"),
            *("--principals", str(principals), "--skip-probe", *flags),
        )
        with child(*command) as process:
            asyncio.run(_until_live(port))
            yield process.pid, port


async def _init(endpoint: str) -> None:
    async with open_store(store_url(endpoint)) as store:
        await create_authority(store)


def _free_port() -> int:
    import socket  # noqa: PLC0415 - used here alone

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def _until_live(port: int) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(200):
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"http://127.0.0.1:{port}/livez"):
                    return
            await asyncio.sleep(0.05)
    raise RuntimeError


def cpu_of(pid: int) -> float:
    """Gives the processor seconds of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(pid: int) -> int:
    """Gives the greatest resident size that a process had."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


# --- frames and uploads --------------------------------------------------------------------------


class Batch:
    """A frame with its own identity, and its signed head for one gateway."""

    def __init__(self, size_bytes: int, port: int) -> None:
        """Makes log lines that zstd leaves about `size_bytes` of."""
        seq = next(SERIAL)
        self.identity = Identity(agent_id="bench", boot_id="b", seq_start=seq, seq_end=seq)
        self.frame = _frame(self.identity, size_bytes)
        self.digest = digest_of(self.frame)
        fields = {
            "Content-Digest": content_digest(self.digest),
            "Content-Length": str(len(self.frame)),
            "Content-Type": "application/vnd.lightmetrics.batch",
        }
        self.headers = fields | sign_request(
            key=KEY,
            key_id="k",
            method="POST",
            authority=f"127.0.0.1:{port}",
            path="/v1/batches",
            headers=fields,
            created_s=int(time.time()),
        )


@functools.cache
def _padding(size_bytes: int) -> bytes:
    return base64.b64encode(np.random.default_rng(1).bytes(size_bytes))


def _frame(identity: Identity, size_bytes: int) -> bytes:
    head = f"{identity.seq_start} ".encode()
    body = head + _padding(size_bytes)[: max(1, size_bytes - 250)]
    columns = LogColumns(
        ts=np.array([1_800_000_000_000_000_000], np.int64),
        body=TextColumn(offsets=np.array([0, len(body)], np.int32), data=body),
        severity=None,
        attributes=None,
    )
    return encode_frame(identity=identity, columns=columns, compress=False)


Send = Callable[[Batch], Awaitable[None]]


@asynccontextmanager
async def uploading(port: int, *, duplicate: bool = False) -> AsyncIterator[Send]:
    """Gives what uploads one batch and insists on its acceptance."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        url = f"http://127.0.0.1:{port}/v1/batches"

        async def send(batch: Batch) -> None:
            data = io.BytesIO(batch.frame)
            async with session.post(url, data=data, headers=batch.headers) as answer:
                body = await answer.json(content_type=None)
                if answer.status != 200 or body.get("duplicate", duplicate) != duplicate:
                    raise RuntimeError(body)

        yield send


@asynccontextmanager
async def putting(endpoint: str) -> AsyncIterator[Send]:
    """Gives the control: one hash and the two PUTs of an accept, one after the other."""
    async with open_store(store_url(endpoint)) as store:

        async def send(batch: Batch) -> None:
            digest = digest_of(batch.frame)
            await store.create(ObjectKey(f"c/{blob_key(digest)}"), batch.frame, sha256=digest)
            await store.create(ObjectKey(f"c/{accepted_key(batch.identity)}"), MANIFEST)

        yield send


async def drive(send: Send, batches: list[Batch], clients: int) -> list[float]:
    """Sends all batches over so many clients; gives the seconds of each."""
    waiting, seconds = iter(batches), []

    async def one() -> None:
        for batch in waiting:
            started = time.perf_counter()
            await send(batch)
            seconds.append(time.perf_counter() - started)

    await asyncio.gather(*(one() for _ in range(clients)))
    return seconds


# --- parts ---------------------------------------------------------------------------------------


def latency() -> None:
    """With 20 ms in the store: p50 and p99 of an accept over those of two sequential PUTs."""
    lines: list[str] = []
    kept: dict[str, list[Sample]] = {}
    with stub(LATENCY_MS) as endpoint, gateway(endpoint) as (_, port):
        for name, size_bytes in SIZES.items():
            rounds = uvloop.run(_latency_rounds(endpoint, port, size_bytes))
            for quantile, place, limit in (("p50", 49, 1.10), ("p99", 98, 1.25)):
                ratios = [
                    statistics.quantiles(ours, n=100)[place]
                    / statistics.quantiles(bare, n=100)[place]
                    for ours, bare in rounds
                ]
                kept[f"{name} {quantile}"] = [
                    Sample(wall_s=value, cpu_s=0, units=1) for value in ratios
                ]
                lines.append(_line(f"{name} {quantile} accept / two PUTs", ratios, f"<= {limit}"))
            bare_ms = [1e3 * statistics.median(bare) for _, bare in rounds]
            lines.append(f"{name} control p50 {statistics.median(bare_ms):.1f} ms")
    report("accept-latency", lines, kept)


async def _latency_rounds(
    endpoint: str, port: int, size_bytes: int
) -> list[tuple[list[float], list[float]]]:
    rounds = []
    async with uploading(port) as upload, putting(endpoint) as put:
        for number in range(ROUNDS + 1):
            ours = await drive(upload, [Batch(size_bytes, port) for _ in range(120)], 4)
            bare = await drive(put, [Batch(size_bytes, port) for _ in range(120)], 4)
            if number:
                rounds.append((ours, bare))
    return rounds


def _line(what: str, ratios: list[float], target: str) -> str:
    median = statistics.median(ratios)
    return f"{what}: {median:.2f} ({min(ratios):.2f}-{max(ratios):.2f}), target {target}"


def cpu() -> None:
    """At saturation: processor time of an accept over the bare PUTs, aioboto3, and duplicates."""
    lines: list[str] = []
    samples: dict[str, list[Sample]] = {}
    with (
        stub(0) as endpoint,
        gateway(endpoint) as (pid, port),
        child(sys.executable, "-m", "benchmarks.accept", "plain", endpoint) as plain,
    ):
        servers = {"accept": (pid, port), "aioboto3": (plain.pid, first_line(plain))}
        for name, size_bytes in SIZES.items():
            taken = uvloop.run(_cpu_rounds(endpoint, servers, size_bytes))
            samples |= {f"{name} {who}": found for who, found in taken.items()}
            lines += _cpu_lines(name, taken)
    report("accept-cpu", lines, samples)


def _cpu_lines(name: str, taken: dict[str, list[Sample]]) -> list[str]:
    def told(subject: str, control: str, value: Callable[[Sample], float]) -> tuple[float, ...]:
        return ratio(taken[subject], taken[control], value)

    rows = (
        ("CPU of accept / bare PUTs and hash", "accept", "bare", "<= 1.5"),
        ("accepts per CPU s / aioboto3 gateway", "aioboto3", "accept", ">= 2.5"),
        ("cached duplicates per CPU s / fresh", "accept", "duplicate", ">= 4"),
    )
    lines = []
    for what, subject, control, target in rows:
        low, median, high = told(subject, control, lambda sample: sample.cpu_per_unit)
        lines.append(f"{name} {what}: {median:.2f} ({low:.2f}-{high:.2f}), target {target}")
    low, median, high = told("duplicate", "accept", lambda sample: sample.per_second)
    lines.append(f"{name} cached duplicates per s / fresh: {median:.2f} ({low:.2f}-{high:.2f})")
    ms = {
        who: statistics.median(sample.cpu_per_unit * 1e3 for sample in found)
        for who, found in taken.items()
    }
    lines.append(f"{name} CPU ms: " + ", ".join(f"{who} {value:.2f}" for who, value in ms.items()))
    return lines


async def _cpu_rounds(
    endpoint: str, servers: dict[str, tuple[int, int]], size_bytes: int
) -> dict[str, list[Sample]]:
    taken: dict[str, list[Sample]] = {}
    pid, port = servers["accept"]
    plain_pid, plain_port = servers["aioboto3"]
    count = 400 if size_bytes < 1 << 20 else 100
    async with (
        uploading(port) as fresh,
        uploading(port, duplicate=True) as again,
        uploading(plain_port) as sdk,
        putting(endpoint) as bare,
    ):
        for number in range(ROUNDS + 1):
            batches = [Batch(size_bytes, port) for _ in range(count)]
            subjects: dict[str, tuple[Send, int]] = {
                "accept": (fresh, pid),
                "duplicate": (again, pid),
                "bare": (bare, os.getpid()),
                "aioboto3": (sdk, plain_pid),
            }
            for who, (send, process) in subjects.items():
                started, spent = time.perf_counter(), cpu_of(process)
                await drive(send, batches, 16)
                sample = Sample(
                    wall_s=time.perf_counter() - started,
                    cpu_s=max(0.01, cpu_of(process) - spent),
                    units=count,
                )
                if number:
                    taken.setdefault(who, []).append(sample)
    return taken


def memory() -> None:
    """256 clients with 16 MiB frames: the worker's greatest size stays within budget + 150 MB."""
    budget = 256 << 20
    with stub(0) as endpoint, gateway(endpoint, "--inflight-bytes-max", str(budget)) as (pid, port):
        before = peak_bytes(pid)
        answers = uvloop.run(_flood(port))
        peak = peak_bytes(pid)
    limit = budget + 150_000_000
    told = ", ".join(f"{status}: {count}" for status, count in sorted(answers.items()))
    line = f"peak {peak / 1e6:.0f} MB (idle {before / 1e6:.0f} MB), target <= {limit / 1e6:.0f} MB"
    sample = Sample(wall_s=peak, cpu_s=0, units=1)
    report("accept-memory", [line, f"answers {told}"], {"peak": [sample]})


async def _flood(port: int) -> dict[int, int]:
    batches = [Batch((16 << 20) - 4096, port) for _ in range(6)]
    answers: dict[int, int] = {}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def one(batch: Batch) -> None:
            url, data = f"http://127.0.0.1:{port}/v1/batches", io.BytesIO(batch.frame)
            try:
                async with session.post(url, data=data, headers=batch.headers) as answer:
                    status = answer.status
            except aiohttp.ClientError:
                status = 0
            answers[status] = answers.get(status, 0) + 1

        await asyncio.gather(*(one(batches[number % 6]) for number in range(256)))
    return answers


PARTS: Final = {"latency": latency, "cpu": cpu, "memory": memory}


def main(words: list[str]) -> None:
    """Runs a helper process, or the parts that are named, or all."""
    os.environ.update(_environment())
    match words:
        case ["stub", latency_ms]:
            serve_stub(latency_ms)
        case ["plain", endpoint]:
            serve_plain(endpoint)
        case _:
            for name in words or list(PARTS):
                PARTS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
