"""A stock Prometheus that reads the samples of sluice, and one with its own copy of them.

The latter receives the same requests of remote write as sluice.
"""

import asyncio
import json
import math
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cramjam import snappy
from support.client_programs import BIN, DEBIAN
from support.query_lake import QueryClient, sent, served_queries
from support.remote_read import Series, write_request, written_columns
from support.spark_lake import Deployment
from support.spark_local import ingest_locally
from support.store_versitygw import free_port

PROGRAMS = {"debian": DEBIAN / "usr/bin/prometheus", "current": BIN / "prometheus"}
"""Debian's reads samples; a current one, if it was built, streamed chunks."""
PROMTOOL = DEBIAN / "usr/bin/promtool"
PART_MS = 30 * 60_000


def parts_of(written: Series) -> Iterator[Series]:
    """Yield the samples in order of time, as a sender does."""
    times = [at for samples in written.values() for at, _ in samples]
    for start_ms in range(min(times), max(times) + 1, PART_MS):
        part = {
            of: [one for one in samples if start_ms <= one[0] < start_ms + PART_MS]
            for of, samples in written.items()
        }
        yield {of: samples for of, samples in part.items() if samples}


def deliver_written(made: Deployment, written: Series, *, at_ns: int, ingested: int) -> None:
    """Deliver samples as a door does, and ingest the first parts of them."""
    start = 0
    for number, part in enumerate(parts_of(written), 1):
        columns = written_columns(part, received_ns=at_ns)
        agent = "door:prometheus:1"
        made.deliver([sent(columns, agent=agent, start=start, at_ns=at_ns, resource=())])
        start += len(columns)
        if number == ingested:
            ingest_locally(made.url)


@contextmanager
def prometheus(program: Path, folder: Path, config: str) -> Iterator[str]:
    """Run a Prometheus and return its URL when it is ready."""
    folder.mkdir()
    (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [
        *(program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"),
        *("--web.enable-remote-write-receiver", f"--web.listen-address={address}"),
        *("--storage.tsdb.retention.time=100y",),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([str(one) for one in command], stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class TwoEngines:
    """A Prometheus with the samples, and one that reads them from sluice."""

    own: str
    remote: str
    session: aiohttp.ClientSession
    sluice: QueryClient

    async def answer(self, url: str, path: str, **given: str) -> Any:
        async with self.session.post(f"{url}/api/v1/{path}", data=given) as response:
            return json.loads(await response.read())

    async def both(self, path: str, **given: str) -> tuple[Any, Any]:
        own, remote = await asyncio.gather(
            self.answer(self.own, path, **given), self.answer(self.remote, path, **given)
        )
        return own, remote


@asynccontextmanager
async def engines(
    name: str, place: Deployment, written: Series, folder: Path
) -> AsyncIterator[TwoEngines]:
    program = PROGRAMS[name]
    if not program.exists():
        pytest.skip(f"{program} is missing: run `make test-grafana`")
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(served_queries(place))
        reads = f"remote_read:\n  - url: {client.url}/api/v1/read\n    read_recent: true\n"
        remote = stack.enter_context(prometheus(program, folder / "remote", reads))
        own = stack.enter_context(prometheus(program, folder / "own", "{}"))
        for url in (own, remote):
            await ready(client.session, url)
        headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        for part in parts_of(written):
            body = bytes(snappy.compress_raw(write_request(part)))
            url = f"{own}/api/v1/write"
            async with client.session.post(url, data=body, headers=headers) as response:
                assert response.status in (200, 204), await response.text()
        yield TwoEngines(own, remote, client.session, client)


async def ready(session: aiohttp.ClientSession, url: str) -> None:
    until_s = time.monotonic() + 60
    while True:
        try:
            async with session.get(f"{url}/-/ready") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        assert time.monotonic() < until_s, "Prometheus does not start"
        await asyncio.sleep(0.2)


def normal(result: Any) -> dict[str, list[tuple[float, float]]]:
    """Return series by their labels, each with its values by time."""
    if isinstance(result, list) and result and not isinstance(result[0], dict):
        return {"scalar": [(result[0], float(result[1]))]}
    return {
        json.dumps(one["metric"], sort_keys=True): [
            (at, float(value)) for at, value in one.get("values") or [one["value"]]
        ]
        for one in result
    }


def same(left: Any, right: Any) -> bool:
    """Return whether results are equal but for the order in which numbers were added."""
    one, other = normal(left), normal(right)
    return one.keys() == other.keys() and all(
        len(one[key]) == len(other[key])
        and all(
            at == at_other
            and (
                math.isclose(value, found, rel_tol=1e-9, abs_tol=1e-9)
                or (math.isnan(value) and math.isnan(found))
            )
            for (at, value), (at_other, found) in zip(one[key], other[key], strict=True)
        )
        for key in one
    )


def talk_to_engines(
    name: str,
    place: Deployment,
    written: Series,
    folder: Path,
    story: Callable[[TwoEngines], Awaitable[None]],
) -> None:
    async def run() -> None:
        async with engines(name, place, written, folder) as both:
            await story(both)

    asyncio.run(run())
