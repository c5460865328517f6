"""Identity of the S3 client and its server: verified TLS, renewed credentials."""

import asyncio
import ssl
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.memory_bucket.server import serve_memory
from support.policies_server import certificate
from support.store_versitygw import ACCESS, CREDENTIALS, SECRET

from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.outcomes import Applied, Found
from sluice_protocol.units import ObjectKey
from sluice_store.conformance import collect_keys
from sluice_store.s3.sdk import open_s3_store
from sluice_store.s3.settings import parse_s3_url

KEY = ObjectKey("some/key")

PROCESS = """
import datetime, json, pathlib, sys
count = pathlib.Path(sys.argv[1])
number = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(number))
soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=5)
print(json.dumps({"Version": 1, "AccessKeyId": f"KEY{number}", "SecretAccessKey": "secret",
                  "SessionToken": f"token{number}", "Expiration": soon.isoformat()}))
"""


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("credentials")
async def test_tls_is_verified(tmp_path: Path) -> None:
    """A server with an unknown certificate authority is refused on both paths, unless in
    `ca_bundle`.
    """
    path = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)

    async with serve_memory({ACCESS: SECRET}, tls=context) as server:
        server.make_bucket("bucket")
        url = f"s3://bucket?endpoint={server.endpoint}&region=us-east-1"
        async with open_s3_store(parse_s3_url(url)) as stranger:
            with pytest.raises(StoreUnavailable, match="certificate"):
                await stranger.create(KEY, b"x")
            with pytest.raises(StoreUnavailable):
                await collect_keys(stranger, "")
        assert server.seen == []
        trusting = replace(parse_s3_url(url), ca_bundle=str(path))
        async with open_s3_store(trusting) as store:
            assert isinstance(await store.create(KEY, b"x"), Applied)
            assert len(await collect_keys(store, "")) == 1


def test_credentials_renew_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that are about to expire are renewed, and later requests are signed with them."""
    script, config = tmp_path / "process.py", tmp_path / "config"
    script.write_text(PROCESS)
    command = f"{sys.executable} {script} {tmp_path / 'count'}"
    config.write_text(f"[default]\ncredential_process = {command}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)

    async def run() -> list[str]:
        secrets = {f"KEY{number}": "secret" for number in range(1, 20)}
        async with serve_memory(secrets) as server:
            server.make_bucket("bucket")
            url = f"s3://bucket?endpoint={server.endpoint}&region=us-east-1"
            async with open_s3_store(parse_s3_url(url)) as store:
                assert isinstance(await store.create(KEY, b"x"), Applied)
                assert isinstance(await store.get(KEY), Found)
            return [
                f"{headers['Authorization'].split('Credential=')[1].split('/')[0]}"
                f" {headers['X-Amz-Security-Token']}"
                for headers in server.headers
            ]

    signed = asyncio.run(run())
    assert len(set(signed)) == 2, signed
    assert all(one.replace("KEY", "token", 1).split()[0] == one.split()[1] for one in signed)
