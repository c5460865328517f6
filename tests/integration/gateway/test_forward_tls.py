"""The forward protocol over TLS."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from support.door_bodies import FORWARD
from support.door_client import accepted_frames
from support.forward_door import KEY, connect, serving
from support.gateway_tls import SERVER, TestAuthority

HANDSHAKE_S = 0.5


def tls_of(authority: TestAuthority) -> dict[str, Any]:
    server = authority.issue("server", usage=SERVER)
    return {"tls_certificate": server.certificate, "tls_key": server.key}


async def test_a_client_certificate_needs_no_handshake(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path / "ca")
    tls = tls_of(authority)
    options = {"tls_client_ca": authority.path, "forward_principal": ""}
    async with serving(tmp_path, **tls, **options) as (served, port):
        known = authority.issue("fluent", "spiffe://td/fluent")
        client = await connect(port, authority.client_context(known))
        await client.send(FORWARD["message"])
        assert await client.receive() == {"ack": "c1"}
        unknown = authority.issue("what", "spiffe://td/what")
        client = await connect(port, authority.client_context(unknown))
        await client.send(FORWARD["forward"])
        assert await client.receive() is None
        client = await connect(port, authority.client_context(None))
        assert (await client.log_in(KEY) or [])[1] is True
        assert len(await accepted_frames(served.store.inner)) == 1


async def test_the_limit_counts_unfinished_handshakes(tmp_path: Path) -> None:
    """A client beyond the limit waits until one of them times out."""
    authority = TestAuthority(tmp_path / "ca")
    limits = {"connections_max": 2, "head_timeout_s": HANDSHAKE_S}
    async with serving(tmp_path, **tls_of(authority), **limits) as (served, port):
        loop = asyncio.get_running_loop()
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        started_s = loop.time()
        client = await connect(port, authority.client_context(None))
        assert loop.time() - started_s >= HANDSHAKE_S / 2, "it did not wait for a place"
        await client.send(FORWARD["message"])
        assert await client.receive() == {"ack": "c1"}
        assert served.count("sluice_connections") == 1
        for reader, writer in silent:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()


async def test_the_longest_idle_connection_is_closed_for_a_client_that_waits(
    tmp_path: Path,
) -> None:
    authority = TestAuthority(tmp_path / "ca")
    async with serving(tmp_path, **tls_of(authority), connections_max=1) as (served, port):
        for _ in range(3):
            client = await connect(port, authority.client_context(None))
            await client.send(FORWARD["message"])
            assert await client.receive() == {"ack": "c1"}
        closed = "sluice_connections_closed_total"
        assert served.count(closed, reason="displaced") == 2
