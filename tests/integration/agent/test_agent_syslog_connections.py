"""Connections of syslog that end, break and are opened again, also while the spool is full.

Plain TCP has no acknowledgements: a sender may repeat what the agent has, or not repeat what the
agent did not receive. What the agent has received is stored exactly once, however it arrived.
"""

import asyncio
import contextlib
import select
import socket
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from support.agent_doors import fail_accepts
from support.syslog_agent import bodies, full_spool, rows, served

from sluice_agent.doors import syslog
from sluice_agent.metrics import LabelledMetric

SETTLED_S = 0.3
"""Time in which the agent receives what was written to the loopback interface."""
RESET = struct.pack("ii", 1, 0)


def counted(*texts: str) -> bytes:
    """Return messages with octet counts."""
    messages = [b"<13>1 - h a - - - %s" % text.encode() for text in texts]
    return b"".join(b"%d %s" % (len(one), one) for one in messages)


def lines(*texts: str) -> bytes:
    """Return messages that end at line feeds."""
    return b"".join(b"<13>1 - h a - - - %s\n" % text.encode() for text in texts)


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def reset(sock: socket.socket) -> None:
    """Close a connection as the kernel does for a process that was killed with unread bytes."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


async def written(sock: socket.socket, *parts: bytes) -> None:
    """Write each part when the agent has received the one before."""
    for part in parts:
        await asyncio.to_thread(sock.sendall, part)
        await asyncio.sleep(SETTLED_S)


def numbered(start: int, end: int) -> list[str]:
    return [f"order {n} was accepted: ü" for n in range(start, end)]


@pytest.mark.parametrize("form", [counted, lines])
def test_a_reset_connection_keeps_what_was_received(
    tmp_path: Path, form: Callable[..., bytes]
) -> None:
    """The spool is full, so messages wait in the agent when the sender is killed."""

    async def check(port: int) -> None:
        sock = connected(port)
        await written(sock, form(*numbered(0, 20)), form(*numbered(20, 40)), form("last"))
        reset(sock)
        await asyncio.sleep(SETTLED_S)
        room.append(True)
        await asyncio.sleep(SETTLED_S)

    with full_spool() as room:
        served(tmp_path, "tcp", check, batch_records=10, drain_s=0.1)
    assert bodies(tmp_path) == [*numbered(0, 40), "last"]


@pytest.mark.parametrize("ends", ["closed", "reset"])
def test_a_sender_reconnects_within_a_message(tmp_path: Path, ends: str) -> None:
    """As rsyslog does: it sends the message that it could not write again, from its beginning."""
    half = counted("order 7")[:-4]

    async def check(port: int) -> None:
        first = connected(port)
        await written(first, counted(*numbered(0, 30)), half)
        if ends == "reset":
            reset(first)
        else:
            first.close()
        with contextlib.closing(connected(port)) as second:
            await written(second, counted("order 7")[:9], counted("order 7")[9:] + counted("end"))
        room.append(True)
        await asyncio.sleep(SETTLED_S)

    with full_spool() as room:
        served(tmp_path, "tcp", check, batch_records=10, drain_s=0.1)
    stored = rows(tmp_path)
    found = Counter(body for body, _ in stored)
    assert found == Counter([*numbered(0, 30), "ord", "order 7", "end"])
    errors = {body: pairs["sluice.error"] for body, pairs in stored if "sluice.error" in pairs}
    assert list(errors) == ["ord"], "the message of the broken connection is marked"
    assert "truncated" in errors["ord"]


def test_two_connections_are_separate_streams(tmp_path: Path) -> None:
    """A sender with a queue on disk has two workers; their messages arrive in turns."""

    async def check(port: int) -> None:
        with contextlib.closing(connected(port)) as one, contextlib.closing(connected(port)) as two:
            odd, even = counted(*numbered(0, 500)), lines(*numbered(500, 1000))
            for at in range(0, len(odd), 997):
                await asyncio.to_thread(one.sendall, odd[at : at + 997])
                await asyncio.to_thread(two.sendall, even[at : at + 997])
            await asyncio.to_thread(two.sendall, even[at + 997 :])
        await asyncio.sleep(SETTLED_S)
        room.append(True)
        await asyncio.sleep(SETTLED_S)

    with full_spool() as room:
        served(tmp_path, "tcp", check, batch_records=100, drain_s=2.0)
    assert Counter(bodies(tmp_path)) == Counter(numbered(0, 1000))


def test_a_broken_count_loses_nothing_that_was_sent(tmp_path: Path) -> None:
    """The agent ends its side, reads on until the sender has noticed, and keeps it raw."""
    sent = b"x" * 300_000

    async def check(port: int) -> None:
        with contextlib.closing(connected(port)) as sock:
            await written(sock, counted("whole") + b"NOT A COUNT ")
            assert await asyncio.to_thread(sock.recv, 1) == b"", "the agent does not end its side"
            await asyncio.to_thread(sock.sendall, sent)
        await asyncio.sleep(SETTLED_S)

    served(tmp_path, "tcp", check, drain_s=0.1)
    first, *rest = rows(tmp_path)
    assert first[0] == "whole"
    assert "".join(body for body, _ in rest) == "NOT A COUNT " + sent.decode()
    assert all("octet count" in pairs["sluice.error"] for _, pairs in rest)


def test_a_connection_beyond_the_maximum_waits_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither accepted nor closed until another one ends."""
    monkeypatch.setattr(syslog, "CONNECTIONS_MAX", 2)
    opened: list[float] = []
    change = LabelledMetric.set

    def recorded(metric: LabelledMetric, value: float) -> None:
        if metric.name == "syslog_connections":
            opened.append(value)
        change(metric, value)

    monkeypatch.setattr(LabelledMetric, "set", recorded)

    async def check(port: int) -> None:
        first, second, third = (connected(port) for _ in range(3))
        with first, second, third:
            for sock, text in ((first, "one"), (second, "two"), (third, "three")):
                await written(sock, lines(text))
            assert opened == [1, 2]
            assert select.select([third], [], [], 0)[0] == [], "the agent closed it"
            first.close()
            await written(third, lines("four"))
            assert max(opened) == 2

    with structlog.testing.capture_logs() as logged:
        served(tmp_path, "tcp", check)
    assert Counter(bodies(tmp_path)) == Counter(["one", "two", "three", "four"])
    (full,) = [one for one in logged if one["event"] == "syslog_connections_full"]
    assert full["connections"] == 2
    assert full["address"].startswith("tcp://127.0.0.1:")


def test_a_connection_is_accepted_when_descriptors_are_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_accepts(monkeypatch)

    async def check(port: int) -> None:
        with contextlib.closing(connected(port)) as sock:
            await written(sock, lines("one"))

    with structlog.testing.capture_logs() as logged:
        served(tmp_path, "tcp", check)
    assert bodies(tmp_path) == ["one"]
    (failed,) = [one for one in logged if one["event"] == "syslog_accept_failed"]
    assert failed["reason"] == "Too many open files"
