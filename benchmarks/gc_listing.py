"""Benchmark `gc-listing`: the audit's listing compared with the same number of bare LIST streams.

Both list the same key ranges concurrently on the S3 server of the tests, over the same port. The
audit also checks the order of keys and builds the Merkle tree of its certificate.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from benchmarks.measure import Sample, interleave, ratio, report, timed
from sluice_gc.key_ranges import DigestShard, RangeListing, split_shards
from sluice_protocol.keys import RAW_BLOBS, blob_key, digest_of
from sluice_store import open_store
from sluice_store.port import ObjectStore

OBJECTS: Final = int(os.environ.get("SLUICE_BENCH_GC_OBJECTS", "10000"))
STREAMS: Final = 4
BUCKET: Final = "listing"
KEYS: Final = {"ROOT_ACCESS_KEY": "bench-access", "ROOT_SECRET_KEY": "bench-secret"}

Stream = Callable[[ObjectStore, DigestShard], Awaitable[int]]


def main() -> None:
    """Fill a bucket, list it both ways in turn, and print the ratio."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-listing-"))
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench-access", "AWS_SECRET_ACCESS_KEY": "bench-secret"}
    port = _free_port()
    server = _start(folder, port)
    try:
        url = f"s3://{BUCKET}/?endpoint=http://127.0.0.1:{port}&region=us-east-1"
        _measure(url)
    finally:
        server.terminate()
        server.wait(timeout=10)
        shutil.rmtree(folder)


def _measure(url: str) -> None:
    subjects: dict[str, Callable[[], Sample]] = {
        "audit": lambda: timed(lambda: asyncio.run(_list(url, _audited))),
        "bare": lambda: timed(lambda: asyncio.run(_list(url, _bare))),
    }
    samples = interleave(subjects, rounds=3)
    low, middle, high = ratio(samples["audit"], samples["bare"], lambda one: one.per_second)
    rate = sorted(one.per_second for one in samples["audit"])[1]
    line = (
        f"{OBJECTS:,} objects, {STREAMS} streams: {rate:,.0f} objects/s,"
        f" {middle:.2f} x bare LIST ({low:.2f} to {high:.2f}; gate 0.9)"
    )
    report("gc_listing", [line, "requests: 1 LIST per 1 000 objects, 0.005 USD per 1 000"], samples)


async def _list(url: str, stream: Stream) -> float:
    async with open_store(url) as store:
        shards = split_shards(STREAMS)
        found = sum(await asyncio.gather(*(stream(store, shard) for shard in shards)))
    if found != OBJECTS:
        raise SystemExit(f"{found} objects listed instead of {OBJECTS}")
    return float(found)


async def _audited(store: ObjectStore, shard: DigestShard) -> int:
    listing = RangeListing(store, RAW_BLOBS, *shard.bounds(RAW_BLOBS))
    return sum([len(page) async for page in listing.objects()])


async def _bare(store: ObjectStore, shard: DigestShard) -> int:
    after, end = shard.bounds(RAW_BLOBS)
    pages = store.list(RAW_BLOBS, start_after=after, end_at=end)
    return sum([len(page.objects) async for page in pages])


def _start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Write the objects directly to the server's directory, which is faster than uploads."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    binary = cache / "sluice" / "bin" / "versitygw"
    if not binary.exists():
        raise SystemExit("versitygw is missing: run `make test-s3` once to build it")
    for number in range(OBJECTS):
        path = folder / "data" / BUCKET / blob_key(digest_of(number.to_bytes(8, "big")))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    server = subprocess.Popen(
        [binary, "--quiet", "--port", f"127.0.0.1:{port}", "posix", folder / "data"],
        env={**os.environ, **KEYS},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(400):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server
        time.sleep(0.025)
    raise SystemExit("the server does not accept connections")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
