"""Small requests over one connection, which wait for their frame: in order, and nothing lost.

Each test sends the same bytes that a client may send, over one real connection.

Requests as bytes on one connection, cut and joined as a test wants.
"""

import asyncio
import itertools
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.door_client import TestSender, accepted_frames
from support.dying_store import RefusingStore
from support.gateway import Running, TestKey, running
from support.repetitions import times

from sluice_gateway.uploads.principals import parse_principals
from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.keys import ACCEPTED, digest_of
from sluice_protocol.signatures import content_digest_field

LENGTH = re.compile(rb"content-length: ([0-9]+)", re.IGNORECASE)
CLOCK_FIELD = re.compile(rb"\r\nDate: [^\r]*")


@dataclass(frozen=True)
class RawAnswer:
    """A response as it was sent, without the time."""

    head: bytes
    body: bytes

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])


@dataclass(frozen=True)
class RawConnection:
    """A connection of a client that keeps it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, time_s: float = 10.0) -> RawAnswer:
        """Return the next response."""
        async with asyncio.timeout(time_s):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head)
            body = await self.reader.readexactly(int(length[1]) if length else 0)
        return RawAnswer(CLOCK_FIELD.sub(b"", head), body)

    async def ask(self, data: bytes) -> RawAnswer:
        self.send(data)
        return await self.answer()

    async def is_closed(self, time_s: float = 10.0) -> bool:
        """Return whether the server closes the connection without sending more."""
        async with asyncio.timeout(time_s):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[RawConnection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()


def raw_request(path: str, body: bytes, fields: Sequence[tuple[str, str]]) -> bytes:
    """Return a POST of HTTP/1.1 whose length is between its other fields."""
    lines = [f"POST {path} HTTP/1.1", "Host: gateway", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in fields]
    return "\r\n".join((*lines, "", "")).encode() + body


HOST = TestKey("host-1", ("host-1",))
DOORS = ("json", "otlp")
SHOP = TestSender("shop", (), doors=DOORS)
SERIAL = itertools.count()
SEEDS = [
    *range(4),
    *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 4 + times(2))),
]


class Served:
    """A gateway that combines small requests."""

    def __init__(self, running: Running) -> None:
        self.running = running

    async def begun(self) -> None:
        """Wait until a request is being accepted."""
        running = self.running.gateway.uploads.running
        async with asyncio.timeout(10):
            while not running.count:  # noqa: ASYNC110 - the gateway has no event for it
                await asyncio.sleep(0.001)

    async def messages(self) -> list[str]:
        frames = await accepted_frames(self.running.store.inner)
        return sorted(
            body.decode()
            for frame in frames
            for body in frame.columns.body.slices()  # type: ignore[union-attr]
        )


@asynccontextmanager
async def serve(tmp_path: Path, **settings: Any) -> AsyncIterator[Served]:
    limits = {"doors": DOORS, "door_own_frame_bytes": 4096, "door_flush_ms": 20, **settings}
    async with running(tmp_path, HOST, SHOP, **limits) as served:
        yield Served(served)


def lines(count: int = 1, text: str = "") -> tuple[list[str], bytes]:
    """Return messages that no other request has, and the body that contains them."""
    messages = [f"line {next(SERIAL):06}{text}" for _ in range(count)]
    rows = [{"time": "2026-01-01T00:00:00Z", "message": one} for one in messages]
    return messages, b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def posted(body: bytes, sender: TestSender = SHOP, *more: tuple[str, str]) -> bytes:
    fields = (("Authorization", f"Bearer {sender.token.token}"), *more)
    return raw_request("/v1/ingest", body, fields)


async def warm(connection: RawConnection) -> list[str]:
    """Send a first request over the connection; return its messages."""
    messages, body = lines()
    assert (await connection.ask(posted(body))).status == 200
    return messages


@pytest.mark.daily(1)
@pytest.mark.parametrize("seed", SEEDS)
async def test_requests_in_any_pieces_are_answered_in_order_and_stored_once(
    tmp_path: Path, seed: int
) -> None:
    """Whole, cut and, by one client, joined requests of several sizes."""
    rng = random.Random(seed)

    async def client(served: Served, joins: bool) -> list[str]:
        sent: list[str] = []
        async with connected(served.running.port) as connection:
            while len(sent) < 60:
                group = [lines(rng.randint(1, 9), "x" * rng.choice([0, 0, 600])) for _ in range(3)]
                group = group[: rng.choice([1, 2, 3]) if joins else 1]
                data = b"".join(posted(body) for _, body in group)
                cuts = sorted(rng.randrange(len(data)) for _ in range(rng.choice([0, 0, 0, 1, 2])))
                for start, end in itertools.pairwise([0, *cuts, len(data)]):
                    connection.send(data[start:end])
                    await asyncio.sleep(rng.choice([0, 0.001, 0.02]))
                for messages, _ in group:
                    answer = await connection.answer()
                    assert answer.status == 200, f"seed {seed}: {answer}"
                    assert json.loads(answer.body)["accepted"] == len(messages), f"seed {seed}"
                    sent += messages
        return sent

    async with serve(tmp_path) as served:
        sent = await asyncio.gather(*[client(served, joins) for joins in (False, True, False)])
        assert await served.messages() == sorted(itertools.chain(*sent))


async def test_a_request_that_arrives_before_the_last_response_is_answered_after_it(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path, door_flush_ms=300) as served:
        async with connected(served.running.port) as connection:
            await warm(connection)
            connection.send(posted(lines(2)[1]))
            await asyncio.sleep(0.05)  # its frame is not due yet
            connection.send(posted(lines(3)[1])[:100])
            await asyncio.sleep(0.05)
            answer = await connection.answer()
            assert json.loads(answer.body)["accepted"] == 2
        async with connected(served.running.port) as connection:
            await warm(connection)
            for count in (2, 3, 4):
                connection.send(posted(lines(count)[1]))
                await asyncio.sleep(0.02)
            accepted = [json.loads((await connection.answer()).body)["accepted"] for _ in "abc"]
            assert accepted == [2, 3, 4]


def _without_token(served: Served) -> None:
    served.running.gateway.uploads.principals.current = parse_principals(HOST.entry)


def _without_door(served: Served) -> None:
    entry = SHOP.entry.replace('"json", ', "")
    served.running.gateway.uploads.principals.current = parse_principals(entry)


def _draining(served: Served) -> None:
    served.running.gateway.uploads.running.drain()


def _full(served: Served) -> None:
    served.running.gateway.uploads.budget.reserve(300_000_000 - 100)


@pytest.mark.parametrize(
    ("change", "status"),
    [(_without_token, 401), (_without_door, 403), (_draining, 503), (_full, 503)],
)
async def test_a_connection_that_was_accepted_is_refused_as_soon_as_something_changes(
    tmp_path: Path, change: Callable[[Served], None], status: int
) -> None:
    async with (
        serve(tmp_path, inflight_bytes_max=300_000_000) as served,
        connected(served.running.port) as connection,
    ):
        accepted = await warm(connection)
        change(served)
        answer = await connection.ask(posted(lines()[1]))
        assert answer.status == status
        assert await served.messages() == accepted


async def test_a_bad_body_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        async with connected(served.running.port) as connection:
            sent = await warm(connection)
            assert (await connection.ask(posted(b"\0\xff not JSON"))).status == 400
            messages, body = lines()
            assert (await connection.ask(posted(body))).status == 200
            sent += messages
        assert [one for one in await served.messages() if one.startswith("line")] == sorted(sent)


async def test_a_store_that_fails_means_later(tmp_path: Path) -> None:
    async with running(tmp_path / "plain", HOST) as plain:
        store = RefusingStore(plain.store.inner)
        store.refuses, store.error = (), StoreUnavailable
        async with (
            serve(tmp_path, store=store, upload_time_s_max=1.0) as served,
            connected(served.running.port) as connection,
        ):
            sent = await warm(connection)
            store.refuses = (ACCEPTED,)
            messages, body = lines()
            answer = await connection.ask(posted(body))
            assert answer.status == 503
            assert b"\r\nRetry-After: 1\r\n" in answer.head
            store.refuses = ()
            while (status := (await connection.ask(posted(body))).status) == 503:
                pass  # A slow disk may need more than the time of an upload.
            assert status == 200
            assert served.running.gateway.uploads.running.count == 0
            assert served.running.gateway.uploads.budget.held_bytes == 0
            assert await served.messages() == sorted(sent + messages)


async def test_a_client_that_goes_away_has_its_records_stored(tmp_path: Path) -> None:
    async with serve(tmp_path, door_flush_ms=200) as served:
        async with connected(served.running.port) as connection:
            sent = await warm(connection)
            messages, body = lines()
            connection.send(posted(body))
            await served.begun()
        gateway = served.running.gateway
        assert await gateway.uploads.running.wait_idle(10)
        assert await served.messages() == sorted(sent + messages)
        assert served.running.count("sluice_door_requests_total", door="json", outcome="new") == 2
        assert gateway.uploads.budget.held_bytes == 0


async def test_a_gateway_that_stops_answers_requests_that_wait(tmp_path: Path) -> None:
    async with (
        serve(tmp_path, door_flush_ms=200) as served,
        connected(served.running.port) as connection,
    ):
        await warm(connection)
        connection.send(posted(lines()[1]))
        await served.begun()
        served.running.gateway.uploads.running.drain()
        answer = await connection.answer()
        assert answer.status == 200
        assert b"\r\nConnection: close\r\n" in answer.head
        assert await connection.is_closed()


@pytest.mark.parametrize("rest", [b"", b"POST /v1/in"])
async def test_idle_times_hold_after_a_combined_request(tmp_path: Path, rest: bytes) -> None:
    async with serve(tmp_path, idle_timeout_s=0.5, head_timeout_s=0.5) as served:
        async with connected(served.running.port) as connection:
            await warm(connection)
            assert (await connection.ask(posted(lines()[1]))).status == 200
            connection.send(rest)
            assert await connection.is_closed()
        reason = "slow_head" if rest else "idle"
        assert served.running.count("sluice_connections_closed_total", reason=reason) == 1


async def test_a_digest_is_compared_with_each_body(tmp_path: Path) -> None:
    """The second body was damaged in transit; its head is the one of the first."""
    async with serve(tmp_path) as served:
        sent, body = lines()
        field = ("Content-Digest", content_digest_field(digest_of(body)))
        async with connected(served.running.port) as connection:
            assert (await connection.ask(posted(body, SHOP, field))).status == 200
            damaged = body.replace(b"line", b"lime")
            assert (await connection.ask(posted(damaged, SHOP, field))).status == 400
        assert await served.messages() == sent
