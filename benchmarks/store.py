"""Benchmark `store`: the cost of one conditional PUT, compared with the SDK and with a bare loop.

All three use one versitygw process with the same bodies, digests and concurrency, in turn in each
round. `sluice` is the store adapter. `sdk` is aioboto3's `put_object` with the same condition and
checksum. `bare` is an aiohttp loop with precomputed signatures. Server and client share the cores
of the machine; only the client's CPU is counted.
"""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import uvloop
from yarl import URL

from benchmarks.measure import Sample, interleave, ratio, report
from sluice_protocol.keys import blob_key, digest_of
from sluice_protocol.outcomes import Applied
from sluice_protocol.prices import RequestCounts, describe_requests
from sluice_protocol.units import Digest, ObjectKey
from sluice_store.s3.credentials import resolve_settings
from sluice_store.s3.exchange import S3Request, encode_checksum
from sluice_store.s3.sdk import bucket_address, open_s3_store, open_sdk
from sluice_store.s3.settings import S3Settings, parse_s3_url
from sluice_store.s3.signing import sign

CONCURRENCY: Final = 16
ROUNDS: Final = 11
SIZES: Final = {"1 KiB": (1024, 600), "64 KiB": (65_536, 400), "1 MiB": (2**20, 64)}
KEY: Final = "sluice-benchmark"
CPU_RATIO_MAX: Final = 0.35
RATE_RATIO_MIN: Final = 0.9


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Run versitygw in a separate process."""
    data, versions = folder / "data", folder / "versions"
    data.mkdir()
    versions.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    keys = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": KEY}
    process = subprocess.Popen(
        [*_binary(), "--port", f"127.0.0.1:{port}", *_posix(versions, data)],
        env={**os.environ, **keys},
        stdout=subprocess.DEVNULL,
    )
    try:
        while not _listens(port):
            if process.poll() is not None:
                raise RuntimeError("the server exited during its start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _posix(versions: Path, data: Path) -> tuple[str, ...]:
    return "posix", "--versioning-dir", str(versions), str(data)


def _binary() -> tuple[str, ...]:
    subprocess.run(["deploy/versitygw.sh"], check=True)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return str(cache / "sluice" / "bin" / "versitygw"), "--quiet", "--keep-alive"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The bodies of one run, each with a unique key."""

    body: bytes
    digest: Digest
    keys: tuple[ObjectKey, ...]


def make_load(size_bytes: int, count: int) -> Load:
    """Create one body and unused content-addressed keys; hashing is not measured."""
    body = os.urandom(size_bytes)
    keys = tuple(blob_key(digest_of(os.urandom(16))) for _ in range(count))
    return Load(body=body, digest=digest_of(body), keys=keys)


async def spread(work: Callable[[int], Awaitable[None]], turns: range) -> None:
    """Run `work` for every turn with fixed concurrency."""
    numbers = iter(turns)

    async def one() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(one() for _ in range(CONCURRENCY)))


class StoreBench:
    """The three subjects on one server, each with open connections."""

    def __init__(self, runner: asyncio.Runner, settings: S3Settings) -> None:
        self._runner = runner
        self._settings = settings

    def run_sluice(self, load: Load) -> Sample:
        """Measure the adapter's create."""

        async def all_of_them() -> Sample:
            async with open_s3_store(self._settings) as store:

                async def put(number: int) -> None:
                    key = load.keys[number]
                    outcome = await store.create(key, load.body, sha256=load.digest)
                    if not isinstance(outcome, Applied):
                        raise TypeError(outcome)

                return await _measure(put, load)

        return self._runner.run(all_of_them())

    def run_sdk(self, load: Load) -> Sample:
        """Measure the SDK's put_object, with the same condition and checksum."""

        async def all_of_them() -> Sample:
            async with open_sdk(self._settings) as sdk:
                fixed: dict[str, Any] = {
                    "Bucket": self._settings.bucket,
                    "Body": load.body,
                    "IfNoneMatch": "*",
                    "ChecksumSHA256": encode_checksum(load.digest),
                }

                async def put(number: int) -> None:
                    await sdk.client.put_object(Key=load.keys[number], **fixed)

                return await _measure(put, load)

        return self._runner.run(all_of_them())

    def run_bare(self, load: Load) -> Sample:
        """Measure an aiohttp loop that only sends presigned requests."""

        async def all_of_them() -> Sample:
            async with open_sdk(self._settings) as sdk, aiohttp.ClientSession() as session:
                address, ready = bucket_address(resolve_settings(self._settings)), []
                for key in load.keys:
                    headers = {
                        "x-amz-checksum-sha256": encode_checksum(load.digest),
                        "If-None-Match": "*",
                    }
                    request = S3Request(method="PUT", key=key, headers=headers, sha256=load.digest)
                    url = address.origin + address.target_of(key)
                    used = await sdk.credentials.get_frozen_credentials()
                    signed = sign(request, url, address, used)
                    ready.append((URL(url, encoded=True), signed))

                async def put(number: int) -> None:
                    url, headers = ready[number]
                    async with session.put(url, headers=headers, data=load.body) as answer:
                        await answer.read()
                        answer.raise_for_status()

                return await _measure(put, load)

        return self._runner.run(all_of_them())


async def _measure(put: Callable[[int], Awaitable[None]], load: Load) -> Sample:
    """Open the connections with the first keys, then measure the others."""
    await spread(put, range(CONCURRENCY))
    stop = timed_async(asyncio.get_running_loop())
    await spread(put, range(CONCURRENCY, len(load.keys)))
    return stop(len(load.keys) - CONCURRENCY)


def timed_async(loop: asyncio.AbstractEventLoop) -> Callable[[int], Sample]:
    """Start the clocks and return a function that stops them."""
    wall, cpu = loop.time(), os.times()

    def stop(units: int) -> Sample:
        now = os.times()
        spent = now.user + now.system - cpu.user - cpu.system
        return Sample(wall_s=loop.time() - wall, cpu_s=spent, units=units)

    return stop


def figures(size: str, samples: dict[str, list[Sample]]) -> tuple[list[str], bool]:
    """Return the lines of one body size, and whether both targets are met."""
    cpu = ratio(samples["sluice"], samples["sdk"], lambda one: one.cpu_per_unit)
    rate = ratio(samples["sluice"], samples["bare"], lambda one: one.per_second)
    cpu_line = (
        f"{size}: CPU per PUT {_ms(samples['sluice'])} against the SDK's {_ms(samples['sdk'])} ms,"
        f" ratio {cpu[1]:.2f} ({cpu[0]:.2f} to {cpu[2]:.2f}), at most {CPU_RATIO_MAX}"
    )
    rate_line = (
        f"{size}: PUT/s {_rate(samples['sluice'])} against {_rate(samples['bare'])} bare,"
        f" ratio {rate[1]:.2f} ({rate[0]:.2f} to {rate[2]:.2f}), at least {RATE_RATIO_MIN}"
    )
    return [cpu_line, rate_line], cpu[1] <= CPU_RATIO_MAX and rate[1] >= RATE_RATIO_MIN


def _ms(samples: list[Sample]) -> str:
    return f"{sorted(one.cpu_per_unit for one in samples)[len(samples) // 2] * 1000:.2f}"


def _rate(samples: list[Sample]) -> str:
    return f"{sorted(one.per_second for one in samples)[len(samples) // 2]:.0f}"


async def make_bucket(settings: S3Settings) -> None:
    """Create the bucket."""
    async with open_sdk(settings) as sdk:
        await sdk.client.create_bucket(Bucket=settings.bucket)


def main() -> int:
    """Run the benchmark; return 1 if a target is missed."""
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY}
    lines: list[str] = []
    kept: dict[str, list[Sample]] = {}
    met = True
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        server(Path(folder)) as endpoint,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        settings = parse_s3_url(f"s3://bucket?endpoint={endpoint}&region=us-east-1")
        runner.run(make_bucket(settings))
        bench = StoreBench(runner, settings)
        for size, (size_bytes, count) in SIZES.items():
            samples = measure(bench, size_bytes, count)
            more, good = figures(size, samples)
            lines += [*more, f"{size}: {describe_requests(RequestCounts(puts=1), size_bytes)}"]
            met = met and good
            kept.update({f"{size} {name}": taken for name, taken in samples.items()})
    report("store", [*lines, f"concurrency {CONCURRENCY}, {ROUNDS} rounds, versitygw 1.8.0"], kept)
    return 0 if met else 1


def measure(bench: StoreBench, size_bytes: int, count: int) -> dict[str, list[Sample]]:
    """Run the three subjects in turn, each time on unused keys."""

    def fresh() -> Load:
        return make_load(size_bytes, count)

    return interleave(
        {
            "sluice": lambda: bench.run_sluice(fresh()),
            "sdk": lambda: bench.run_sdk(fresh()),
            "bare": lambda: bench.run_bare(fresh()),
        },
        rounds=ROUNDS,
    )


if __name__ == "__main__":
    sys.exit(main())
