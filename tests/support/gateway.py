"""A gateway under test: in this process over any store, or as real processes on a directory.

Also here: uploads of several frames in one signed request; public keys of the second implementation
of Ed25519, as `verify_signature` takes them.
"""

import asyncio
import base64
import io
import json
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import nacl.signing
import numpy as np
import uvloop
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from support.builders import make_identity
from support.constants import command_with_flags, settings_with
from support.local_deployment import clean_environment
from support.sluice_process import SluiceProcess
from yarl import URL

from sluice_agent.sending.signing_key import SigningKey
from sluice_gateway.process.app import Gateway, build_gateway
from sluice_gateway.process.worker import serving
from sluice_gateway.settings import GatewaySettings
from sluice_protocol.authority import Authority
from sluice_protocol.columns import LogColumns, TextColumn
from sluice_protocol.frame import encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import digest_of
from sluice_protocol.outcomes import (
    CreateOutcome,
    DeleteOutcome,
    GetOutcome,
    HeadOutcome,
    OverwriteOutcome,
    ReplaceOutcome,
)
from sluice_protocol.signatures import content_digest_field, sign_request
from sluice_protocol.units import Digest, ETag, ObjectKey, ObjectVersion
from sluice_protocol.upload_http import (
    FRAME_LIST_MEDIA_TYPE,
    FRAME_MEDIA_TYPE,
    UPLOAD_LIST_PATH,
    ListedFrame,
    encode_frame_list,
)
from sluice_store import StoreMode, create_authority, open_store
from sluice_store.port import IncarnationPage, ListPage, ObjectStore, Versioning
from sluice_web.listening import bind_shared

TS_NS = 1_800_000_000_000_000_000


def run(body: Coroutine[Any, Any, None]) -> None:
    """Run a test on the event loop of the gateway."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body)


def identity(agent: str = "host-1", seq: int = 0, count: int = 1, boot: str = "b1") -> Identity:
    return make_identity(seq, count=count, agent=agent, boot=boot)


def frame_of(
    who: Identity | None = None,
    text: str = "hello",
    *,
    size: int = 0,
    compress: bool = True,
) -> bytes:
    """Return a frame of log records; `size` pads the first with bytes that do not compress."""
    who = who or identity()
    bodies = [f"{text} {index}".encode() for index in range(who.count)]
    if size:
        bodies[0] += base64.b64encode(np.random.default_rng(7).bytes(size * 3 // 4))
    offsets = np.cumsum([0, *map(len, bodies)]).astype(np.int32)
    columns = LogColumns(
        ts=np.arange(who.count, dtype=np.int64) + TS_NS,
        body=TextColumn(offsets=offsets, data=b"".join(bodies)),
        severity=None,
        attributes=None,
    )
    return encode_frame(identity=who, columns=columns, compress=compress)


@dataclass(frozen=True)
class TestKey:
    """A signer and its entry in the principals file."""

    __test__ = False

    name: str
    agents: tuple[str, ...]
    roles: tuple[str, ...] = ("agent",)
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    @property
    def key_id(self) -> str:
        return f"{self.name}-key"

    @property
    def signing(self) -> SigningKey:
        """The same key as an agent reads it."""
        private = nacl.signing.SigningKey(self.key.private_bytes_raw())
        return SigningKey(key_id=self.key_id, key=private)

    @property
    def entry(self) -> str:
        raw = self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return (
            f"[[principals]]\nname = {json.dumps(self.name)}\nroles = {json.dumps(self.roles)}\n"
            f"agents = {json.dumps(self.agents)}\n"
            f'keys = [{{ id = "{self.key_id}", ed25519 = "{base64.b64encode(raw).decode()}" }}]\n'
        )

    def sign(self, fields: Mapping[str, str], authority: str, **changed: Any) -> dict[str, str]:
        spoken: dict[str, Any] = {
            "method": "POST",
            "path": "/v1/batches",
            "created_s": int(time.time()),
        } | changed
        return dict(fields) | sign_request(
            key=self.key, key_id=self.key_id, authority=authority, headers=fields, **spoken
        )


def upload_fields(frame: bytes, **extra: str) -> dict[str, str]:
    fields = {
        "Content-Digest": content_digest_field(digest_of(frame)),
        "Content-Length": str(len(frame)),
        "Content-Type": FRAME_MEDIA_TYPE,
    }
    return fields | {name.replace("_", "-"): value for name, value in extra.items()}


def write_principals(path: Path, *keys: TestKey) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(key.entry for key in keys), encoding="utf-8")
    return path


@dataclass(frozen=True)
class HttpResult:
    """A response."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]


@dataclass
class Client:
    """An uploader with a key, and one gateway."""

    session: aiohttp.ClientSession
    port: int
    key: TestKey

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def upload(self, frame: bytes, **extra: str) -> HttpResult:
        fields = self.key.sign(upload_fields(frame, **extra), self.authority)
        return await self.send(frame, fields)

    async def send(self, frame: bytes, fields: Mapping[str, str]) -> HttpResult:
        url = f"http://{self.authority}/v1/batches"
        async with self.session.post(url, data=io.BytesIO(frame), headers=fields) as answer:
            return HttpResult(answer.status, await answer.json(content_type=None), answer.headers)

    async def get_signed(self, path: str, query: str = "") -> HttpResult:
        """Send a signed GET."""
        fields = self.key.sign({}, self.authority, method="GET", path=path, query=query)
        url = URL(f"http://{self.authority}{path}" + (f"?{query}" if query else ""), encoded=True)
        async with self.session.get(url, headers=fields) as answer:
            return HttpResult(answer.status, await answer.json(content_type=None), answer.headers)

    async def post_signed(self, path: str, body: dict[str, str]) -> HttpResult:
        """Send a signed POST of JSON."""
        data = json.dumps(body).encode()
        fields = upload_fields(data) | {"Content-Type": "application/json"}
        fields = self.key.sign(fields, self.authority, path=path)
        url = f"http://{self.authority}{path}"
        async with self.session.post(url, data=data, headers=fields) as answer:
            return HttpResult(answer.status, await answer.json(content_type=None), answer.headers)

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(f"http://{self.authority}{path}") as answer:
            return answer.status, await answer.text()


class CountingStore(ObjectStore):
    """Any store, with its calls recorded."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.calls: list[tuple[str, str]] = []

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        self.calls.append(("create", key))
        return await self.inner.create(key, body, sha256=sha256)

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        self.calls.append(("replace", key))
        return await self.inner.replace(key, body, if_match=if_match)

    async def overwrite(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> OverwriteOutcome:
        self.calls.append(("overwrite", key))
        return await self.inner.overwrite(key, body, sha256=sha256)

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        self.calls.append(("get", key))
        return await self.inner.get(key, first=first, last=last)

    async def head(self, key: ObjectKey) -> HeadOutcome:
        self.calls.append(("head", key))
        return await self.inner.head(key)

    async def head_incarnation(self, key: ObjectKey, incarnation: ObjectVersion) -> HeadOutcome:
        self.calls.append(("head", key))
        return await self.inner.head_incarnation(key, incarnation)

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        self.calls.append(("delete", key))
        return await self.inner.delete(key, incarnation)

    def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        self.calls.append(("list", prefix))
        return self.inner.list(prefix, start_after=start_after, end_at=end_at)

    def list_incarnations(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[IncarnationPage]:
        self.calls.append(("list", prefix))
        return self.inner.list_incarnations(prefix, start_after=start_after, end_at=end_at)

    async def read_versioning(self) -> Versioning:
        return await self.inner.read_versioning()


@dataclass
class Running:
    """A gateway serving in this process."""

    gateway: Gateway
    port: int
    store: CountingStore
    client: Client

    def count(self, name: str, **labels: str) -> float:
        """Return the value of a counter of the gateway, as a scrape reports it."""
        return self.gateway.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def running(
    tmp_path: Path,
    *keys: TestKey,
    store: ObjectStore | None = None,
    authority: Authority | None = None,
    **settings: Any,
) -> AsyncIterator[Running]:
    """Serve on a free port over a directory, or over `store`."""
    async with open_store(f"file://{tmp_path}/store", StoreMode.CREATE) as local:
        counting = CountingStore(store or local)
        agreed = authority or await create_authority(local)
        principals = write_principals(tmp_path / "principals.toml", *keys)
        limits = settings_with(GatewaySettings, principals=principals, **settings)
        gateway = build_gateway(counting, agreed, limits, "gw-test")
        await gateway.uploads.journal.open()
        counting.calls.clear()
        sock = bind_shared("127.0.0.1", 0)
        port = sock.getsockname()[1]
        async with serving(gateway, sock), aiohttp.ClientSession() as session:
            yield Running(gateway, port, counting, Client(session, port, keys[0]))


@dataclass
class GatewayProcess:
    """A real `sluice gateway` process."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def upload(self, key: TestKey, *frames: bytes) -> list[HttpResult]:
        """Send frames one after another, each over another connection."""

        async def send() -> list[HttpResult]:
            connector = aiohttp.TCPConnector(force_close=True)
            async with aiohttp.ClientSession(connector=connector) as session:
                client = Client(session, self.port, key)
                return [await client.upload(frame) for frame in frames]

        return asyncio.run(send())

    def get(self, path: str) -> tuple[int, str]:
        async def read() -> tuple[int, str]:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.port}{path}") as answer,
            ):
                return answer.status, await answer.text()

        return asyncio.run(read())

    def events(self, name: str) -> list[dict[str, Any]]:
        return events_of(self.log, name)

    def stop(self, timeout_s: float = 20.0) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def start_gateway(directory: Path, store_url: str, principals: Path, *flags: str) -> GatewayProcess:
    """Start a gateway and wait until it listens."""
    (started,) = start_gateways(1, directory, store_url, principals, *flags)
    return started


def start_gateways(
    count: int,
    directory: Path,
    store_url: str,
    principals: Path,
    *flags: str,
    prefix: Sequence[str] = (),
) -> list[GatewayProcess]:
    """Start gateways concurrently and wait until all of them listen."""
    directory.mkdir(parents=True, exist_ok=True)
    start, options = command_with_flags(GatewaySettings, flags)
    command = [
        *prefix,
        *(*start, "gateway"),
        *("--store", store_url, "--listen", "127.0.0.1:0", "--principals", str(principals)),
        *options,
    ]
    started: list[tuple[SluiceProcess, Path]] = []
    for _ in range(count):
        log = directory / f"gateway-{time.monotonic_ns()}.log"
        with log.open("wb") as out:
            process = SluiceProcess(
                command, stderr=out, stdout=out, cwd=directory, env=clean_environment()
            )
        started.append((process, log))
    try:
        return [GatewayProcess(process, _await_port(process, log), log) for process, log in started]
    except AssertionError:
        for process, _ in started:
            process.kill()
            process.wait()
        raise


def with_open_files(most: int) -> tuple[str, ...]:
    """Return the start of a command that may open a number of files."""
    return ("sh", "-c", 'ulimit -n "$0" && exec "$@"', str(most))


def events_of(log: Path, name: str) -> list[dict[str, Any]]:
    """Return the events of a log with this name."""
    lines = log.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if f'"{name}"' in line]


def _await_port(process: subprocess.Popen[bytes], log: Path) -> int:
    until = time.monotonic() + 90
    while time.monotonic() < until and process.poll() is None:
        for event in events_of(log, "gateway_listening"):
            return int(event["port"])
        time.sleep(0.02)
    raise AssertionError(f"gateway did not start: {log.read_text(encoding='utf-8')}")


@contextmanager
def gateways(
    directory: Path,
    *keys: TestKey,
    count: int = 1,
    flags: tuple[str, ...] = (),
    store_url: str = "",
    prefix: Sequence[str] = (),
) -> Iterator[list[GatewayProcess]]:
    """Start real gateway processes over one store, and stop all of them at the end.

    Args:
        directory: The working directory; the store is in it if none is named.
        keys: The principals.
        count: The number of gateways.
        flags: More options of `sluice gateway`.
        store_url: A store that is initialised already.
        prefix: A command that starts each gateway, such as `with_open_files`.
    """
    if not store_url:
        store_url = f"file://{directory}/store"
        asyncio.run(_init(store_url))
    principals = write_principals(directory / "principals.toml", *keys)
    started: list[GatewayProcess] = []
    try:
        started += start_gateways(count, directory, store_url, principals, *flags, prefix=prefix)
        yield started
    finally:
        for server in started:
            if server.process.poll() is None:
                server.kill()


async def _init(store_url: str) -> None:
    async with open_store(store_url, StoreMode.CREATE) as store:
        await create_authority(store)


async def bodies_under(url: str, prefix: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    async with open_store(url) as store:
        async for page in store.list(prefix):
            for item in page.objects:
                read = await store.get(item.key)
                found[item.key] = getattr(read, "body", b"")
    return found


def head_of(client: Client, body: bytes, **changed: str) -> dict[str, str]:
    fields = upload_fields(body) | {"Content-Type": FRAME_LIST_MEDIA_TYPE}
    fields |= {name.replace("_", "-"): text for name, text in changed.items()}
    return client.key.sign(fields, client.authority, path=UPLOAD_LIST_PATH)


async def post(client: Client, body: bytes, fields: dict[str, str]) -> HttpResult:
    url = f"http://{client.authority}{UPLOAD_LIST_PATH}"
    async with client.session.post(url, data=body, headers=fields) as answer:
        return HttpResult(answer.status, await answer.json(content_type=None), answer.headers)


async def send_list(client: Client, *frames: bytes | ListedFrame) -> list[dict[str, Any]]:
    listed = [one if isinstance(one, ListedFrame) else ListedFrame(frame=one) for one in frames]
    body = encode_frame_list(listed)
    answer = await post(client, body, head_of(client, body))
    assert answer.status == 200, answer
    return list(answer.body["results"])


@dataclass(frozen=True)
class OpensslKey:
    """A public key that verifies with OpenSSL."""

    key: Ed25519PublicKey

    def has_signed(self, data: bytes, signature: bytes) -> bool:
        try:
            self.key.verify(signature, data)
        except InvalidSignature:
            return False
        return True


def public_half(key: Ed25519PrivateKey) -> OpensslKey:
    return OpensslKey(key.public_key())
