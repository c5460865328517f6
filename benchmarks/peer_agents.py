"""The agent and syslog-ng ship the same log file: a part of the benchmark `peers`.

The agent writes a durable spool, signs and sends batches, and waits for each acknowledgement.
syslog-ng sends lines over TCP, which has no acknowledgement, from memory or from its reliable disk
buffer. Both send to a process that discards what it receives and whose processor time does not
count. The agent runs in this process, so that the start of an interpreter is not counted.
"""

import itertools
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.accept_servers import cpu_of
from benchmarks.agent import FILE_BYTES, MIB, discarding_server, ship, write_log
from benchmarks.measure import timed
from benchmarks.peer_figures import AGENT, FILE_SIZE, SYSLOG_DISK, SYSLOG_MEMORY, PeerSample
from benchmarks.peer_servers import CACHE, PeerUnavailable, built
from sluice_agent.sending.signing_key import make_key

SHIPPED_S_MAX: Final = 120
DEBIAN: Final = CACHE / "debian"
_LIBRARIES: Final = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/syslog-ng")
_CONFIG: Final = """@version: 3.38
source s {{ file("{log}" read-old-records(yes) flags(no-parse) log-fetch-limit(1000)
  log-iw-size(10000)); }};
destination d {{ network("127.0.0.1" port({port}) transport("tcp") log-fifo-size(20000)
  {buffer}); }};
log {{ source(s); destination(d); flags(flow-control); }};
"""
_BUFFER: Final = 'disk-buffer(reliable(yes) disk-buf-size(268435456) dir("{folder}"))'


@dataclass
class LineSink:
    """A TCP server that counts line feeds and discards everything.

    At `wanted` lines, `complete` is set.
    """

    wanted: int
    listening: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    complete: threading.Event = field(default_factory=threading.Event)

    @property
    def port(self) -> int:
        """The port of the server."""
        return int(self.listening.getsockname()[1])

    def run(self) -> None:
        """Read the first connection until it ends."""
        connection, _ = self.listening.accept()
        lines, buffer = 0, bytearray(1 << 18)
        with connection:
            while count := connection.recv_into(buffer):
                lines += buffer.count(b"\n", 0, count)
                if lines >= self.wanted:
                    self.complete.set()


@contextmanager
def _sink(wanted: int) -> Iterator[LineSink]:
    sink = LineSink(wanted)
    thread = threading.Thread(target=sink.run, daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        sink.listening.close()


def ship_by_syslog(folder: Path, log: Path, records: int, buffer: str) -> PeerSample:
    """Run syslog-ng until all lines have arrived."""
    place = Path(tempfile.mkdtemp(dir=folder))
    config = place / "syslog-ng.conf"
    environment = {"LD_LIBRARY_PATH": ":".join(str(DEBIAN / one) for one in _LIBRARIES)}
    with _sink(records) as sink, (place / "log").open("wb") as out:
        config.write_text(
            _CONFIG.format(log=log, port=sink.port, buffer=buffer.format(folder=place))
        )
        command: list[str | Path] = [
            *(DEBIAN / "usr/sbin/syslog-ng", "--foreground", "--stderr", "--no-caps", "-f", config),
            *("--module-path", DEBIAN / "usr/lib/syslog-ng/3.38", "-R", place / "persist"),
            *("-p", place / "pid", "-c", place / "control"),
        ]
        started = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        try:
            if not sink.complete.wait(SHIPPED_S_MAX):
                last = (place / "log").read_text(errors="replace").splitlines()[-1:]
                raise PeerUnavailable(f"syslog-ng did not send all lines: {''.join(last)}")
            wall_s = time.perf_counter() - started
            cpu_s = cpu_of(process.pid)
        finally:
            process.kill()
            process.wait()
    shutil.rmtree(place)
    return _sample(wall_s, cpu_s)


def _sample(wall_s: float, cpu_s: float) -> PeerSample:
    return PeerSample(
        wall_s=wall_s, cpu_s=cpu_s, store_cpu_s=0, units=FILE_BYTES // MIB, latencies_us=()
    )


def measure_agents(
    folder: Path, rounds: int
) -> tuple[dict[tuple[str, str], list[PeerSample]], list[str]]:
    """Ship the file with every program in turn; return the samples and notes for the report."""
    log, key = folder / "app.log", folder / "agent.pem"
    records = write_log(log)
    make_key(key)
    found: dict[tuple[str, str], list[PeerSample]] = {}
    notes: list[str] = []
    failed: dict[str, str] = {}
    with discarding_server() as url:

        def by_agent() -> PeerSample:
            sample = timed(lambda: ship(folder, log, url, records=records, key=key))
            return _sample(sample.wall_s, sample.cpu_s)

        subjects: dict[str, Callable[[], PeerSample]] = {AGENT: by_agent}
        try:
            built("debian")
            for name, buffer in ((SYSLOG_MEMORY, ""), (SYSLOG_DISK, _BUFFER)):
                subjects[name] = partial(ship_by_syslog, folder, log, records, buffer)
        except PeerUnavailable as error:
            notes.append(f"syslog-ng: skipped, {error}")
        for number, (name, run) in itertools.product(range(rounds + 1), subjects.items()):
            if name in failed:
                continue
            try:
                sample = run()
            except PeerUnavailable as error:
                failed[name] = str(error)
                continue
            if number:
                found.setdefault((FILE_SIZE, name), []).append(sample)
    notes += [f"{name}: left out, {why}" for name, why in failed.items()]
    log.unlink()
    return {key: one for key, one in found.items() if key[1] not in failed}, notes
