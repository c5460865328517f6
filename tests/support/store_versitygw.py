"""The real S3 server of the tests: versitygw over a directory, with versioning."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice_store.s3.sdk import open_sdk
from sluice_store.s3.settings import parse_s3_url

ACCESS, SECRET = "sluice-access", "sluice-secret"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server."""

    endpoint: str
    pid: int

    def url(self, bucket: str, prefix: str = "") -> str:
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}&region=us-east-1"


def binary() -> Path:
    """Return the path of the server, which `deploy/versitygw.sh` installs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "sluice" / "bin" / "versitygw"


_RETURNED: set[int] = set()


def free_port() -> int:
    """Return a port that is free now, and that this process has not returned before."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _RETURNED:
            _RETURNED.add(port)
            return port


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server listens; raise when it has exited."""
    for _ in range(2_400):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, "the server ended at its start"
        time.sleep(0.025)
    message = "the server does not listen"
    raise AssertionError(message)


@contextmanager
def running(arguments: list[str], port: int) -> Iterator[Server]:
    """Run a server process until the end of the block."""
    environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}
    process = subprocess.Popen(
        arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for_port(port, process)
        yield Server(endpoint=f"http://127.0.0.1:{port}", pid=process.pid)
    finally:
        process.terminate()
        process.wait(timeout=10)


@contextmanager
def versitygw(folder: Path) -> Iterator[Server]:
    """Run versitygw over `folder`; two of them over one folder behave as one store."""
    port = free_port()
    with running(command(folder, port), port) as it:
        yield it


def command(folder: Path, port: int, *options: str) -> list[str]:
    """Return the command of versitygw over `folder`."""
    data, versions = folder / "data", folder / "versions"
    for path in (data, versions):
        path.mkdir(parents=True, exist_ok=True)
    server = [str(binary()), "--quiet", "--keep-alive", "--port", f"127.0.0.1:{port}", *options]
    return [*server, "posix", "--versioning-dir", str(versions), str(data)]


NEXT_SECOND_S: Final = 2.1
"""A server rounds the times of versions up and its clock down to whole seconds: only after this
time a version counts as superseded."""


async def make_bucket(url: str, *, versioning: str | None = "Enabled", lock: bool = False) -> None:
    """Create the bucket of a store URL, with versioning in the given state."""
    settings = parse_s3_url(url)
    async with open_sdk(settings) as sdk:
        await sdk.client.create_bucket(Bucket=settings.bucket, ObjectLockEnabledForBucket=lock)
        if versioning:
            await sdk.client.put_bucket_versioning(
                Bucket=settings.bucket, VersioningConfiguration={"Status": versioning}
            )
