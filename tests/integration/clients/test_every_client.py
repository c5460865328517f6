"""Each client with its configuration in `docs/send`: gateways die, the store is unreachable.

Trials of clients: all of them send records while gateways die and the store is unreachable.

The clients share the gateways, so that one outage is enough for all. Each has a balancer of its
own, which loses responses of this client only.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Timer
from typing import Literal, get_args

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.client_programs import (
    FOLLOWERS,
    LIBRARY_CLIENTS,
    METRIC_CLIENTS,
    NUMBER,
    ClientCase,
    Sending,
)
from support.door_fleet import Balancer, Fleet, GatewayStore, balancing, fleet
from support.local_deployment import clean_environment
from support.store_versitygw import CREDENTIALS, make_bucket, versitygw

from sluice_doors.table import DoorName
from sluice_lake.locations import lake_location
from sluice_lake.tables import LOGS, METRICS
from sluice_protocol.frame import decode_head, raw_columns
from sluice_protocol.keys import ACCEPTED
from sluice_protocol.manifests import decode_accepted
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_store.url import open_store

OUTAGE_S = 20.0
SETTLED_S = 10.0
"""Requests that are still repeated are sent by then."""
STALLED_S = 60.0
"""A client that sends nothing for so long after the last fault has lost its records."""
MEANWHILE_S = 1.0
"""Records that arrive this long after a fault join the batches of clients that cut them again."""
LOST = 2
"""curl repeats a request whose response is lost on a connection that it used before, so the program
sees an error only if the next response is lost too.
"""
RECORDS_MAX = 1_000_000
Fault = Literal["lose", "kill", "outage", "none"]
"""Responses are lost, a gateway is killed, the store is unreachable for 20 s."""


def record_count(faults: int) -> int:
    """Return how many records each client sends; 100 000 is the full size.

    By default each part is a full batch of the client with the largest batches.
    """
    return int(os.environ.get("SLUICE_CLIENT_RECORDS", 500 * faults))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of the records of one client.

    Attributes:
        sent: How many were fed.
        lost: How many of them are not in the lake.
        doubled: How many are there more than once.
        errors: What the client itself reports as lost.
        unused: Responses that could not be lost, because the client sent nothing more.
        searched: Whether `sluice query` finds a record of it.
    """

    sent: int
    lost: int
    doubled: int
    errors: list[str]
    unused: int
    searched: bool


@dataclass
class Trial:
    """One client under test.

    Attributes:
        case: The client.
        first: The number of its first record.
        count: How many records it sends.
        balancer: Between it and the gateways.
        sending: The running client.
    """

    case: ClientCase
    first: int
    count: int
    balancer: Balancer
    sending: Sending

    def part(self, start: float, end: float) -> range:
        """Return the records between two shares of all."""
        return range(self.first + round(self.count * start), self.first + round(self.count * end))


@contextmanager
def faulty_fleet(folder: Path, flags: tuple[str, ...]) -> Iterator[tuple[Fleet, Balancer]]:
    """Start three gateways, and an S3 server that can become unreachable for them."""
    with versitygw(folder / "s3") as server:
        port = int(server.endpoint.rpartition(":")[2])
        read = server.url("lake", "shop")
        asyncio.run(make_bucket(read))
        with balancing([port]) as way:
            written = read.replace(f":{port}", f":{way.port}")
            sluice("init", "--store", read)
            sluice("doctor", "--store", written)
            place = GatewayStore(written, read)
            with fleet(folder, *get_args(DoorName), count=3, flags=flags, store=place) as served:
                yield served, way


@contextmanager
def started(
    cases: Sequence[ClientCase], served: Fleet, folder: Path, count: int
) -> Iterator[list[Trial]]:
    """Run every client until the block ends."""
    assert count <= RECORDS_MAX
    with ExitStack() as stack:
        trials = []
        for index, case in enumerate(cases):
            balancer = stack.enter_context(balancing(served.ports(case.door)))
            place = folder / case.name
            place.mkdir()
            sending = stack.enter_context(case.start(replace(served, balancer=balancer), place))
            trials.append(Trial(case, index * RECORDS_MAX, count, balancer, sending))
        yield trials


@dataclass
class Arrived:
    """What the gateways have accepted so far; each manifest is read once."""

    store_url: str
    numbers: set[int] = field(default_factory=set)
    read: set[str] = field(default_factory=set)

    def update(self) -> int:
        """Read new manifests; return how many different records are accepted."""
        asyncio.run(self._update())
        return len(self.numbers)

    async def _update(self) -> None:
        async with open_store(self.store_url) as store:
            async for page in store.list(ACCEPTED):
                for entry in page.objects:
                    if entry.key in self.read:
                        continue
                    found = await store.get(entry.key)
                    assert isinstance(found, Found)
                    key = ObjectKey(decode_accepted(entry.key, found.body).raw_blob_key)
                    blob = await store.get(key)
                    assert isinstance(blob, Found)
                    for column in raw_columns(decode_head(blob.body), blob.body).values():
                        found_numbers = NUMBER.findall(bytes(column.data))
                        self.numbers.update(int(digits) for digits in found_numbers)
                    self.read.add(entry.key)


def run_trials(
    trials: Sequence[Trial], served: Fleet, way: Balancer, faults: Sequence[Fault]
) -> None:
    """Feed every client in as many parts as there are faults, each with one while it is sent."""
    arrived = Arrived(served.store_url)
    with ThreadPoolExecutor(len(trials)) as pool:

        def feed(start: float, end: float) -> None:
            list(pool.map(lambda trial: trial.sending.feed(trial.part(start, end)), trials))

        for step, fault in enumerate(faults):
            thirds = 3 * len(faults)
            first, second, third, end = ((3 * step + part) / thirds for part in range(4))
            feed(first, second)
            if fault == "lose":
                for trial in trials:
                    trial.balancer.lost_responses = LOST
            if fault == "kill":
                served.kill()
            outage = Timer(OUTAGE_S, lambda: setattr(way, "reachable", True))
            if fault == "outage":
                way.reachable = False
                outage.start()  # programs that wait for a response read no more records
            feed(second, third)
            time.sleep(MEANWHILE_S)
            feed(third, end)
            if fault == "outage":
                outage.join()
            wait_for(arrived, trials, end)
        time.sleep(SETTLED_S)
        list(pool.map(lambda trial: trial.sending.stop(), trials))


def wait_for(arrived: Arrived, trials: Sequence[Trial], end: float) -> None:
    """Wait until this share of the records is accepted, or until nothing more arrives.

    A client that can lose records is not waited for once only so many are missing.
    """

    def complete() -> bool:
        return all(
            len(set(trial.part(0, end)) - arrived.numbers) <= trial.case.lost_max
            for trial in trials
            if trial.case.retries
        )

    before, until = arrived.update(), time.monotonic() + STALLED_S
    while not complete() and time.monotonic() < until:
        time.sleep(1)
        if arrived.update() > before:
            before, until = len(arrived.numbers), time.monotonic() + STALLED_S


def outcomes(trials: Sequence[Trial], store_url: str) -> dict[str, Outcome]:
    """Ingest, and return what became of the records of each client."""
    for _ in range(2):
        sluice("reconciler", "--store", store_url, "--once")
    sluice("spark", "ingest", "--store", store_url, "--once")
    found = found_numbers(store_url)
    return {trial.case.name: _outcome(trial, found, store_url) for trial in trials}


def _outcome(trial: Trial, found: Counter[int], store_url: str) -> Outcome:
    times = [found[number] for number in trial.part(0, 1)]
    return Outcome(
        sent=trial.count,
        lost=times.count(0),
        doubled=sum(each > 1 for each in times),
        errors=trial.sending.errors(),
        unused=trial.balancer.lost_responses,
        searched=_is_searched(trial, found, store_url),
    )


def _is_searched(trial: Trial, found: Counter[int], store_url: str) -> bool:
    """Search for the last record that arrived, as the page of the client describes."""
    number = next((one for one in reversed(trial.part(0, 1)) if found[one]), None)
    if number is None:
        return False
    record = f"record-{number:08d}"
    options = [one.format(record=record) for one in trial.case.search]
    output = sluice("query", "--store", store_url, "--from", "0", "--json", *options)
    return record.encode() in output


def sluice(*arguments: str) -> bytes:
    """Run a command and return what it prints."""
    command = [sys.executable, "-m", "sluice_cli", *arguments]
    env = clean_environment(PYSPARK_PYTHON=sys.executable)
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def found_numbers(store_url: str) -> Counter[int]:
    """Return how often the tables of the lake contain each record."""
    found: Counter[int] = Counter()
    for table in (LOGS.name, METRICS.name):
        location = lake_location(store_url, table)
        delta = DeltaTable(location.uri, storage_options=dict(location.storage_options))
        for batch in delta.to_pyarrow_dataset().to_batches():
            found.update(number for row in _rows(batch) if (number := _number(row)) is not None)
    return found


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    """Yield what may contain the number of a record."""
    columns = [batch.column("attributes").to_pylist()]
    if "body" in batch.schema.names:
        columns.insert(0, batch.column("body").to_pylist())
        return zip(*columns, strict=True)
    # A series that ends has a marker, which is not a record that was fed.
    values = batch.column("value").to_pylist()
    return ((each,) for each, value in zip(columns[0], values, strict=True) if value == 1)


def _number(row: tuple[object, ...]) -> int | None:
    found = NUMBER.search(str(row).encode())
    return int(found[1]) if found else None


CASES = (*FOLLOWERS, *METRIC_CLIENTS, *LIBRARY_CLIENTS)
FORMS: dict[str, tuple[tuple[str, ...], tuple[Fault, ...]]] = {
    "own-batches": ((), ("lose", "kill", "outage", "kill", "none")),
    "combined": (("--door-own-frame-bytes", "262144"), ("lose", "kill", "outage", "kill")),
}
"""The options of the gateways, and the faults: one gateway of three remains."""
pytestmark = [pytest.mark.clients, pytest.mark.timeout(3_600)]


@pytest.fixture(scope="module", params=FORMS.values(), ids=FORMS)
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Outcome]]:
    """Two of three gateways are killed, responses are lost, the store is unreachable for 20 s."""
    folder = tmp_path_factory.mktemp("clients")
    cases = [
        item.callspec.params["case"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.originalname == "test_every_record_arrives"
        and item.callspec.params["results"] == request.param
    ]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**CREDENTIALS, "AWS_REGION": "us-east-1"}.items():
            patch.setenv(name, value)
        flags, faults = request.param
        with faulty_fleet(folder, flags) as (served, way):
            with started(cases, served, folder, record_count(len(faults))) as trials:
                run_trials(trials, served, way, faults)
            yield outcomes(trials, served.store_url)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_record_arrives(case: ClientCase, results: dict[str, Outcome]) -> None:
    """Nothing is lost, and only a client that sends other batches than before doubles records.

    A search finds the records.
    """
    found = results[case.name]
    print(f"client={case.name} {found}")
    assert found.searched
    if case.retries:
        assert found.lost <= case.lost_max
        assert found.errors == []
        assert found.unused == 0
    if case.keeps_identity:
        assert found.doubled == 0
