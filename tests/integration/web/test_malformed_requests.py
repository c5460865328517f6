"""Malformed HTTP to real service processes: a refusal and one line of JSON, never a traceback."""

import asyncio
import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.gateway import TestKey, upload_fields, write_principals
from support.local_deployment import clean_environment
from support.sluice_process import SluiceProcess
from support.store_versitygw import free_port, wait_for_port
from support.web_services import Services

from sluice_store import StoreMode, create_authority, open_store

HEAD = b" HTTP/1.1\r\nHost: 127.0.0.1\r\n"
MALFORMED = {
    "content_length": b"GET /livez" + HEAD + b"Content-Length: -1\r\n\r\n",
    "field_name": b"GET /livez" + HEAD + b"Bad Field: x\r\n\r\n",
    "long_field": b"GET /livez" + HEAD + b"X: " + b"a" * 20_000 + b"\r\n\r\n",
    "long_target": b"GET /" + b"a" * 20_000 + HEAD + b"\r\n",
    "bytes_in_target": b"GET /\xff" + HEAD + b"\r\n",
    "target": b"GET http://[::/" + HEAD + b"\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "second_request": b"GET /livez" + HEAD + b"\r\nGARBAGE\r\n\r\n",
    "chunk_size": b"POST /livez" + HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
}
VERSIONS = (
    b"GET /livez\r\n\r\n",
    b"GET /livez HTTP/0.9\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /livez HTTP/2.0\r\nHost: 127.0.0.1\r\n\r\n",
)
KEY = TestKey("host-1", ("host-1",))
SERVICES = {
    "gateway": ("gateway", "--store", "{store}", "--listen", "{at}", "--principals", "{keys}"),
    "reconciler": ("reconciler", "--store", "{store}", "--listen", "{at}"),
    "query": ("query", "serve", "--store", "{store}", "--listen", "{at}"),
    "agent": (
        "agent",
        "run",
        "--gateway",
        "http://127.0.0.1:9",
        "--health",
        "{at}",
        "--spool",
        "s",
    ),
}


@contextmanager
def process_of(folder: Path, service: str) -> Iterator[tuple[int, Path]]:
    """Run a service; yield its port and the file of its standard error."""
    url, port = f"file://{folder}/store", free_port()

    async def init() -> None:
        async with open_store(url, StoreMode.CREATE) as store:
            await create_authority(store)

    asyncio.run(init())
    keys = write_principals(folder / "principals.toml", KEY)
    values = {"store": url, "at": f"127.0.0.1:{port}", "keys": str(keys)}
    flags = [one.format(**values) for one in SERVICES[service]]
    log = folder / "stderr"
    with log.open("wb") as out:
        process = SluiceProcess(
            [sys.executable, "-m", "sluice_cli", *flags],
            stdout=subprocess.DEVNULL,
            stderr=out,
            cwd=folder,
            env=clean_environment(),
        )
        try:
            wait_for_port(port, process)
            yield port, log
        finally:
            process.terminate()
            process.wait(30)


def events(log: Path, name: str) -> list[dict[str, str]]:
    found = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [one for one in found if one["event"] == name]


@pytest.mark.daily(2)
@pytest.mark.parametrize("service", SERVICES)
def test_malformed_requests_are_refused_and_logged_as_events(tmp_path: Path, service: str) -> None:
    with process_of(tmp_path, service) as (port, log):
        services = Services({service: port})
        for name, request in MALFORMED.items():
            response = services.send(service, request, 5.0)
            statuses = [
                line[9:12]
                for line in (response.head + "\n" + response.body.decode()).splitlines()
                if line.startswith("HTTP/1.")
            ]
            assert statuses[-1] == "400", name
        for request in VERSIONS:
            response = services.send(service, request, 5.0)
            assert b"ok\n" not in response.body
            assert response.problem["code"] == "bad_request"
        until = time.monotonic() + 5
        while len(events(log, "http_request_malformed")) < len(MALFORMED):
            assert time.monotonic() < until
            time.sleep(0.05)
    found = events(log, "http_request_malformed")  # every line is JSON
    assert len(found) == len(MALFORMED)
    assert {one["level"] for one in found} == {"info"}
    assert "Traceback" not in log.read_text(encoding="utf-8")


@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_ends_during_its_body_is_one_event(tmp_path: Path, *, reset: bool) -> None:
    """Each killed sender would otherwise be an error with a traceback in the log."""
    with process_of(tmp_path, "gateway") as (port, log):
        authority, body = f"127.0.0.1:{port}", bytes(100_000)
        fields = {"Host": authority} | KEY.sign(upload_fields(body), authority)
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(f"POST /v1/batches HTTP/1.1\r\n{lines}\r\n".encode() + body[:4])
            time.sleep(0.2)  # the gateway reads the body
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until = time.monotonic() + 5
        while not events(log, "client_disconnected"):
            assert time.monotonic() < until, log.read_text(encoding="utf-8")
            time.sleep(0.05)
    found = events(log, "client_disconnected")
    assert [(one["path"], one["level"]) for one in found] == [("/v1/batches", "info")]
    assert "Traceback" not in log.read_text(encoding="utf-8")
