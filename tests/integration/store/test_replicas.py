"""Replicas over the S3 client: the commands that refuse them, and rules as servers send them."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aioboto3
import pytest
from support.gateway import TestKey, write_principals
from support.memory_bucket.server import MemoryServer, serve_memory
from support.sluice_process import run_process
from support.store_versitygw import ACCESS, CREDENTIALS, SECRET, Server

from sluice_cli.main import run
from sluice_store import open_store
from sluice_store.port import Versioning
from sluice_store.replication import ReplicationReader, ReplicationRule
from sluice_store.s3.store import S3Store

BOTH_WAYS = (ReplicationRule(target="backup"),)
BACK = (ReplicationRule(target="bucket", prefix="pre/accepted/"),)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@asynccontextmanager
async def serve() -> AsyncIterator[tuple[MemoryServer, str]]:
    async with serve_memory({ACCESS: SECRET}) as server:
        server.make_bucket("bucket", Versioning.ENABLED)
        url = f"s3://bucket/pre?endpoint={server.endpoint}&region=us-east-1"
        assert await asyncio.to_thread(run, ["init", "--store", url]) == 0
        yield server, url


def replicate_all(server: MemoryServer) -> None:
    """Write every object again, as replication would have written it into another bucket."""
    bucket = server.buckets["bucket"]
    for change in list(bucket.changes):
        if change.created and change.version.body is not None:
            bucket.replicate(change.key, change.version.body)


def start_gateway(url: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    principals = write_principals(folder / "principals.toml", TestKey("host", ("host-1",)))
    command = (sys.executable, "-m", "sluice_cli", "gateway", "--store", url)
    options = ("--listen", "127.0.0.1:0", "--principals", str(principals), "--workers", "1")
    environment = {**os.environ, **CREDENTIALS}
    return run_process((*command, *options), text=True, env=environment)


async def test_doctor_and_gateway_refuse_a_replica(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The good result of the doctor was copied with everything else."""

    async with serve() as (server, url):
        assert await asyncio.to_thread(run, ["doctor", "--store", url]) == 0
        replicate_all(server)
        assert await asyncio.to_thread(run, ["doctor", "--store", url, "--dry-run"]) == 1
        assert "BROKEN  not-a-replica (acceptance)" in capsys.readouterr().out
        started = await asyncio.to_thread(start_gateway, url, tmp_path)
        assert started.returncode != 0
        assert "this bucket is a replica of another one" in started.stderr + started.stdout


@pytest.mark.long
async def test_doctor_reports_two_way_replication(capsys: pytest.CaptureFixture[str]) -> None:
    async with serve() as (server, url):
        server.make_bucket("backup", Versioning.ENABLED)
        server.buckets["bucket"].replication["bucket"] = BOTH_WAYS
        assert await asyncio.to_thread(run, ["doctor", "--store", url, "--dry-run"]) == 0
        server.buckets["backup"].replication["backup"] = BACK
        assert await asyncio.to_thread(run, ["doctor", "--store", url, "--dry-run"]) == 1
        assert "backup" in capsys.readouterr().out


def test_rules_are_read_as_a_server_sends_them(moto: Server) -> None:
    """Rules of moto, and none; a bucket that does not exist."""

    async def story(endpoint: str) -> None:
        rule = {
            "Status": "Enabled",
            "Priority": 1,
            "Filter": {"Prefix": "pre/"},
            "DeleteMarkerReplication": {"Status": "Disabled"},
            "Destination": {"Bucket": "arn:aws:s3:::backup"},
        }
        off = rule | {"Status": "Disabled", "Destination": {"Bucket": "arn:aws:s3:::other"}}
        versioned = {"Status": "Enabled"}
        async with aioboto3.Session().client(
            "s3", endpoint_url=endpoint, region_name="us-east-1"
        ) as client:
            for name in ("bucket", "backup", "other"):
                await client.create_bucket(Bucket=name)
                await client.put_bucket_versioning(Bucket=name, VersioningConfiguration=versioned)
            configuration = {"Role": "arn:aws:iam::123456789012:role/r", "Rules": [rule, off]}
            await client.put_bucket_replication(
                Bucket="bucket", ReplicationConfiguration=configuration
            )
        url = f"s3://bucket/pre?endpoint={endpoint}&region=us-east-1"
        async with open_store(url) as store:
            assert isinstance(store, S3Store)
            assert isinstance(store, ReplicationReader)
            assert store.place == ("bucket", "pre/")
            assert await store.read_replication("bucket") == (
                ReplicationRule(target="backup"),  # moto returns no prefix
                ReplicationRule(target="other", enabled=False),
            )
            assert await store.read_replication("backup") == ()
            assert await store.read_replication("missing") is None

    asyncio.run(story(moto.endpoint))
