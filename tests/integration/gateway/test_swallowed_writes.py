"""A proxy before the bucket that responds to writes itself: nothing is accepted."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from support.gateway import (
    Client,
    TestKey,
    bodies_under,
    frame_of,
    gateways,
    identity,
)
from support.local_deployment import run_sluice
from support.outage_fleet import outage_proxy
from support.store_versitygw import CREDENTIALS, binary, versitygw

pytestmark = pytest.mark.skipif(
    not binary().exists(), reason="the S3 server is missing: run `make test-s3`"
)
UPLOADS = 6


@pytest.mark.s3
def test_no_upload_is_accepted_while_a_proxy_answers_the_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`init` fails with the reason, uploads get 503, and each is stored once afterwards."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with versitygw(tmp_path / "server") as server, outage_proxy(server.endpoint) as proxy:
        (tmp_path / "server" / "data" / "bucket").mkdir()
        url = f"s3://bucket/?endpoint={proxy.url}&region=us-east-1"
        proxy.swallows = frozenset({"PUT"})
        failed = run_sluice(tmp_path, "init", "--store", url)
        assert failed.returncode != 0
        assert "the response is not the store's" in failed.stderr
        assert "authority" not in failed.stdout
        proxy.swallows = frozenset()
        assert run_sluice(tmp_path, "init", "--store", url).returncode == 0
        assert "good for" in run_sluice(tmp_path, "doctor", "--store", url).stdout
        agents = TestKey("agents", ("host-1",))
        with gateways(tmp_path / "gw", agents, store_url=url) as [gateway]:

            async def upload(first: int) -> list[tuple[int, object]]:
                async with aiohttp.ClientSession() as session:
                    client = Client(session, gateway.port, agents)
                    frames = [frame_of(identity(seq=first + at)) for at in range(UPLOADS)]
                    found = await asyncio.gather(*(client.upload(frame) for frame in frames))
                    return [(one.status, one.body.get("duplicate")) for one in found]

            async def read_readiness() -> tuple[int, str]:
                async with aiohttp.ClientSession() as session:
                    return await Client(session, gateway.port, agents).get("/readyz")

            new = [(200, False)] * UPLOADS
            assert asyncio.run(upload(0)) == new
            proxy.swallows = frozenset({"PUT"})
            assert asyncio.run(upload(UPLOADS)) == [(503, None)] * UPLOADS
            assert asyncio.run(read_readiness())[0] == 503
            assert "it has no ETag" in gateway.log.read_text()
            proxy.swallows = frozenset()
            assert asyncio.run(upload(UPLOADS)) == new, "none of them was stored before"
        assert len(asyncio.run(bodies_under(url, "accepted/v1/"))) == 2 * UPLOADS
