"""Benchmark `accept`: uploads over S3, compared with the bare store calls that they consist of.

There are five processes: a minimal S3 server, the gateway under test, a plain gateway over
aioboto3, a bare handler, and this process, which is the client and a control. Processor time is
compared with the two PUTs and the one hash of an accept, in three variants. `bare` uses botocore's
signer and an aiohttp session without changes; `adapter` uses the project's S3 adapter; `handler`
is a server that receives the body and then does what `adapter` does. Figures are ratios within a
round, because the machine is shared.

    python -m benchmarks.accept                # all parts
    python -m benchmarks.accept latency cpu    # some of: latency crowd cpu cpu-mtls lists memory
"""

import asyncio
import io
import os
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import aiohttp
import uvloop

from benchmarks.accept_load import (
    Send,
    UploadBatch,
    UploadList,
    bare,
    client_tls,
    drive,
    putting,
    uploading,
    uploading_lists,
)
from benchmarks.accept_servers import child, cpu_of, environment, first_line, gateway, peak_bytes
from benchmarks.accept_servers import stub as run_stub
from benchmarks.measure import Sample, ratio, report
from benchmarks.request_costs import read_gateway_counts

SIZES: Final = {"1 KiB": 1 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20}
LATENCY_MS: Final = 20
ROUNDS: Final = 5
LIST_FRAMES: Final = (16, 256)
_Sent = TypeVar("_Sent")


_LATENCY_ROWS: Final = (
    ("accept / two PUTs", "accept", "PUTs", "target <= {limit}"),
    ("accept / bare handler", "accept", "handler", "target <= {limit}"),
    ("bare handler / two PUTs", "handler", "PUTs", "no target"),
)
_PERCENTILES: Final = (("p50", 49, 1.06), ("p99", 98, 1.15))


def latency(folder: Path) -> None:
    """Measure p50 and p99 of an accept against both controls, with 20 ms store latency."""
    lines: list[str] = []
    kept: dict[str, list[Sample]] = {}
    with (
        run_stub(LATENCY_MS) as endpoint,
        gateway(endpoint, folder) as (_, port),
        child(*_HANDLER, endpoint) as handler,
    ):
        handler_port = first_line(handler)
        for name, size_bytes in SIZES.items():
            before = read_gateway_counts(port)
            rounds = uvloop.run(_latency_rounds(endpoint, port, handler_port, size_bytes))
            made = read_gateway_counts(port).since(before)
            for quantile, place, limit in _PERCENTILES:
                for what, subject, control, target in _LATENCY_ROWS:
                    ratios = [
                        _percentile(one[subject], place) / _percentile(one[control], place)
                        for one in rounds
                    ]
                    kept[f"{name} {quantile} {what}"] = [
                        Sample(wall_s=value, cpu_s=0, units=1) for value in ratios
                    ]
                    lines.append(
                        _line(f"{name} {quantile} {what}", ratios, target.format(limit=limit))
                    )
            put_ms = [1e3 * _percentile(one["PUTs"], 49) for one in rounds]
            lines.append(f"{name} p50 of two PUTs {statistics.median(put_ms):.1f} ms")
            lines.append(f"{name} {made.describe()}")
    report("accept-latency", lines, kept)


def _percentile(seconds: list[float], place: int) -> float:
    return statistics.quantiles(seconds, n=100)[place]


async def _latency_rounds(
    endpoint: str, port: int, handler_port: int, size_bytes: int
) -> list[dict[str, list[float]]]:
    rounds = []
    async with (
        uploading(port) as upload,
        uploading(handler_port) as handle,
        putting(endpoint) as put,
    ):
        subjects = {"accept": upload, "handler": handle, "PUTs": put}
        for number in range(ROUNDS + 1):
            found = {
                who: await drive(send, [UploadBatch(size_bytes, port) for _ in range(120)], 4)
                for who, send in subjects.items()
            }
            if number:
                rounds.append(found)
    return rounds


def _line(what: str, ratios: list[float], target: str) -> str:
    median = statistics.median(ratios)
    return f"{what}: {median:.2f} ({min(ratios):.2f}-{max(ratios):.2f}), {target}"


CROWD_CLIENTS: Final = 128
CROWD_UPLOADS: Final = 4_000


def crowd(folder: Path) -> None:
    """Measure the slowest of many uploads, with clients for eight workers on every core."""
    workers = os.cpu_count() or 1
    lines: list[str] = []
    kept: dict[str, list[Sample]] = {}
    with (
        run_stub(0) as endpoint,
        gateway(endpoint, folder, "--workers", str(workers)) as (_, port),
    ):
        for name, size_bytes in SIZES.items():
            rounds = uvloop.run(_crowd_rounds(port, size_bytes))
            ratios = [max(seconds) / statistics.median(seconds) for seconds in rounds]
            lines.append(_line(f"{name} slowest upload / p50", ratios, "target <= 10"))
            p50_ms = 1e3 * statistics.median(statistics.median(seconds) for seconds in rounds)
            lines.append(f"{name} p50 {p50_ms:.0f} ms, {CROWD_CLIENTS} clients, {workers} workers")
            kept[name] = [Sample(wall_s=value, cpu_s=0, units=1) for value in ratios]
    report("accept-crowd", lines, kept)


async def _crowd_rounds(port: int, size_bytes: int) -> list[list[float]]:
    count = CROWD_UPLOADS if size_bytes < 1 << 20 else CROWD_UPLOADS // 10
    rounds = []
    async with uploading(port) as upload:
        for number in range(ROUNDS + 1):
            batches = [UploadBatch(size_bytes, port) for _ in range(count)]
            found = await drive(upload, batches, CROWD_CLIENTS)
            if number:
                rounds.append(found)
    return rounds


def cpu(folder: Path, *, tls: bool = False) -> None:
    """Measure the processor time of an accept at saturation, relative to each control."""
    lines: list[str] = []
    samples: dict[str, list[Sample]] = {}
    with (
        run_stub(0) as endpoint,
        gateway(endpoint, folder, tls=tls) as (pid, port),
        child(sys.executable, "-m", "benchmarks.accept_servers", "plain", endpoint) as plain,
        child(*_HANDLER, endpoint, *((str(folder / "tls"),) if tls else ())) as handler,
    ):
        servers = {
            "accept": (pid, port),
            "aioboto3": (plain.pid, first_line(plain)),
            "handler": (handler.pid, first_line(handler)),
        }
        context = client_tls(folder) if tls else None
        for name, size_bytes in SIZES.items():
            measured = uvloop.run(_cpu_rounds(endpoint, servers, size_bytes, context))
            samples |= {f"{name} {who}": found for who, found in measured.items()}
            lines += _cpu_lines(name, measured, limit=1.15 if tls else 1.25)
    report("accept-cpu-mtls" if tls else "accept-cpu", lines, samples)


_HANDLER: Final = (sys.executable, "-m", "benchmarks.accept_servers", "handler")
_CPU_ROWS: Final = (
    ("CPU of accept / bare handler", "accept", "handler", ""),
    ("CPU of accept / bare PUTs and hash", "accept", "bare", "target <= 1.5"),
    ("CPU of accept / the adapter's PUTs and hash", "accept", "adapter", "no target"),
    ("accepts per CPU s / aioboto3 gateway", "aioboto3", "accept", "target >= 2.5"),
    ("cached duplicates per CPU s / fresh", "accept", "duplicate", "target >= 5 at 1 KiB"),
)


def _cpu_lines(name: str, measured: dict[str, list[Sample]], *, limit: float) -> list[str]:
    lines = []
    for what, subject, control, target in _CPU_ROWS:
        low, median, high = ratio(
            measured[subject], measured[control], lambda one: one.cpu_per_unit
        )
        lines.append(
            f"{name} {what}: {median:.2f} ({low:.2f}-{high:.2f}), {target or f'target <= {limit}'}"
        )
    low, median, high = ratio(measured["duplicate"], measured["accept"], lambda one: one.per_second)
    lines.append(f"{name} cached duplicates per s / fresh: {median:.2f} ({low:.2f}-{high:.2f})")
    ms = {
        who: statistics.median(sample.cpu_per_unit * 1e3 for sample in found)
        for who, found in measured.items()
    }
    lines.append(f"{name} CPU ms: " + ", ".join(f"{who} {value:.2f}" for who, value in ms.items()))
    return lines


async def _cpu_rounds(
    endpoint: str,
    servers: dict[str, tuple[int, int]],
    size_bytes: int,
    tls: ssl.SSLContext | None,
) -> dict[str, list[Sample]]:
    measured: dict[str, list[Sample]] = {}
    pid, port = servers["accept"]
    plain_pid, plain_port = servers["aioboto3"]
    handler_pid, handler_port = servers["handler"]
    count = 800 if size_bytes < 1 << 20 else 100
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        subjects: dict[str, tuple[Send, int]] = {
            "accept": (await enter(uploading(port, tls=tls)), pid),
            "handler": (await enter(uploading(handler_port, tls=tls)), handler_pid),
            "duplicate": (await enter(uploading(port, duplicate=True, tls=tls)), pid),
            "bare": (await enter(bare(endpoint)), os.getpid()),
            "adapter": (await enter(putting(endpoint)), os.getpid()),
            "aioboto3": (await enter(uploading(plain_port)), plain_pid),
        }
        for number in range(ROUNDS + 1):
            batches = [UploadBatch(size_bytes, port) for _ in range(count)]
            for who, (send, process) in subjects.items():
                sample = await _sample(send, batches, process)
                if number:
                    measured.setdefault(who, []).append(sample)
    return measured


async def _sample(
    send: Callable[[_Sent], Awaitable[None]], batches: list[_Sent], process: int
) -> Sample:
    started, spent = time.perf_counter(), cpu_of(process)
    await drive(send, batches, 16)
    cpu_s = max(0.01, cpu_of(process) - spent)  # the kernel counts in hundredths of a second
    return Sample(wall_s=time.perf_counter() - started, cpu_s=cpu_s, units=len(batches))


def lists(folder: Path) -> None:
    """Measure the processor time of a frame of 1 KiB in a list, relative to a single upload."""
    with run_stub(0) as endpoint, gateway(endpoint, folder) as (pid, port):
        measured = uvloop.run(_list_rounds(pid, port))
    lines = []
    for count in LIST_FRAMES:
        low, median, high = ratio(
            measured[f"list of {count}"], measured["single"], lambda one: one.cpu_per_unit
        )
        lines.append(
            f"CPU of a frame in a list of {count} / single upload:"
            f" {median:.2f} ({low:.2f}-{high:.2f}), target <= 0.6"
        )
    report("accept-lists", lines, measured)


async def _list_rounds(pid: int, port: int) -> dict[str, list[Sample]]:
    measured: dict[str, list[Sample]] = {}
    frames = 1024
    async with uploading(port) as upload, uploading_lists(port) as upload_list:
        for number in range(ROUNDS + 1):
            batches = [UploadBatch(1 << 10, port) for _ in range(frames)]
            samples = {"single": await _sample(upload, batches, pid)}
            for count in LIST_FRAMES:
                sent = [
                    UploadList([UploadBatch(1 << 10, port) for _ in range(count)], port)
                    for _ in range(frames // count)
                ]
                found = await _sample(upload_list, sent, pid)
                samples[f"list of {count}"] = replace(found, units=frames)
            for name, sample in samples.items():
                if number:
                    measured.setdefault(name, []).append(sample)
    return measured


def memory(folder: Path) -> None:
    """Measure the peak memory of a worker with 256 clients that send frames of 16 MiB."""
    budget = 256 << 20
    flags = ("--inflight-bytes-max", str(budget))
    with run_stub(0) as endpoint, gateway(endpoint, folder, *flags) as (pid, port):
        before = peak_bytes(pid)
        answers = uvloop.run(_flood(port))
        peak = peak_bytes(pid)
    limit = budget + 150_000_000
    counts = ", ".join(f"{status}: {count}" for status, count in sorted(answers.items()))
    line = f"peak {peak / 1e6:.0f} MB (idle {before / 1e6:.0f} MB), target <= {limit / 1e6:.0f} MB"
    sample = Sample(wall_s=peak, cpu_s=0, units=1)
    report("accept-memory", [line, f"responses {counts}"], {"peak": [sample]})


async def _flood(port: int) -> dict[int, int]:
    batches = [UploadBatch((16 << 20) - 4096, port) for _ in range(6)]
    answers: dict[int, int] = {}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def one(batch: UploadBatch) -> None:
            url, data = f"http://127.0.0.1:{port}/v1/batches", io.BytesIO(batch.frame)
            try:
                async with session.post(url, data=data, headers=batch.signed) as answer:
                    status = answer.status
            except aiohttp.ClientError:
                status = 0
            answers[status] = answers.get(status, 0) + 1

        await asyncio.gather(*(one(batches[number % 6]) for number in range(256)))
    return answers


PARTS: Final[dict[str, Callable[[Path], None]]] = {
    "latency": latency,
    "crowd": crowd,
    "cpu": cpu,
    "cpu-mtls": partial(cpu, tls=True),
    "lists": lists,
    "memory": memory,
}


def main(words: list[str]) -> None:
    """Run the named parts, or all."""
    os.environ.update(environment())
    for name in words or list(PARTS):
        with tempfile.TemporaryDirectory(prefix="gateway-") as folder:
            PARTS[name](Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
