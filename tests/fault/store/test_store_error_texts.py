"""The text of each failure of a store: what failed, on which object, why, and what to do."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from support.store_versitygw import CREDENTIALS

from sluice_protocol.errors import StoreDenied, StoreError, StoreMisconfigured, StoreUnavailable
from sluice_protocol.units import ObjectKey
from sluice_store.s3.sdk import open_s3_store
from sluice_store.s3.settings import parse_s3_url

KEY = ObjectKey("some/key")


def error(status: str, code: str, message: str = "words of the server") -> bytes:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def page(status: str) -> bytes:
    body = "<html>log in</html>"
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nServer: wall\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


ANSWERS: list[tuple[str, bytes, type[StoreError], tuple[str, ...]]] = [
    ("503", error("503 No", "SlowDown"), StoreUnavailable, ("overloaded", "503 SlowDown words")),
    ("500", error("500 No", "InternalError"), StoreUnavailable, ("the store failed", "500 Intern")),
    ("page", page("200 OK"), StoreUnavailable, ("not the store's", "server=`wall`", "proxies")),
    ("403 page", page("403 No"), StoreUnavailable, ("not the store's", "403", "firewalls")),
    ("denied", error("403 No", "AccessDenied"), StoreDenied, ("check credentials", "AccessDenied")),
    ("expired", error("403 No", "ExpiredToken"), StoreDenied, ("credentials", "ExpiredToken")),
    ("expired 400", error("400 No", "ExpiredToken"), StoreDenied, ("credentials", "ExpiredToken")),
    ("key", error("403 No", "InvalidAccessKeyId"), StoreDenied, ("credentials", "InvalidAccess")),
    ("clock", error("403 No", "RequestTimeTooSkewed"), StoreDenied, ("clock", "set it")),
    (
        "bucket",
        error("404 No", "NoSuchBucket"),
        StoreMisconfigured,
        ("no such bucket", "store URL"),
    ),
    ("cut off", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", StoreUnavailable, ("complete",)),
    ("no HTTP", b"SSH-2.0-OpenSSH_9.2\r\n", StoreUnavailable, ("complete response",)),
    ("closed", b"", StoreUnavailable, ("complete response", "retry")),
]


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@asynccontextmanager
async def server(answer: bytes | None) -> AsyncIterator[str]:
    """Yield host and port of a server with one response to all, or none at all."""

    ended: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        ended.add(task)
        await reader.read(65536)
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    listener = await asyncio.start_server(one, "127.0.0.1", 0)
    try:
        yield "{}:{}".format(*listener.sockets[0].getsockname())
    finally:
        listener.close()
        await asyncio.gather(*ended)


async def read_error(origin: str) -> StoreError:
    url = f"s3://bucket/pre?endpoint={origin}&region=us-east-1"
    settings = replace(parse_s3_url(url), request_timeout_s=0.5, connect_timeout_s=1.0)
    async with open_s3_store(settings) as store:
        with pytest.raises(StoreError) as caught:
            await store.get(KEY)
        return caught.value


def check(caught: StoreError, kind: type[StoreError], words: tuple[str, ...]) -> None:
    text = str(caught)
    assert type(caught) is kind, text
    assert KEY in text
    assert [word for word in words if word not in text] == [], text
    assert "\n" not in text
    assert len(text) < 700, text


@pytest.mark.daily(5)
@pytest.mark.parametrize(
    ("answer", "kind", "words"), [line[1:] for line in ANSWERS], ids=[line[0] for line in ANSWERS]
)
def test_the_text_names_what_the_server_sent(
    answer: bytes, kind: type[StoreError], words: tuple[str, ...]
) -> None:
    """Cause and remedy of each response that is no success."""

    async def run() -> StoreError:
        async with server(answer) as host:
            return await read_error(f"http://{host}")

    check(asyncio.run(run()), kind, words)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


NETWORK: dict[str, tuple[Callable[[str], str], tuple[str, ...]]] = {
    "name": (lambda _: "http://no-such-host.invalid", ("does not resolve", "DNS")),
    "refused": (lambda _: f"http://127.0.0.1:{free_port()}", ("connection refused", "endpoint")),
    "TLS to a plain port": (lambda host: f"https://{host}", ("TLS failed", "http://")),
    "no response": (lambda host: f"http://{host}", ("no complete response", "retry")),
}


@pytest.mark.parametrize("case", NETWORK)
def test_the_text_names_where_the_network_failed(case: str) -> None:
    """A name, a port, a certificate and a slow server have different texts."""
    origin, words = NETWORK[case]

    async def run() -> StoreError:
        async with server(page("400 No") if "TLS" in case else None) as host:
            return await read_error(origin(host))

    check(asyncio.run(run()), StoreUnavailable, words)
