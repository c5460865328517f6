"""Processes of the benchmark `accept`: a store, the gateway under test, and two controls.

    python -m benchmarks.accept_servers ROLE ARGUMENT

`stub MS` serves a store with a latency of MS milliseconds. `plain URL` serves a gateway over
aioboto3, and `handler URL` the bare handler over the adapter, both with the stub as their store.
"""

import asyncio
import base64
import contextlib
import functools
import hashlib
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Final

import psutil
import uvloop
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.support.gateway_tls import SERVER, TestAuthority

from sluice_protocol.keys import blob_key, digest_of
from sluice_protocol.units import ObjectKey
from sluice_store import StoreMode, create_authority, open_store
from sluice_web.listening import TlsFiles, server_tls

KEY_VARIABLE: Final = "SLUICE_BENCH_KEY"
"""The environment variable with the key that the processes of one benchmark share, in hex."""


def _signing_key() -> Ed25519PrivateKey:
    shared = os.environ.get(KEY_VARIABLE)
    if shared is None:
        return Ed25519PrivateKey.generate()
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(shared))


KEY: Final = _signing_key()
MANIFEST: Final = b'{"about":"the size of a manifest"}'.ljust(640)
SPIFFE: Final = "spiffe://bench/agent"


def serve_stub(latency_ms: str) -> None:
    """Serve PUT with `If-None-Match`, GET, HEAD and an empty listing, each after `latency_ms`."""
    held: dict[str, tuple[bytes, str, str]] = {}
    delay_s = float(latency_ms) / 1000
    await_s = asyncio.sleep

    async def answer(request: web.BaseRequest) -> web.Response:
        if "Expect" in request.headers:  # the SDK waits for this response, as with S3
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        body = await request.content.read()
        if delay_s:
            await await_s(delay_s)
        if "list-type" in request.query:
            return web.Response(text=_EMPTY_LISTING, content_type="application/xml")
        if request.method == "PUT":
            return _stub_put(held, request, body)
        if request.path.count("/") < 2:
            return web.Response()
        found = held.get(request.path)
        if found is None:
            return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>")
        headers = {"ETag": '"e"', "Last-Modified": found[2], "x-amz-checksum-sha256": found[1]}
        return web.Response(body=found[0], headers=headers)

    _serve(answer)


_EMPTY_LISTING: Final = (
    '<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>'
    "<KeyCount>0</KeyCount></ListBucketResult>"
)


def _stub_put(
    held: dict[str, tuple[bytes, str, str]], request: web.BaseRequest, body: bytes
) -> web.Response:
    if request.headers.get("If-None-Match") == "*" and request.path in held:
        return web.Response(status=412, text="<Error><Code>PreconditionFailed</Code></Error>")
    checksum = request.headers.get("x-amz-checksum-sha256", "")
    kept = body if len(body) < 2048 else b""
    held[request.path] = (kept, checksum, formatdate(usegmt=True))
    return web.Response(headers={"ETag": '"e"'})


def _serve(answer: Callable[[web.BaseRequest], Awaitable[web.Response]]) -> None:
    async def main() -> None:
        runner = web.ServerRunner(web.Server(answer, access_log=None))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    uvloop.run(main())


# --- the plain gateway: a simple implementation over the SDK --------------------------------------


def serve_plain(endpoint: str) -> None:
    """Read, hash and put twice through aioboto3, without checking the sender or the frame."""
    import aioboto3  # noqa: PLC0415 - only this process needs it
    from botocore.config import Config  # noqa: PLC0415

    async def main() -> None:
        config = Config(max_pool_connections=256, retries={"total_max_attempts": 1})
        session = aioboto3.Session(region_name="us-east-1")
        async with session.client("s3", endpoint_url=endpoint, config=config) as client:
            serial = itertools.count()

            async def answer(request: web.BaseRequest) -> web.Response:
                body = await request.content.read()
                digest = hashlib.sha256(body)
                checksum = base64.b64encode(digest.digest()).decode()
                put = functools.partial(client.put_object, Bucket="plain", IfNoneMatch="*")
                await put(Key=f"raw/{digest.hexdigest()}", Body=body, ChecksumSHA256=checksum)
                await put(Key=f"accepted/{os.getpid()}-{next(serial)}", Body=MANIFEST)
                return web.json_response({"status": "accepted"})

            runner = web.ServerRunner(web.Server(answer, access_log=None))
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            print(runner.addresses[0][1], flush=True)
            await asyncio.Event().wait()

    uvloop.run(main())


# --- the bare handler: what every gateway over this adapter must do at least ----------------------


def serve_handler(endpoint: str, tls_folder: str = "") -> None:
    """Read, hash and put twice through the project's S3 adapter, without checking anything.

    The folder contains `gateway.pem`, `gateway.key` and `ca.pem`; empty for plain HTTP.
    """
    folder = Path(tls_folder)
    files = TlsFiles(
        certificate=folder / "gateway.pem", key=folder / "gateway.key", client_ca=folder / "ca.pem"
    )
    tls = server_tls(files) if tls_folder else None

    async def main() -> None:
        serial = itertools.count()
        async with open_store(store_url(endpoint)) as store:

            async def answer(request: web.BaseRequest) -> web.Response:
                body = await request.content.read()
                digest = digest_of(body)
                await store.create(ObjectKey(f"h/{blob_key(digest)}"), body, sha256=digest)
                key = ObjectKey(f"h/accepted/v1/bench/{os.getpid()}/{next(serial):020d}.json")
                await store.create(key, MANIFEST)
                return web.json_response({"status": "accepted"})

            runner = web.ServerRunner(web.Server(answer, access_log=None))
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            print(runner.addresses[0][1], flush=True)
            await asyncio.Event().wait()

    uvloop.run(main())


# --- processes -----------------------------------------------------------------------------------


@contextmanager
def child(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process for the duration of the block."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment())
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def environment() -> dict[str, str]:
    """Return the environment with credentials; the stub accepts all of them."""
    keys = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"} | os.environ
    return keys | {"AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}


def first_line(process: subprocess.Popen[bytes]) -> int:
    """Return the port that a process of this module prints."""
    if process.stdout is None:
        raise RuntimeError
    return int(process.stdout.readline())


@contextmanager
def stub(latency_ms: float) -> Iterator[str]:
    """Run the store and yield its URL."""
    with child(
        sys.executable, "-m", "benchmarks.accept_servers", "stub", str(latency_ms)
    ) as process:
        yield f"http://127.0.0.1:{first_line(process)}"


def store_url(endpoint: str) -> str:
    """Return the store URL of the stub."""
    return f"s3://bench/run?endpoint={endpoint}&region=us-east-1"


@contextmanager
def gateway(
    endpoint: str, folder: Path, *flags: str, tls: bool = False
) -> Iterator[tuple[int, int]]:
    """Run `sluice gateway` with the stub as its store; yield its process id and port."""
    more = _tls_flags(folder) if tls else ()
    with gateway_on(store_url(endpoint), folder, *flags, *more) as found:
        yield found


@contextmanager
def gateway_on(
    url: str, folder: Path, *flags: str, agents: Sequence[str] = ("bench",), more: str = ""
) -> Iterator[tuple[int, int]]:
    """Run `sluice gateway` with the principals in `folder`; yield its process id and port.

    The file of principals is written there, for `agents` and with the entries `more`.
    """
    asyncio.run(_init(url))
    file = folder / "principals.toml"
    file.write_text(principals(agents) + more)
    port = free_port()
    command = (
        *(sys.executable, "-c", "from sluice_cli.main import main; main()", "gateway"),
        *("--store", url, "--listen", f"127.0.0.1:{port}"),
        *("--principals", str(file), "--skip-probe", *flags),
    )
    with child(*command) as process:
        until_live(port)
        yield process.pid, port


def principals(agents: Sequence[str]) -> str:
    """Return the principals file of the benchmark's key."""
    raw = KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    named = ", ".join(f'"{one}"' for one in agents)
    return (
        f'[[principals]]\nname = "bench"\nagents = [{named}]\nspiffe = "{SPIFFE}"\n'
        f'keys = [{{ id = "k", ed25519 = "{base64.b64encode(raw).decode()}" }}]\n'
    )


def _tls_flags(folder: Path) -> tuple[str, ...]:
    """Create an authority and the certificates of gateway and client; return the flags."""
    authority = TestAuthority(folder / "tls")
    server = authority.issue("gateway", usage=SERVER)
    authority.issue("client", SPIFFE)
    return (
        *("--tls-certificate", str(server.certificate), "--tls-key", str(server.key)),
        *("--tls-client-ca", str(authority.path)),
    )


async def _init(url: str) -> None:
    async with open_store(url, StoreMode.CREATE) as store:
        await create_authority(store)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def until_live(port: int) -> None:
    """Wait until a gateway listens on a port."""
    for _ in range(2_400):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise RuntimeError


def cpu_of(pid: int) -> float:
    """Return the user and system processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tree_cpu_of(pid: int) -> float:
    """Return the processor seconds of a process, of those that it started, and of those ended."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(
        sum(one.user + one.system + one.children_user + one.children_system for one in times)
    )


def peak_bytes(pid: int) -> int:
    """Return the peak resident size of a process."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


if __name__ == "__main__":
    os.environ.update(environment())
    servers: dict[str, Callable[..., None]] = {
        "stub": serve_stub,
        "plain": serve_plain,
        "handler": serve_handler,
    }
    servers[sys.argv[1]](*sys.argv[2:])
