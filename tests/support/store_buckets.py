"""S3, SQS, SNS and IAM for ordinary tests: moto's server, in a thread of the test's process.

Also here: a deployment in a bucket of the real S3 server.

Its deviations from the promises of the port are listed in `support.store_conformance`. It lets two
conditional writers win, loses some of several concurrent deletes of versions of one key, and causes
no fault, so races, kills and faults run on versitygw and on `support.memory_bucket`.
"""

import asyncio
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from moto.server import ThreadedMotoServer
from support.spark_lake import Deployment
from support.store_versitygw import CREDENTIALS, Server, make_bucket, versitygw

from sluice_lake.locations import lake_location


@contextmanager
def moto_server() -> Iterator[Server]:
    """Run the server until the end of the block, and then forget everything that it stores."""
    threaded = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    threaded.start()
    host, port = threaded.get_host_and_port()
    server = Server(endpoint=f"http://{host}:{port}", pid=os.getpid())
    try:
        yield server
    finally:
        command(server, "reset")
        threaded.stop()


def command(server: Server, name: str, body: bytes = b"") -> None:
    """Send a command to moto itself, for example `reset` or `reset-auth`."""
    urllib.request.urlopen(f"{server.endpoint}/moto-api/{name}", data=body).close()


@contextmanager
def moto_with_credentials() -> Iterator[Server]:
    """Run the server, and select credentials of the tests for the SDK."""
    with moto_server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield server


@dataclass
class Bucket(Deployment):
    """A deployment in a bucket."""

    bucket_url: str = ""

    @property
    def url(self) -> str:
        return self.bucket_url

    def table(self, name: str) -> DeltaTable:
        location = lake_location(self.url, name)
        return DeltaTable(location.uri, storage_options=dict(location.storage_options))

    def rows(self, name: str) -> list[dict[str, Any]]:
        return self.table(name).to_pyarrow_table().to_pylist()


@contextmanager
def versitygw_deployment(folder: Path) -> Iterator[Bucket]:
    """Run versitygw with a deployment under a prefix, and select its credentials for the SDK."""
    with pytest.MonkeyPatch.context() as patch, versitygw(folder) as server:
        for name, value in {**CREDENTIALS, "AWS_REGION": "us-east-1"}.items():
            patch.setenv(name, value)
        url = server.url("lake", "deep/prefix")
        asyncio.run(make_bucket(url))
        made = Bucket(root=folder, bucket_url=url)
        made.init()
        yield made
