"""Benchmark `peers`: durable batches per processor second, next to what people use instead.

Every server receives the same log lines in batches of 1 KiB, 64 KiB and 1 MiB from 16 clients that
wait for each acknowledgement. It acknowledges only what is on disk or in the object store. All
servers run at the same time and are measured in turn in every round. Processor time is that of the
server's processes until half a second after the last acknowledgement; that of the object store is
shown separately, and that of clients is not counted. A server that cannot be built or started is
left out, and the reason is printed.

With `--fresh`, all servers are started again for each size of each round. Each receives the same
number of batches, the first after its start: compilers of a JVM have not run yet, and caches are
empty.

    make bench-peers                                    # all; at most 8 minutes
    make bench-peers FRESH=1                            # the first batches after a start
    python -m benchmarks.peers --sizes "1 KiB" --rounds 1 --only Kafka "sluice, directory"
    python -m benchmarks.peers --agents                 # only the agent and syslog-ng

The files of all servers are on the file system of `SLUICE_BENCH_DIR`, or of the temporary folder.
"""

import argparse
import asyncio
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.support.store_versitygw import CREDENTIALS, make_bucket, versitygw

from benchmarks.measure import Sample, file_system_of, report
from benchmarks.peer_agents import measure_agents
from benchmarks.peer_figures import (
    BARS,
    BEGIN,
    BEGIN_FRESH,
    BUCKET,
    COLLECTOR,
    DIRECTORY,
    DIRECTORY_LISTS,
    KAFKA,
    KAFKA_LISTS,
    NATS,
    SIZES,
    SMALL,
    PeerSample,
    judge,
    tables,
    updated_page,
)
from benchmarks.peer_requests import (
    PreparedRequest,
    list_requests,
    message_requests,
    otlp_requests,
    upload_requests,
    write_requests,
)
from benchmarks.peer_servers import (
    BUCKETS,
    CACHE,
    PeerServer,
    PeerUnavailable,
    built,
    servers,
)

PAGE: Final = Path("docs/comparison.md")
CLIENTS: Final = 16
LIST_FRAMES: Final = 64
SAMPLE_S: Final = 2.0
SETTLE_S: Final = 0.5
WARM_S: Final = 8.0
"""Before the first round: compilers of a JVM run in the first seconds of a load."""
UPLOADS: Final = {SMALL: 1_200, "64 KiB": 600, "1 MiB": 80}
"""Uploads to a gateway in a sample, each with an identity that was not used before.

A fresh server of any kind receives as many.
"""
MESSAGES: Final = {SMALL: 6_000, "64 KiB": 2_000, "1 MiB": 160}
"""Requests to others in a sample, repeated from a few."""
REPEATED: Final = 64
IDLE_S: Final = 6.0
"""After the start of fresh servers, so that what they do then does not count."""
FRESH_S_MAX: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one subject receives in a sample.

    A client sends `group` requests together, as one batch of a producer, with `frames` batches in
    each.
    """

    server: str
    group: int = 1
    frames: int = 1
    sizes: tuple[str, ...] = tuple(SIZES)


LOADS: Final = {
    DIRECTORY: Load(server=DIRECTORY),
    KAFKA: Load(server=KAFKA),
    NATS: Load(server=NATS),
    DIRECTORY_LISTS: Load(server=DIRECTORY, frames=LIST_FRAMES, sizes=(SMALL,)),
    KAFKA_LISTS: Load(server=KAFKA, group=LIST_FRAMES, sizes=(SMALL,)),
    BUCKET: Load(server=BUCKET),
    COLLECTOR: Load(server=COLLECTOR),
}


def prepared(
    load: Load, size: str, port: int, *, fresh: bool
) -> tuple[Iterator[PreparedRequest], int]:
    """Return the requests of one sample, and how many are sent; fewer requests are repeated."""
    size_bytes, count = SIZES[size], UPLOADS[size]
    if load.frames > 1:
        count = 3 * count // load.frames
        return itertools.islice(list_requests(size_bytes, load.frames, port), count), count
    if load.server in {DIRECTORY, BUCKET}:
        return itertools.islice(upload_requests(size_bytes, port), count), count
    made = otlp_requests(size_bytes) if load.server == COLLECTOR else message_requests(size_bytes)
    if fresh:
        return itertools.islice(made, REPEATED), count * (3 if load.group > 1 else 1)
    return itertools.islice(made, REPEATED), MESSAGES[size] * (4 if load.group > 1 else 1)


def measure(
    server: PeerServer, load: Load, requests: Path, count: int, seconds: float
) -> PeerSample:
    """Send the requests of a file and return the sample."""
    command = [
        *(CACHE / "bin" / "peerload", "--kind", server.kind),
        *("--address", f"127.0.0.1:{server.port}", "--clients", str(CLIENTS)),
        *("--requests", str(count), "--group", str(load.group), "--seconds", str(seconds)),
    ]
    with subprocess.Popen(
        [*command, requests], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError(command)
        if process.stdout.readline() != "ready\n":
            raise PeerUnavailable("the clients cannot connect")
        before = server.cpu_s()
        process.stdin.write("\n")
        process.stdin.flush()
        line = process.stdout.readline()
        time.sleep(SETTLE_S)
        after = server.cpu_s()
    if not line:
        raise PeerUnavailable("a request failed")
    found = json.loads(line)
    return PeerSample(
        wall_s=found["wall_s"],
        cpu_s=after[0] - before[0],
        store_cpu_s=after[1] - before[1],
        units=found["sent"] * load.frames,
        latencies_us=tuple(found["latencies_us"]),
    )


def sample(
    folder: Path,
    name: str,
    server: PeerServer,
    size: str,
    *,
    seconds: float = SAMPLE_S,
    fresh: bool = False,
) -> PeerSample:
    """Prepare the requests of one subject and measure it."""
    load, path = LOADS[name], folder / "requests"
    requests, count = prepared(load, size, server.port, fresh=fresh)
    write_requests(path, requests)
    os.sync()  # else the next sync of a server also writes what the servers before have left
    try:
        return measure(server, load, path, count, FRESH_S_MAX if fresh else seconds)
    finally:
        path.unlink()


def started(
    stack: ExitStack, folder: Path, wanted: argparse.Namespace
) -> tuple[dict[str, PeerServer], dict[str, str]]:
    """Start every wanted server; return them, and why others do not run."""
    running: dict[str, PeerServer] = {}
    skipped: dict[str, str] = {}
    built("versitygw")
    store = stack.enter_context(versitygw(folder / "store"))
    for bucket in BUCKETS:
        asyncio.run(make_bucket(store.url(bucket), versioning=None))
    for name, opened in servers(folder, store, wanted.workers, fresh=wanted.fresh).items():
        if wanted.only and name not in wanted.only:
            continue
        try:
            running[name] = stack.enter_context(opened)
        except PeerUnavailable as error:
            skipped[name] = str(error)
            print(f"skipped {name}: {error}", file=sys.stderr)
    return running, skipped


@dataclass(slots=True)
class Rounds:
    """What the rounds have shown so far."""

    found: dict[tuple[str, str], list[PeerSample]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    fresh: bool = False

    def measure(
        self, folder: Path, running: dict[str, PeerServer], sizes: list[str], *, keep: bool = True
    ) -> None:
        """Measure every subject with every size once, in turn."""
        for size, (name, load) in itertools.product(sizes, LOADS.items()):
            server = running.get(load.server)
            if server is not None and load.server not in self.failed and size in load.sizes:
                one = self.try_sample(folder, name, server, size)
                if keep and one is not None:
                    self.found.setdefault((size, name), []).append(one)

    def try_sample(
        self, folder: Path, name: str, server: PeerServer, size: str, seconds: float = SAMPLE_S
    ) -> PeerSample | None:
        """Measure one subject, or record why its server is left out."""
        try:
            return sample(folder, name, server, size, seconds=seconds, fresh=self.fresh)
        except PeerUnavailable as error:
            self.failed[LOADS[name].server] = f"{error}, batch={size}"
            print(f"left out {LOADS[name].server}: {error}, batch={size}", file=sys.stderr)
            return None

    def complete(self) -> dict[tuple[str, str], list[PeerSample]]:
        """Return the samples of the servers without a failed request."""
        return {
            key: one for key, one in self.found.items() if LOADS[key[1]].server not in self.failed
        }


def run_servers(
    folder: Path, wanted: argparse.Namespace
) -> tuple[dict[tuple[str, str], list[PeerSample]], list[str]]:
    """Measure the wanted servers; return samples, and notes on versions and failures."""
    rounds = Rounds(fresh=wanted.fresh)
    built("peerload")
    if wanted.fresh:
        for _, size in itertools.product(range(wanted.rounds), wanted.sizes):
            with tempfile.TemporaryDirectory(dir=folder) as made, ExitStack() as stack:
                running, skipped = started(stack, Path(made), wanted)
                rounds.failed |= skipped
                time.sleep(IDLE_S)
                rounds.measure(folder, running, [size])
    else:
        with ExitStack() as stack:
            running, skipped = started(stack, folder, wanted)
            rounds.failed |= skipped
            if KAFKA in running:
                rounds.try_sample(folder, KAFKA, running[KAFKA], SMALL, WARM_S)
            for number in range(wanted.rounds + 1):
                rounds.measure(folder, running, wanted.sizes, keep=number > 0)
    notes = [f"{name}: {one.version}" for name, one in running.items()]
    return rounds.complete(), notes + [
        f"{name}: skipped, {why}" for name, why in rounds.failed.items()
    ]


def _read_words(words: list[str]) -> argparse.Namespace:
    """Return the options of a command line; exit if it is wrong."""
    parser = argparse.ArgumentParser(prog="benchmarks.peers")
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1, help="processes of each gateway")
    names = {load.server for load in LOADS.values()}
    parser.add_argument("--only", nargs="*", default=[], choices=sorted(names), metavar="SERVER")
    parser.add_argument("--write", action="store_true", help=f"record the run in {PAGE}")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--agents", action="store_true", help="only the agent and syslog-ng")
    one.add_argument("--fresh", action="store_true", help="only the first batches after a start")
    wanted = parser.parse_args(words)
    if wanted.rounds < 1:
        parser.error("--rounds must be at least 1")
    if wanted.write and (wanted.agents or wanted.only or wanted.sizes != list(SIZES)):
        parser.error("--write records a whole run: leave out --agents, --only and --sizes")
    return wanted


def main(words: list[str]) -> int:
    """Run the benchmark; return 1 if a bar is missed."""
    wanted = _read_words(words)
    os.environ.update(CREDENTIALS | {"AWS_EC2_METADATA_DISABLED": "true"})
    began = datetime.now(UTC)
    found: dict[tuple[str, str], list[PeerSample]] = {}
    notes: list[str] = []
    base = os.environ.get("SLUICE_BENCH_DIR")
    with tempfile.TemporaryDirectory(prefix="peers-", dir=base) as made:
        folder = Path(made)
        files = file_system_of(folder)
        if not wanted.agents:
            found, notes = run_servers(folder, wanted)
        if not wanted.fresh and (wanted.agents or not wanted.only):
            agents, more = measure_agents(folder, wanted.rounds)
            found |= agents
            notes += more
    verdicts = [one for one in judge(BARS, found) if one.ratios or not wanted.fresh]
    machine = f"{platform.machine()} with {os.cpu_count()} cores"
    run = (
        f"{CLIENTS} clients, {wanted.rounds} rounds, gateways with {wanted.workers} worker(s),"
        f" files on {files}"
    )
    if wanted.fresh:
        run += ", all started again for each size of each round"
    lines = [
        f"Run on {began:%Y-%m-%d}, {machine}: {run}.",
        "",
        *(f"- {note}" for note in notes),
        "",
        *tables(found, verdicts),
    ]
    kept = {
        f"{size} {name}": [
            Sample(wall_s=one.wall_s, cpu_s=one.cpu_s, units=one.units) for one in samples
        ]
        for (size, name), samples in found.items()
    }
    report("peers-fresh" if wanted.fresh else "peers", lines, kept)
    if wanted.write:
        begin = BEGIN_FRESH if wanted.fresh else BEGIN
        PAGE.write_text(updated_page(PAGE.read_text(), begin, lines))
    return int(any(verdict.is_missed for verdict in verdicts))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except PeerUnavailable as unavailable:
        sys.exit(f"cannot run the comparison: {unavailable}")
