"""OTLP over gRPC with real TLS: which client certificate and which token identify the sender."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from support.door_client import TestSender, accepted_frames, otlp_logs
from support.gateway import Running, TestKey, running
from support.gateway_tls import SERVER, Pem, TestAuthority

from sluice_gateway.process.worker import serving_grpc

LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
HEX = b"host-9".hex()


class _Certified(TestSender):
    """Principals with certificates: one by its id, one by a template, one without the door."""

    @property
    def entry(self) -> str:
        return super().entry + (
            'spiffe = "spiffe://td/collector"\n'
            '[[principals]]\nname = "fleet"\nagent_template = "spiffe://td/agent/{agent}"\n'
            'doors = ["otlp"]\n'
            '[[principals]]\nname = "json-only"\nspiffe = "spiffe://td/json"\ndoors = ["json"]\n'
        )


HOST = TestKey("host-1", ("host-1",))
SHOP = _Certified("shop", ())


@asynccontextmanager
async def serving(
    tmp_path: Path, *, required: bool = True
) -> AsyncIterator[tuple[Running, TestAuthority, int]]:
    authority = TestAuthority(tmp_path / "ca")
    server = authority.issue("server", usage=SERVER)
    async with (
        running(
            tmp_path, HOST, SHOP, doors=("otlp",), otlp_grpc_listen="127.0.0.1:0",
            otlp_grpc_client_certificates=required, tls_certificate=server.certificate,
            tls_key=server.key, tls_client_ca=authority.path,
        ) as served,
        serving_grpc(served.gateway) as port,
    ):  # fmt: skip
        yield served, authority, port


async def export(
    authority: TestAuthority, port: int, pem: Pem | None, token: str = ""
) -> grpc.StatusCode:
    pair: dict[str, Any] = {}
    if pem is not None:
        pair = {
            "private_key": pem.key.read_bytes(), "certificate_chain": pem.certificate.read_bytes()
        }  # fmt: skip
    credentials = grpc.ssl_channel_credentials(authority.path.read_bytes(), **pair)
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    async with aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        try:
            await channel.unary_unary(LOGS)(otlp_logs("one"), metadata=metadata, timeout=60)
        except aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def test_a_client_certificate_is_the_sender(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, authority, port):
        pem = authority.issue("collector", "spiffe://td/collector")
        for _ in range(2):
            assert await export(authority, port, pem) is grpc.StatusCode.OK
        [frame] = await accepted_frames(served.store.inner)
        assert frame.identity.agent_id.startswith("door:shop:")


@pytest.mark.parametrize(
    ("uris", "code"),
    [
        (("spiffe://td/json",), grpc.StatusCode.PERMISSION_DENIED),
        (("spiffe://td/unknown",), grpc.StatusCode.UNAUTHENTICATED),
        ((), grpc.StatusCode.UNAUTHENTICATED),
        (("https://td/collector",), grpc.StatusCode.UNAUTHENTICATED),
        (("spiffe://td/collector", "spiffe://td/other"), grpc.StatusCode.UNAUTHENTICATED),
    ],
    ids=["other-door", "unknown", "no-id", "no-spiffe", "two-ids"],
)
async def test_other_certificates_are_refused(
    tmp_path: Path, uris: tuple[str, ...], code: grpc.StatusCode
) -> None:
    async with serving(tmp_path) as (served, authority, port):
        assert await export(authority, port, authority.issue("x", *uris)) is code
        assert await accepted_frames(served.store.inner) == []


async def test_no_handshake_without_a_valid_certificate(tmp_path: Path) -> None:
    """A missing certificate, an expired one, one of another authority, and one of a server."""
    async with serving(tmp_path) as (served, authority, port):
        uri = "spiffe://td/collector"
        stranger = TestAuthority(tmp_path / "other").issue("x", uri)
        expired = authority.issue("old", uri, expired=True)
        server = authority.issue("as-server", uri, usage=SERVER)
        for pem in (None, stranger, expired, server):
            found = await export(authority, port, pem, SHOP.token.token)
            assert found is grpc.StatusCode.UNAVAILABLE, pem
        assert await accepted_frames(served.store.inner) == []


async def test_a_token_decides_over_the_certificate(tmp_path: Path) -> None:
    """As over HTTP: what the client states in the request comes first."""
    async with serving(tmp_path) as (_, authority, port):
        pem = authority.issue("json", "spiffe://td/json")
        assert await export(authority, port, pem, SHOP.token.token) is grpc.StatusCode.OK
        wrong = await export(
            authority, port, authority.issue("ok", "spiffe://td/collector"), "slt_wrong"
        )
        assert wrong is grpc.StatusCode.UNAUTHENTICATED


async def test_tokens_over_tls_without_client_certificates(tmp_path: Path) -> None:
    async with serving(tmp_path, required=False) as (_, authority, port):
        assert await export(authority, port, None, SHOP.token.token) is grpc.StatusCode.OK
        assert await export(authority, port, None) is grpc.StatusCode.UNAUTHENTICATED
        pem = authority.issue("collector", "spiffe://td/collector")
        assert await export(authority, port, pem) is grpc.StatusCode.UNAUTHENTICATED


async def test_a_certificate_of_a_template_is_its_own_sender(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, authority, port):
        pem = authority.issue("agent", f"spiffe://td/agent/{HEX}")
        assert await export(authority, port, pem) is grpc.StatusCode.OK
        [frame] = await accepted_frames(served.store.inner)
        assert frame.identity.agent_id.startswith(f"door:spiffe://td/agent/{HEX}:")
