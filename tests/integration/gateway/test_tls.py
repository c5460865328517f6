"""Real TLS handshakes: which sender a client certificate identifies, and which one is refused."""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from support.gateway import (
    HttpResult,
    Running,
    TestKey,
    frame_of,
    identity,
    running,
    upload_fields,
)
from support.gateway_tls import CLIENT, SERVER, Pem, TestAuthority

from sluice_protocol.upload_http import (
    FRAME_LIST_MEDIA_TYPE,
    FRAME_MEDIA_TYPE,
    UPLOAD_LIST_PATH,
    UPLOAD_PATH,
    ListedFrame,
    encode_frame_list,
)

HOST = TestKey("host-1", ("host-1",))
FLEET = """
[[principals]]
name = "exact"
agents = ["host-2"]
spiffe = "spiffe://td/special/host-2"
[[principals]]
name = "fleet"
agent_template = "spiffe://td/agent/{agent}"
"""
HEX = b"host-1".hex()


class _Fleet(TestKey):
    """The principals entry of a signer, followed by those of the certificates."""

    @property
    def entry(self) -> str:
        return super().entry + FLEET


async def post(
    authority: TestAuthority,
    pem: Pem | None,
    served: Running,
    frame: bytes,
    *,
    signed: bool = False,
    path: str = UPLOAD_PATH,
    media_type: str = FRAME_MEDIA_TYPE,
) -> HttpResult:
    url = f"https://127.0.0.1:{served.port}{path}"
    fields = upload_fields(frame) | {"Content-Type": media_type}
    if signed:
        fields = HOST.sign(fields, f"127.0.0.1:{served.port}")
    connector = aiohttp.TCPConnector(ssl=authority.client_context(pem))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(url, data=io.BytesIO(frame), headers=fields) as answer,
    ):
        return HttpResult(answer.status, await answer.json(content_type=None), answer.headers)


@asynccontextmanager
async def serve(tmp_path: Path, **limits: float) -> AsyncIterator[tuple[TestAuthority, Running]]:
    authority = TestAuthority(tmp_path / "ca")
    server = authority.issue("server", usage=SERVER)
    async with running(
        tmp_path,
        _Fleet("host-1", ("host-1",), key=HOST.key),
        tls_certificate=server.certificate,
        tls_key=server.key,
        tls_client_ca=authority.path,
        **limits,
    ) as served:
        yield authority, served


async def test_spiffe_id_is_the_sender(tmp_path: Path) -> None:
    """An exact id and a template over one segment; the agent of the manifest must be that of the
    SAN.
    """
    async with serve(tmp_path) as (authority, served):
        mine = authority.issue("mine", f"spiffe://td/agent/{HEX}")
        assert (await post(authority, mine, served, frame_of())).status == 200
        foreign = frame_of(identity("host-9"))
        assert (await post(authority, mine, served, foreign)).status == 403
        exact = authority.issue("exact", "spiffe://td/special/host-2")
        assert (await post(authority, exact, served, frame_of(identity("host-2")))).status == 200


async def test_the_sender_of_a_list_is_that_of_the_certificate(tmp_path: Path) -> None:
    """Each frame of a list over mTLS belongs to the agent of the certificate, or is refused."""
    async with serve(tmp_path) as (authority, served):
        mine = authority.issue("mine", f"spiffe://td/agent/{HEX}")
        frames = [ListedFrame(frame=frame_of(identity(name))) for name in ("host-1", "host-9")]
        listed = encode_frame_list(frames)
        to_lists = {"path": UPLOAD_LIST_PATH, "media_type": FRAME_LIST_MEDIA_TYPE}
        answer = await post(authority, mine, served, listed, **to_lists)
        assert [one["status"] for one in answer.body["results"]] == [200, 403]
        assert (await post(authority, None, served, listed, **to_lists)).status == 401


@pytest.mark.parametrize(
    "uris",
    [
        (),
        (f"spiffe://td/agent/{HEX}", "spiffe://td/agent/62"),
        ("spiffe://td/agent/zz",),
        (f"spiffe://td/agent/{HEX}/more",),
        (f"spiffe://td/agent/{HEX.upper()}",),
        (f"spiffe://other/agent/{HEX}",),
        (f"https://td/agent/{HEX}",),
    ],
)
async def test_certificates_without_a_known_sender_are_refused(
    tmp_path: Path, uris: tuple[str, ...]
) -> None:
    """A valid certificate without exactly one known SPIFFE id is 401, before any store call."""
    async with serve(tmp_path) as (authority, served):
        pem = authority.issue("odd", *uris)
        answer = await post(authority, pem, served, frame_of())
        assert (answer.status, answer.body["code"]) == (401, "unauthenticated")
        assert served.store.calls == []


async def test_certificates_that_fail_the_handshake(tmp_path: Path) -> None:
    """Expired, for another use, or of another authority: no request is served."""
    async with serve(tmp_path) as (authority, served):
        uri = f"spiffe://td/agent/{HEX}"
        stranger = TestAuthority(tmp_path / "other").issue("stranger", uri, usage=CLIENT)
        expired = authority.issue("expired", uri, expired=True)
        for_servers = authority.issue("for-servers", uri, usage=SERVER)
        for pem in (stranger, expired, for_servers):
            with pytest.raises(aiohttp.ClientError):
                await post(authority, pem, served, frame_of())
        assert served.store.calls == []


async def test_without_a_certificate_a_signature_is_needed(tmp_path: Path) -> None:
    """Without a certificate a signature over TLS is accepted, and nothing at all is 401."""
    async with serve(tmp_path) as (authority, served):
        assert (await post(authority, None, served, frame_of())).status == 401
        assert (await post(authority, None, served, frame_of(), signed=True)).status == 200


async def test_chunked_body_over_mtls_is_411(tmp_path: Path) -> None:
    """A sender with a certificate may send chunks: 411, before the endless body."""
    async with serve(tmp_path) as (authority, served):

        async def endless() -> object:
            for _ in range(50):
                yield b"x" * 65536

        pem = authority.issue("mine", f"spiffe://td/agent/{HEX}")
        connector = aiohttp.TCPConnector(ssl=authority.client_context(pem))
        url = f"https://127.0.0.1:{served.port}/v1/batches"
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(url, data=endless(), headers={"Content-Type": FRAME_MEDIA_TYPE}) as answer,
        ):
            assert answer.status == 411
        assert served.store.calls == []


async def test_guard_watches_tls_connections(tmp_path: Path) -> None:
    """A body slower than the limit of a head is accepted; an idle connection is closed in time."""
    async with serve(tmp_path, head_timeout_s=0.3, idle_timeout_s=0.3) as (authority, served):
        pem = authority.issue("mine", f"spiffe://td/agent/{HEX}")
        frame = frame_of()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", served.port, ssl=authority.client_context(pem)
        )
        fields = upload_fields(frame) | {"Host": "127.0.0.1"}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"POST /v1/batches HTTP/1.1\r\n{head}\r\n".encode() + frame[:10])
        await asyncio.sleep(0.8)
        writer.write(frame[10:])
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        async with asyncio.timeout(3):
            with contextlib.suppress(ConnectionError):
                await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
