"""The conformance suite over the fake served over HTTP: the real client, signatures checked."""

import pytest
from support.memory_bucket.server import serve_memory
from support.store_conformance import CHECKS, assert_conforms
from support.store_versitygw import ACCESS, CREDENTIALS, SECRET

from sluice_store import open_store
from sluice_store.conformance import Check


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.daily(6)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_memory_over_http_conforms(check: Check) -> None:
    """The real client and the fake together keep every promise of the port."""
    async with serve_memory({ACCESS: SECRET}) as server:
        url = f"s3://bucket/some/prefix?endpoint={server.endpoint}&region=eu-central-1"
        server.make_bucket("bucket")
        async with open_store(url) as store:
            await assert_conforms("memory over HTTP", check, store, "place/")
