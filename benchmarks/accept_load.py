"""Frames for the benchmark `accept`, and the ways to send them."""

import asyncio
import base64
import functools
import io
import itertools
import random
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
import numpy as np
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from yarl import URL

from benchmarks.accept_servers import KEY, MANIFEST, store_url
from sluice_protocol.columns import LogColumns, TextColumn
from sluice_protocol.frame import encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key, blob_key, digest_of
from sluice_protocol.signatures import content_digest_field, sign_request
from sluice_protocol.units import Digest, ObjectKey
from sluice_protocol.upload_http import (
    FRAME_LIST_MEDIA_TYPE,
    FRAME_MEDIA_TYPE,
    UPLOAD_LIST_PATH,
    UPLOAD_PATH,
    ListedFrame,
    encode_frame_list,
)
from sluice_store import open_store
from sluice_store.s3.exchange import encode_checksum

SERIAL: Final = itertools.count()
"""Every frame of a run has a unique sequence number, so no upload is an accidental duplicate."""
AT_NS: Final = 1_800_000_000_000_000_000
MANIFEST_SHA256: Final = digest_of(MANIFEST)


class UploadBatch:
    """A frame with a unique identity, and its plain and signed headers for one gateway."""

    def __init__(
        self, size_bytes: int, port: int, identity: Identity | None = None, at_ns: int = AT_NS
    ) -> None:
        """Create an uncompressed frame of about `size_bytes` with one log line at `at_ns`."""
        if identity is None:
            seq = next(SERIAL)
            identity = Identity(agent_id="bench", boot_id="b", seq_start=seq, seq_end=seq)
        self.identity = identity
        self.frame = _frame(self.identity, size_bytes, at_ns)
        self.digest = digest_of(self.frame)
        self.plain = plain_headers(self.frame, self.digest, FRAME_MEDIA_TYPE)
        self.signed = signed_headers(self.plain, UPLOAD_PATH, port)


def plain_headers(body: bytes, digest: Digest, media_type: str) -> dict[str, str]:
    """Return the header fields of an upload without its signature."""
    return {
        "Content-Digest": content_digest_field(digest),
        "Content-Length": str(len(body)),
        "Content-Type": media_type,
    }


def signed_headers(plain: dict[str, str], path: str, port: int) -> dict[str, str]:
    """Return the header fields of an upload with its signature."""
    return plain | sign_request(
        key=KEY,
        key_id="k",
        method="POST",
        authority=f"127.0.0.1:{port}",
        path=path,
        headers=plain,
        created_s=int(time.time()),
    )


@functools.cache
def _padding(size_bytes: int) -> bytes:
    return base64.b64encode(np.random.default_rng(1).bytes(size_bytes))


def _frame(identity: Identity, size_bytes: int, at_ns: int) -> bytes:
    head = f"{identity.seq_start} ".encode()
    body = head + _padding(size_bytes)[: max(1, size_bytes - 250)]
    columns = LogColumns(
        ts=np.array([at_ns], np.int64),
        body=TextColumn(offsets=np.array([0, len(body)], np.int32), data=body),
        severity=None,
        attributes=None,
    )
    return encode_frame(identity=identity, columns=columns, compress=False)


Send = Callable[[UploadBatch], Awaitable[None]]

RETRY_MAX_S: Final = 60.0
"""How long a batch that was answered 503 is sent again."""


class NotAccepted(RuntimeError):
    """A response that is no acceptance."""

    def __init__(self, status: int, body: dict[str, Any], retry_after_s: float) -> None:
        super().__init__(status, body)
        self.status = status
        self.reason = str(body.get("code", ""))
        self.retry_after_s = retry_after_s


async def send_until_accepted(send: Send, batch: UploadBatch, met: Counter[str]) -> None:
    """Send a batch as an agent does: after a 503 or without a response, the same bytes again.

    `send` accepts a duplicate, because an earlier try may have been accepted; `met` counts each try
    that was not accepted, by its reason. Raise `NotAccepted` after another response, or after
    `RETRY_MAX_S`.
    """
    until_s = time.perf_counter() + RETRY_MAX_S
    while True:
        pause_s = 1.0
        try:
            return await send(batch)
        except NotAccepted as error:
            met[error.reason] += 1
            if error.status != HTTPStatus.SERVICE_UNAVAILABLE or time.perf_counter() > until_s:
                raise
            pause_s = error.retry_after_s
        except (OSError, TimeoutError, aiohttp.ClientError) as error:
            met[type(error).__name__] += 1
            if time.perf_counter() > until_s:
                raise NotAccepted(0, {"code": type(error).__name__}, pause_s) from error
        await asyncio.sleep(random.uniform(pause_s / 2, pause_s))


def client_tls(folder: Path) -> ssl.SSLContext:
    """Return the TLS context of a client with a certificate."""
    context = ssl.create_default_context(cafile=str(folder / "tls" / "ca.pem"))
    context.load_cert_chain(folder / "tls" / "client.pem", folder / "tls" / "client.key")
    return context


@asynccontextmanager
async def uploading(
    port: int, *, duplicate: bool | None = False, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Send]:
    """Return a function that uploads one batch, signed or over mTLS, and checks its acceptance.

    With `duplicate=None` a new batch and a duplicate are accepted.
    """
    connector = aiohttp.TCPConnector(limit=0, ssl=tls or True)
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1/batches"

        async def send(batch: UploadBatch) -> None:
            data, headers = io.BytesIO(batch.frame), batch.plain if tls else batch.signed
            async with session.post(url, data=data, headers=headers) as answer:
                body = await answer.json(content_type=None)
                if answer.status != HTTPStatus.OK or duplicate not in (
                    None,
                    body.get("duplicate", duplicate),
                ):
                    pause_s = float(answer.headers.get("Retry-After", "1"))
                    raise NotAccepted(answer.status, body, pause_s)

        yield send


class UploadList:
    """Frames of one request, and the plain and signed headers of it for one gateway."""

    def __init__(self, batches: list[UploadBatch], port: int) -> None:
        self.count = len(batches)
        self.body = encode_frame_list([ListedFrame(frame=one.frame) for one in batches])
        self.plain = plain_headers(self.body, digest_of(self.body), FRAME_LIST_MEDIA_TYPE)
        self.signed = signed_headers(self.plain, UPLOAD_LIST_PATH, port)


@asynccontextmanager
async def uploading_lists(
    port: int, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Callable[[UploadList], Awaitable[None]]]:
    """Return a function that uploads one list and checks that every frame is accepted."""
    connector = aiohttp.TCPConnector(limit=0, ssl=tls or True)
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        url = f"{'https' if tls else 'http'}://127.0.0.1:{port}{UPLOAD_LIST_PATH}"

        async def send(sent: UploadList) -> None:
            data, headers = io.BytesIO(sent.body), sent.plain if tls else sent.signed
            async with session.post(url, data=data, headers=headers) as answer:
                body = await answer.json(content_type=None)
                results = body.get("results", [])
                if [one["status"] for one in results] != [200] * sent.count:
                    raise RuntimeError(body)

        yield send


@asynccontextmanager
async def putting(endpoint: str) -> AsyncIterator[Send]:
    """Return a function that does the two PUTs and one hash of an accept with the adapter."""
    async with open_store(store_url(endpoint)) as store:

        async def send(batch: UploadBatch) -> None:
            digest = digest_of(batch.frame)
            await store.create(ObjectKey(f"c/{blob_key(digest)}"), batch.frame, sha256=digest)
            await store.create(ObjectKey(f"c/{accepted_key(batch.identity)}"), MANIFEST)

        yield send


@asynccontextmanager
async def bare(endpoint: str) -> AsyncIterator[Send]:
    """Return the control: one hash, and two PUTs by botocore's signer and an aiohttp session."""
    signer = S3SigV4Auth(Credentials("bench", "bench"), "s3", "us-east-1")
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def put(key: str, body: bytes, sha256: str) -> None:
            headers = {
                "x-amz-checksum-sha256": encode_checksum(Digest(sha256)),
                "X-Amz-Content-SHA256": sha256,
                "If-None-Match": "*",
            }
            url = f"{endpoint}/bench/c/{key}"
            request = AWSRequest(method="PUT", url=url, headers=headers)
            signer.add_auth(request)
            sent = dict(request.headers.items())
            async with session.put(URL(url, encoded=True), data=body, headers=sent) as answer:
                await answer.read()
                answer.raise_for_status()

        async def send(batch: UploadBatch) -> None:
            digest = digest_of(batch.frame)
            await put(f"b/{blob_key(digest)}", batch.frame, digest)
            await put(f"b/{accepted_key(batch.identity)}", MANIFEST, MANIFEST_SHA256)

        yield send


_Sent = TypeVar("_Sent")


async def drive(
    send: Callable[[_Sent], Awaitable[None]], batches: list[_Sent], clients: int
) -> list[float]:
    """Send all batches with `clients` concurrent clients; return the seconds of each."""
    waiting, seconds = iter(batches), []

    async def one() -> None:
        for batch in waiting:
            started = time.perf_counter()
            await send(batch)
            seconds.append(time.perf_counter() - started)

    await asyncio.gather(*(one() for _ in range(clients)))
    return seconds
