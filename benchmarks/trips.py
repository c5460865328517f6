"""Count the product files and functions that one operation runs: `python -m benchmarks.trips`.

Each operation runs in the real process of the command, with a profile hook in every thread. A
service is warm: it has served the same request before, and one sending is counted. A command is
counted from its start to its end, with the files that it imports, except those that contain a
docstring only. Named functions and methods are counted, each once; class bodies, comprehensions and
lambdas are not.

    python -m benchmarks.trips              # the table
    python -m benchmarks.trips query        # with the files and functions of one operation
"""

import asyncio
import functools
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.past_orphan import plant_past_orphan

from benchmarks.accept_load import UploadBatch
from benchmarks.accept_servers import environment, free_port, principals, until_live
from sluice_gateway.door_tokens import create_token
from sluice_protocol.prices import DAY_S
from sluice_protocol.system_clock import SystemClock

ROOT: Final = Path(__file__).parent.parent
_QUIET_S: Final = 0.3
"""Time after a response in which its request's background work ends."""
WARM_SENDINGS: Final = 5
COUNTED_SENDINGS: Final = 4
"""What runs in each of them belongs to the sending; a timer of the service runs in some only."""
Trip = dict[str, list[str]]
"""Function names by product file."""


def count_command(folder: Path, words: Sequence[str]) -> Trip:
    """Return the trip of a whole command that is started in a folder."""
    out = folder / "trip.json"
    out.unlink(missing_ok=True)
    _run(out, words, folder, whole=True).communicate()
    return dict(json.loads(out.read_text()))


@contextmanager
def counted_service(folder: Path, words: Sequence[str]) -> Iterator[Callable[..., Trip]]:
    """Run a service; yield a function that counts what its argument makes the service do."""
    out = folder / "trip.json"
    process = _run(out, words, folder, whole=False)

    def once(send: Callable[[], object]) -> Trip:
        out.unlink(missing_ok=True)
        _order(process)
        time.sleep(0.02)
        send()
        time.sleep(_QUIET_S)
        _order(process)
        for _ in range(3_000):
            if out.exists():
                break
            time.sleep(0.01)
        return dict(json.loads(out.read_text()))

    def count(send: Callable[[], object]) -> Trip:
        for _ in range(WARM_SENDINGS):
            send()
        time.sleep(_QUIET_S)
        return functools.reduce(_in_both, (once(send) for _ in range(COUNTED_SENDINGS)))

    try:
        yield count
    finally:
        process.kill()
        process.communicate()


def _in_both(one: Trip, other: Trip) -> Trip:
    shared = {file: {*one[file]} & {*other[file]} for file in one.keys() & other.keys()}
    return {file: sorted(shared[file]) for file in sorted(shared)}


def _run(out: Path, words: Sequence[str], folder: Path, *, whole: bool) -> subprocess.Popen[bytes]:
    paths = {"PYTHONPATH": str(ROOT), "TRIP": "whole" if whole else "service"}
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.trip_hook", str(out), *words],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment() | paths,
    )


def _order(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is None:
        raise RuntimeError
    process.stdin.write(b"\n")
    process.stdin.flush()


def _post(url: str, body: bytes, headers: dict[str, str]) -> bytes:
    request = urllib.request.Request(url, body, headers)  # noqa: S310 - a service of this run
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return bytes(answer.read())


OTLP: Final = {
    "resourceLogs": [
        {
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]},
            "scopeLogs": [{"logRecords": [{"body": {"stringValue": "hello"}}]}],
        }
    ]
}


def trips(folder: Path, *, jobs: bool) -> dict[str, Trip]:
    """Count a signed upload, an OTLP request of one record, and a query over pending batches.

    With `jobs` also one micro-batch on the driver, and the commands that plan and run the deletion
    of one blob, which need Java and some minutes.
    """
    found: dict[str, Trip] = {}
    sluice = [sys.executable, "-m", "sluice_cli"]
    orphan = plant_past_orphan(folder / ".sluice", b"orphan", age_s=8 * DAY_S, clock=SystemClock())
    asyncio.run(orphan)
    subprocess.run([*sluice, "init"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    created = create_token("shop", ["otlp"])
    (folder / "principals.toml").write_text(principals(["bench"]) + created.principal)
    port = free_port()
    words = ["gateway", "--listen", f"127.0.0.1:{port}", "--principals", "principals.toml"]
    with counted_service(folder, [*words, "--doors", "otlp", "--skip-probe"]) as count:
        until_live(port)

        def upload() -> None:
            batch = UploadBatch(1024, port, at_ns=time.time_ns())
            _post(f"http://127.0.0.1:{port}/v1/batches", batch.frame, batch.signed)

        def send() -> None:
            headers = {
                "Content-Type": "application/json",
                "Authorization": f"Bearer {created.token}",
            }
            _post(f"http://127.0.0.1:{port}/v1/logs", json.dumps(OTLP).encode(), headers)

        found["upload"], found["otlp"] = count(upload), count(send)
        found["query"] = count_command(folder, ["query", "-q", "hello"])
        if jobs:
            with running(folder, [*sluice, "reconciler"]):
                found["ingest"] = count_ingest(folder, upload)
    if jobs:
        found["deletion"] = count_deletion(folder, sluice)
    return found


@contextmanager
def running(folder: Path, command: Sequence[str]) -> Iterator[None]:
    """Run a service that is not counted."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=folder, stdout=quiet, stderr=quiet, env=environment())
    try:
        yield
    finally:
        process.kill()
        process.wait()


def count_ingest(folder: Path, upload: Callable[[], None]) -> Trip:
    """Return the trip of the driver of the ingestion for one batch, from trigger to commit."""

    def commits() -> int:
        return sum(1 for _ in folder.glob(".sluice/lake/**/batches/_delta_log/*.json"))

    def ingested() -> None:
        before = commits()
        upload()
        while commits() == before:
            time.sleep(0.05)
        time.sleep(1)  # the acknowledgement

    with counted_service(folder, ["spark", "ingest", "--trigger-s", "1"]) as count:
        return count(ingested)


def count_deletion(folder: Path, sluice: Sequence[str]) -> Trip:
    """Return the trip of `sluice gc plan` and `sluice gc run` over one blob without a manifest."""
    key = ["--key-file", "auditor.pem"]
    subprocess.run([*sluice, "audit", "run", *key], cwd=folder, check=True, capture_output=True)
    trip = count_command(folder, ["gc", "plan", *key])
    for file, names in count_command(folder, ["gc", "run", "--grace-s", "0", *key]).items():
        trip[file] = sorted({*names, *trip.get(file, ())})
    proofs = list(folder.glob(".sluice/gc/**/proof*"))
    if not proofs:
        raise RuntimeError("the blob was not deleted")
    return trip


def main(words: list[str]) -> None:
    """Print the table, and the functions of the operations that are named."""
    with tempfile.TemporaryDirectory() as folder:
        for name, trip in trips(Path(folder), jobs=True).items():
            print(f"{name}: {len(trip)} files, {sum(map(len, trip.values()))} functions")
            if name in words:
                for file, named in trip.items():
                    print(f"  {file}: {', '.join(named)}")


if __name__ == "__main__":
    main(sys.argv[1:])
