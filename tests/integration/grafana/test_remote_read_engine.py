"""A stock Prometheus evaluates PromQL over remote read as over its own copy of the samples.

One Prometheus receives the requests of remote write that sluice has received, among them markers
of the end of a series and NaN with other bits. Another has no samples, and reads those of sluice.
"""

import asyncio
import itertools
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
from support.promql import STEP_MS, STEPS, Questions, written_series
from support.query_lake import DAY0_NS, QueryClient, deployment, sent, served_queries
from support.remote_read import Series, write_request, written_columns
from support.spark_lake import Deployment
from support.spark_local import ingest_locally
from support.store_versitygw import free_port

pytestmark = [pytest.mark.clients]

START_MS = DAY0_NS // 1_000_000
END_MS = START_MS + STEPS * STEP_MS
PROGRAMS = {"debian": DEBIAN / "usr/bin/prometheus", "current": BIN / "prometheus"}
"""Debian's reads samples; a current one, if it was built, streamed chunks."""
SHORT, LONG = 50, 1_000


def parts_of(written: Series) -> Iterator[Series]:
    """Yield the samples in order of time, as a sender does."""
    width_ms = 30 * 60_000
    for start_ms in range(START_MS, END_MS, width_ms):
        part = {
            of: [one for one in samples if start_ms <= one[0] < start_ms + width_ms]
            for of, samples in written.items()
        }
        yield {of: samples for of, samples in part.items() if samples}


@pytest.fixture(scope="module")
def written() -> Series:
    return written_series(START_MS)


@pytest.fixture(scope="module")
def place(written: Series, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """The samples, half of them pending."""
    made = deployment(Path(tmp_path_factory.mktemp("engine")))
    start = 0
    for number, part in enumerate(parts_of(written)):
        columns = written_columns(part, received_ns=DAY0_NS)
        made.deliver([sent(columns, agent="door:prometheus:1", start=start, resource=())])
        start += len(columns)
        if number == 1:
            ingest_locally(made.url)
    return made


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
        pytest.skip(f"{program} is missing: run `deploy/clients/build.sh debian prometheus`")
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


def compare_questions(
    name: str, place: Deployment, written: Series, folder: Path, *, count: int, seed: int
) -> None:
    async def story(both: TwoEngines) -> None:
        filled = 0
        for number, question in enumerate(itertools.islice(Questions(seed), count)):
            at_s = (START_MS + (END_MS - START_MS) * (number % 10 + 1) // 10) // 1000
            if number % 2:
                given = {"start": str(at_s - 1800), "end": str(at_s), "step": "300"}
                own, remote = await both.both("query_range", query=question, **given)
            else:
                own, remote = await both.both("query", query=question, time=str(at_s))
            assert own["status"] == remote["status"], (question, own, remote)
            if own["status"] == "success":
                left, right = own["data"]["result"], remote["data"]["result"]
                assert same(left, right), (question, left, right)
                filled += bool(left)
        assert filled > count // 2

    talk_to_engines(name, place, written, folder, story)


@pytest.mark.parametrize("name", PROGRAMS)
def test_some_questions_have_equal_answers(
    name: str, place: Deployment, written: Series, tmp_path: Path
) -> None:
    compare_questions(name, place, written, tmp_path, count=SHORT, seed=1)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_thousand_questions_have_equal_answers(
    name: str, place: Deployment, written: Series, tmp_path: Path
) -> None:
    compare_questions(name, place, written, tmp_path, count=LONG, seed=2)


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_samples_are_equal(
    name: str, place: Deployment, written: Series, tmp_path: Path
) -> None:
    """Every series with every sample, as the engine reads it for a range selector."""

    async def story(both: TwoEngines) -> None:
        given = {"query": '{__name__=~".+"}[2h]', "time": str(END_MS // 1000)}
        own, remote = await both.both("query", **given)
        one, other = own["data"]["result"], remote["data"]["result"]
        assert len(one) == len(written)
        key = str
        assert sorted(one, key=key) == sorted(other, key=key)

    talk_to_engines(name, place, written, tmp_path, story)
