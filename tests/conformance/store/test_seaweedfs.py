"""The conformance suite over a second real S3 server, SeaweedFS, through two of its S3 APIs."""

import asyncio
from collections.abc import Iterator

import pytest
from support.store_conformance import CHECKS, assert_conforms, assert_doctor
from support.store_seaweedfs import binary, seaweedfs
from support.store_versitygw import CREDENTIALS, Server, make_bucket
from support.store_worker import assert_exact_races

from sluice_protocol.system_clock import SystemIds
from sluice_store import open_store
from sluice_store.conformance import Check
from sluice_store.doctor import DoctorResult, examine

pytestmark = [
    pytest.mark.s3,
    pytest.mark.skipif(not binary().exists(), reason="deploy/seaweedfs.sh was not run"),
]
Servers = tuple[Server, Server]


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as running:
        yield running


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_seaweedfs_conforms(check: Check, servers: Servers) -> None:
    """The server keeps every promise of the port, except for the deviations in the table."""
    url = servers[0].url(check.__name__.replace("_", "-"), "some/prefix")
    await make_bucket(url)
    async with open_store(url) as store:
        await assert_conforms("seaweedfs", check, store, "place/")


def test_seaweedfs_doctor_accepts_two_endpoints(servers: Servers) -> None:
    """Through two S3 APIs over one filer every promise of acceptance and deletion is kept."""

    async def run() -> DoctorResult:
        urls = [one.url("doctor", "pre") for one in servers]
        await make_bucket(urls[0])
        async with open_store(urls[0]) as one, open_store(urls[1]) as other:
            return await examine([one, other], urls, SystemIds())

    result = asyncio.run(run())
    assert_doctor("seaweedfs", result)
    assert result.good


def test_seaweedfs_races_between_processes_are_exact(servers: Servers) -> None:
    """64 creates from 4 processes have one winner, and their increments add up."""
    url = servers[0].url("processes")
    asyncio.run(make_bucket(url))
    assert_exact_races(url)
