"""A second real S3 server of the tests, SeaweedFS, with versioning; its S3 API may run twice."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.store_versitygw import ACCESS, SECRET, Server, free_port, wait_for_port
from support.store_versitygw import binary as versitygw_binary


def binary() -> Path:
    """Return the path of the server, which `deploy/seaweedfs.sh` installs."""

    return versitygw_binary().with_name("weed")


def command(folder: Path, s3_port: int, filer: tuple[int, int]) -> list[str]:
    """Return the command of a server whose data are in `folder`."""
    (folder / "seaweedfs").mkdir(parents=True, exist_ok=True)
    ports = {
        f"{name}{kind}": free_port()
        for name in ("master.port", "volume.port", "s3.port")
        for kind in ("", ".grpc")
    }
    ports |= {"s3.port": s3_port, "filer.port": filer[0], "filer.port.grpc": filer[1]}
    return [
        *(str(binary()), "-logtostderr", "server", f"-dir={folder}/seaweedfs", "-filer", "-s3"),
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.config={_identities(folder)}"),
        *("-volume.max=400", "-master.volumeSizeLimitMB=64", "-master.telemetry=false"),
        *(f"-{name}={port}" for name, port in ports.items()),
    ]


def _identities(folder: Path) -> Path:
    key = {"accessKey": ACCESS, "secretKey": SECRET}
    identity = {"name": "sluice", "credentials": [key], "actions": ["Admin"]}
    path = folder / "s3.json"
    path.write_text(json.dumps({"identities": [identity]}))
    return path


@contextmanager
def seaweedfs(folder: Path) -> Iterator[tuple[Server, Server]]:
    """Run the server with two S3 APIs, which are two endpoints of one store."""
    port, second, filer = free_port(), free_port(), (free_port(), free_port())
    with ExitStack() as stack:
        log = stack.enter_context((folder / "server.log").open("wb"))
        started = subprocess.Popen(command(folder, port, filer), stdout=log, stderr=log)
        stack.callback(started.wait)
        stack.callback(started.kill)
        wait_for_port(port, started)
        words = [
            *(str(binary()), "-logtostderr", "s3", f"-filer=127.0.0.1:{filer[0]}.{filer[1]}"),
            *(f"-port={second}", f"-port.grpc={free_port()}", "-ip.bind=127.0.0.1"),
            f"-config={_identities(folder)}",
        ]
        other = subprocess.Popen(words, stdout=log, stderr=log)
        stack.callback(other.wait)
        stack.callback(other.kill)
        wait_for_port(second, other)
        yield (
            Server(endpoint=f"http://127.0.0.1:{port}", pid=started.pid),
            Server(endpoint=f"http://127.0.0.1:{second}", pid=other.pid),
        )
