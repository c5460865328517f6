"""A name that resolves to several addresses is that many gateways, under one name."""

import asyncio
import random
import socket
import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web
from support.gateway_tls import SERVER, TestAuthority

from sluice_agent.sending.gateway_addresses import RESOLVE_S, Gateways, resolve_name
from sluice_agent.sending.gateway_choice import GatewayTarget, SendAttempts
from sluice_agent.sending.transport import (
    HttpTransport,
    UploadRequest,
    UploadResult,
    client_tls,
    open_upload_session,
)
from sluice_agent.sending.upload_decisions import (
    ConnectionFailure,
    GatewayResponse,
    NoGatewayResponse,
)
from sluice_protocol.keys import digest_of
from sluice_protocol.system_clock import SystemClock

ADDRESSES = ("127.0.0.2", "127.0.0.3")
UPLOAD = UploadRequest(frame=b"x", digest=digest_of(b"x"))


def failure_of(result: UploadResult) -> ConnectionFailure:
    assert isinstance(result.response, NoGatewayResponse)
    return result.response.failure


class NamedAddresses:
    """Resolves names from a dictionary."""

    def __init__(self, addresses: dict[str, tuple[str, ...]]) -> None:
        self.addresses = addresses

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        return self.addresses.get(host, ())


class FixedClock(SystemClock):
    """The system's clock with a monotonic time that a test moves."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + int(self.ahead_s * 1e9)


class Listener:
    """A server that records the Host of each request and the TLS name of each connection."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.hosts: list[str] = []
        self.names: list[str | None] = []
        self.tls = tls
        if tls is not None:
            tls.sni_callback = lambda _, name, __: self.names.append(name)

    async def start(self, stack: AsyncExitStack, address: str, port: int) -> None:
        app = web.Application()
        app.router.add_post("/v1/batches", self._post)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, address, port, ssl_context=self.tls).start()

    async def _post(self, request: web.Request) -> web.Response:
        self.hosts.append(request.headers["Host"])
        return web.json_response({"status": "accepted", "frame_sha256": UPLOAD.digest})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_each_address_is_a_gateway_with_the_name_of_the_url(tmp_path: Path, scheme: str) -> None:
    """Both addresses are used; Host, TLS server name and certificate are those of the URL."""
    authority = TestAuthority(tmp_path)
    pem = authority.issue("gateway.test", usage=SERVER, dns="gateway.test")
    port = free_port()

    def server_tls() -> ssl.SSLContext | None:
        if scheme == "http":
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pem.certificate, pem.key)
        return context

    async def main() -> None:
        async with AsyncExitStack() as stack:
            listeners = [Listener(server_tls()) for _ in ADDRESSES]
            for listener, address in zip(listeners, ADDRESSES, strict=True):
                await listener.start(stack, address, port)
            clock = SystemClock()
            resolver = NamedAddresses({"gateway.test": ADDRESSES})
            url = f"{scheme}://gateway.test:{port}"
            gateways = Gateways((url,), resolver, clock=clock, rng=random.Random(1))
            tls = client_tls(authority.path, None, None)
            session = open_upload_session(tls=tls, connections_max=2, total_s=5, connect_s=2)
            await stack.enter_async_context(session)
            transport = HttpTransport(session, key=None, clock=clock)
            for _ in range(4):
                target = (await gateways.choose(SendAttempts())).target
                received = await transport.send(target, UPLOAD)
                assert isinstance(received.response, GatewayResponse), received
                gateways.succeeded(target, 0.01)
            assert {host for one in listeners for host in one.hosts} == {f"gateway.test:{port}"}
            assert all(one.hosts for one in listeners)
            if scheme == "https":
                assert {name for one in listeners for name in one.names} == {"gateway.test"}
                other = GatewayTarget(url=f"https://other.test:{port}", address=ADDRESSES[0])
                refused = await transport.send(other, UPLOAD)
                assert failure_of(refused) is ConnectionFailure.TLS

    asyncio.run(main())


def test_names_are_resolved_again() -> None:
    """A new address is used, a removed one is not, and a failing resolution changes nothing."""

    async def main() -> None:
        resolver = NamedAddresses({"g": ("10.0.0.1", "10.0.0.2")})
        clock = FixedClock()
        urls = ("http://g", "http://127.0.0.1:1")
        gateways = Gateways(urls, resolver, clock=clock, rng=random.Random(1))

        async def known() -> set[str]:
            await gateways.choose(SendAttempts())
            return {state.target.address for state in gateways.known.states}

        assert await known() == {"10.0.0.1", "10.0.0.2", ""}
        resolver.addresses = {"g": ("10.0.0.2", "10.0.0.3")}
        assert await known() == {"10.0.0.1", "10.0.0.2", ""}
        clock.ahead_s += 2 * RESOLVE_S
        assert await known() == {"10.0.0.2", "10.0.0.3", ""}
        resolver.addresses = {}
        clock.ahead_s += 2 * RESOLVE_S
        assert await known() == {"10.0.0.2", "10.0.0.3", ""}
        resolver.addresses = {"g": ("10.0.0.4",)}
        clock.ahead_s += 10
        await gateways.choose(SendAttempts(rounds=1))  # after every gateway has failed
        assert await known() == {"10.0.0.4", ""}

    asyncio.run(main())


def test_a_name_that_does_not_resolve_is_one_gateway_that_fails() -> None:
    async def main() -> None:
        gateways = Gateways(
            ("http://g.invalid",), NamedAddresses({}), clock=SystemClock(), rng=random.Random(1)
        )
        target = (await gateways.choose(SendAttempts())).target
        assert target == GatewayTarget(url="http://g.invalid")

    asyncio.run(main())


def test_the_system_resolves_names() -> None:
    async def main() -> None:
        assert "127.0.0.1" in await resolve_name("localhost", 80)
        assert await resolve_name("does-not-exist.invalid", 80) == ()

    asyncio.run(main())
