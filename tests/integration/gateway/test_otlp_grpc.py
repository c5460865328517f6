"""OTLP over gRPC: the same acceptance, with the answers that exporters of gRPC know."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from support.agent_doors import stalled_call
from support.door_client import TestSender, accepted_frames, otlp_logs, post
from support.dying_store import RefusingStore
from support.gateway import Running, TestKey, running
from support.otlp_requests import TRACE_REQUEST

from sluice_gateway.process.worker import serving_grpc
from sluice_store import StoreMode, open_store
from sluice_store.port import ObjectStore

HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", ())
OTHER = TestSender("other", (), doors=("json",))
LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
BODY = otlp_logs("one", "two")


LIMIT_S = 0.4


@asynccontextmanager
async def serving_at(
    tmp_path: Path, store: ObjectStore | None = None, **settings: Any
) -> AsyncIterator[tuple[Running, int, aio.Channel]]:
    async with (
        running(
            tmp_path, HOST, SHOP, OTHER, doors=("otlp",), otlp_grpc_listen="127.0.0.1:0",
            door_body_bytes_max=1_000_000, store=store, **settings,
        ) as served,
        serving_grpc(served.gateway) as port,
        aio.insecure_channel(f"127.0.0.1:{port}", compression=grpc.Compression.Gzip) as channel,
    ):  # fmt: skip
        yield served, port, channel


@asynccontextmanager
async def serving(
    tmp_path: Path, store: ObjectStore | None = None
) -> AsyncIterator[tuple[Running, aio.Channel]]:
    async with serving_at(tmp_path, store) as (served, _, channel):
        yield served, channel


async def export(
    channel: aio.Channel, body: bytes, token: str, method: str = LOGS
) -> tuple[grpc.StatusCode, bytes]:
    call = channel.unary_unary(method)
    try:
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        return grpc.StatusCode.OK, await call(body, metadata=metadata)
    except aio.AioRpcError as error:
        return error.code(), (error.details() or "").encode()


async def test_a_retry_over_either_transport_is_a_duplicate(tmp_path: Path) -> None:
    """gRPC and HTTP are two ways to one door: the records have one identity."""
    async with serving(tmp_path) as (served, channel):
        token = SHOP.token.token
        for _ in range(2):
            code, answer = await export(channel, BODY, token)
            assert code is grpc.StatusCode.OK
            assert ExportLogsServiceResponse.FromString(answer) == ExportLogsServiceResponse()
        assert (await post(served, "/v1/logs", BODY, token)).status == 200
        [frame] = await accepted_frames(served.store.inner)
        assert frame.envelope.count == 2
        assert served.count("sluice_door_requests_total", door="otlp", outcome="duplicate") == 2


async def test_a_retry_of_spans_over_either_transport_is_a_duplicate(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, channel):
        token, body = SHOP.token.token, TRACE_REQUEST.SerializeToString()
        for _ in range(2):
            code, answer = await export(channel, body, token, TRACES)
            assert (code, answer) == (grpc.StatusCode.OK, b"")
        assert (await post(served, "/v1/traces", body, token)).status == 200
        [frame] = await accepted_frames(served.store.inner)
        assert (frame.envelope.kind, frame.envelope.count) == ("spans", 4)
        assert served.count("sluice_door_requests_total", door="otlp", outcome="duplicate") == 2


@pytest.mark.parametrize(
    ("body", "token", "method", "code"),
    [
        (BODY, "", LOGS, grpc.StatusCode.UNAUTHENTICATED),
        (BODY, "slt_wrong", LOGS, grpc.StatusCode.UNAUTHENTICATED),
        (BODY, OTHER.token.token, LOGS, grpc.StatusCode.PERMISSION_DENIED),
        (b"\xff\xff", SHOP.token.token, LOGS, grpc.StatusCode.INVALID_ARGUMENT),
        (bytes(2_000_000), SHOP.token.token, LOGS, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (BODY, SHOP.token.token, "/x.Y/Export", grpc.StatusCode.UNIMPLEMENTED),
    ],
    ids=["no-token", "wrong-token", "other-door", "unreadable", "too-large", "unknown-method"],
)
async def test_refusals(
    tmp_path: Path, body: bytes, token: str, method: str, code: grpc.StatusCode
) -> None:
    async with serving(tmp_path) as (served, channel):
        assert (await export(channel, body, token, method))[0] is code
        assert await accepted_frames(served.store.inner) == []


async def test_a_sender_without_a_token_is_refused_before_its_message_is_read(
    tmp_path: Path,
) -> None:
    """Messages are in memory before they are counted, so strangers must not cause any."""
    async with serving(tmp_path) as (_, channel):
        without_message = channel.stream_unary(LOGS)(timeout=10)
        assert await without_message.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_call_without_a_message_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, channel):
        metadata = (("authorization", f"Bearer {SHOP.token.token}"),)
        call = channel.stream_unary(LOGS)(metadata=metadata, timeout=10)
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("sent", [b"", b"half"], ids=["no-byte", "half-a-message"])
async def test_a_message_that_stalls_is_stopped(tmp_path: Path, sent: bytes) -> None:
    """Within its limit, as a body over HTTP. A valid call succeeds meanwhile and after it."""
    limits = {"body_grace_s": LIMIT_S / 2, "body_rate_min_bytes_per_s": int(2e6 / LIMIT_S)}
    async with (
        serving_at(tmp_path, **limits) as (served, port, channel),
        stalled_call(port, LOGS, SHOP.token.token, sent) as answered,
    ):
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        assert (await export(channel, BODY, SHOP.token.token))[0] is grpc.StatusCode.OK
        async with asyncio.timeout(10):
            while b"too slowly" not in answered:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert loop.time() - started_s < LIMIT_S + 1.5
        assert b"grpc-status\x0214" in answered
        assert served.gateway.uploads.budget.held_bytes == 0
        assert served.gateway.uploads.running.count == 0
        assert (await export(channel, BODY, SHOP.token.token))[0] is grpc.StatusCode.OK


async def test_a_draining_gateway_is_unavailable(tmp_path: Path) -> None:
    """Exporters retry UNAVAILABLE, perhaps through another gateway."""
    async with serving(tmp_path) as (served, channel):
        served.gateway.uploads.running.drain()
        code, detail = await export(channel, BODY, SHOP.token.token)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert b"stopping" in detail
        await asyncio.sleep(0)


async def test_trouble_of_the_store_is_unavailable_and_a_revoked_token_is_unknown(
    tmp_path: Path,
) -> None:
    async with open_store(f"file://{tmp_path}/shared", StoreMode.CREATE) as shared:
        store = RefusingStore(shared)
        async with serving(tmp_path, store) as (served, channel):
            token = SHOP.token.token
            assert (await export(channel, BODY, token))[0] is grpc.StatusCode.UNAVAILABLE
            store.refuses = ()
            assert (await export(channel, BODY, token))[0] is grpc.StatusCode.OK
            principals = served.gateway.uploads.principals
            principals._path.write_text(HOST.entry, encoding="utf-8")
            assert [principals.reload() for _ in range(2)] == [False, True]
            code, _ = await export(channel, otlp_logs("three"), token)
            assert code is grpc.StatusCode.UNAUTHENTICATED
            [frame] = await accepted_frames(shared)
            assert frame.envelope.count == 2
