"""Syslog over real sockets into a running agent, also from logger(1)."""

import asyncio
import contextlib
import re
import shutil
import socket
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.gateway_tls import SERVER, TestAuthority
from support.store_versitygw import free_port
from support.syslog_agent import bodies, frames, full_spool, rows, served, settings

from sluice_agent.app import run_agent
from sluice_lake.records import derived_arrays
from sluice_protocol.columns import LogColumns
from sluice_protocol.errors import BadUsage


async def send(port: int, *parts: bytes, tls: ssl.SSLContext | None = None) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    with contextlib.suppress(OSError):  # the agent may have closed the connection
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        if tls is None:
            writer.write_eof()
            assert await reader.read() == b""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def test_both_framings_over_tcp(tmp_path: Path) -> None:
    """Each connection is detected separately; messages may arrive in any pieces."""

    async def check(port: int) -> None:
        await asyncio.gather(
            send(port, b"<13>Nov 22 08:00:00 h app: one\n<13>Nov 2", b"2 08:00:01 h app: two\n"),
            send(port, b"1", b"7 <13>1 - h a - - -21 <13>1 - h a - - - a\nb", b"9 <13>short"),
        )

    served(tmp_path, "tcp", check)
    found = rows(tmp_path)
    assert sorted(body for body, _ in found) == ["", "a\nb", "one", "short", "two"]
    assert {pairs["network.peer.address"] for _, pairs in found} == {"127.0.0.1"}


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_message_without_a_host_has_the_address_of_its_sender(
    tmp_path: Path, transport: str
) -> None:
    """The agent's own host, which is in the resource of each batch, would be wrong."""
    messages = [
        b"<13>Nov 22 08:00:00 app[7]: RFC 3164 without a host",
        b"<13>no header",
        b"no priority",
        b"<13>1 2026-11-22T08:00:00Z - app 7 - - RFC 5424 without a host",
        b"<13>Nov 22 08:00:00 web-1 app[7]: RFC 3164",
        b"<13>1 2026-11-22T08:00:00Z web-2 app 7 - - RFC 5424",
    ]

    async def check(port: int) -> None:
        if transport == "tcp":
            await send(port, b"".join(one + b"\n" for one in messages))
            return
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for one in messages:
                sock.sendto(one, ("127.0.0.1", port))

    served(tmp_path, transport, check)
    found = []
    for frame in frames(tmp_path):
        resource = frame.envelope.resource
        assert dict(resource)["host.name"] == socket.gethostname()
        columns = frame.columns
        assert isinstance(columns, LogColumns)
        found += derived_arrays([columns], [resource], [len(columns)])["host"].to_pylist()
    assert found == ["127.0.0.1"] * 4 + ["web-1", "web-2"]


def test_datagrams(tmp_path: Path) -> None:
    """One datagram is one message."""

    async def check(port: int) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for n in range(100):
                sock.sendto(b"<13>1 - h a - - - %d\nsecond line\n" % n, ("127.0.0.1", port))
                sock.sendto(b"\n", ("127.0.0.1", port))

    served(tmp_path, "udp", check)
    assert bodies(tmp_path) == [f"{n}\nsecond line" for n in range(100)]


@pytest.mark.skipif(shutil.which("logger") is None, reason="util-linux is not installed")
@pytest.mark.parametrize(
    ("transport", "form", "more"),
    [
        ("tcp", "--rfc5424", ["--octet-count"]), ("tcp", "--rfc5424", []), ("tcp", "--rfc3164", []),
        ("udp", "--rfc5424", []), ("udp", "--rfc3164", []),
    ],
)  # fmt: skip
def test_logger_of_util_linux(tmp_path: Path, transport: str, form: str, more: list[str]) -> None:
    """A client that was not written for this test: time, host, tag and process id are read."""

    async def check(port: int) -> None:
        structured = ["--sd-id", "shop@32473", "--sd-param", 'order="7"']
        extra = structured if form == "--rfc5424" else []
        await asyncio.to_thread(
            subprocess.run,
            ["logger", form, f"--{transport}", "--server", "127.0.0.1", "--port", str(port), *more,
             "--tag", "shop", "--id=4711", "-p", "local3.err", *extra, "order accepted: ü"],
            check=True, env={"TZ": "UTC", "PATH": "/usr/bin:/bin"},
        )  # fmt: skip

    served(tmp_path, transport, check, timezone="UTC")
    ((body, pairs),) = rows(tmp_path)
    assert body == "order accepted: ü"
    assert pairs["service.name"] == "shop"
    assert pairs["syslog.procid"] == "4711"
    assert pairs["syslog.facility"] == "19"
    assert pairs["host.name"] == socket.gethostname().partition(".")[0] or form == "--rfc5424"
    assert "sluice.error" not in pairs
    if form == "--rfc5424":
        assert pairs["syslog.structured_data.shop@32473.order"] == "7"
    (frame,) = frames(tmp_path)
    at = datetime.fromtimestamp(frame.columns.ts[0] / 1e9, UTC)  # type: ignore[union-attr]
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)
    assert frame.columns.severity.tolist() == [17]  # type: ignore[union-attr]


def test_tls_with_and_without_a_client_certificate(tmp_path: Path) -> None:
    """With authorities, a client without a certificate cannot send; its name is stored."""
    authority = TestAuthority(tmp_path)
    server, client = authority.issue("server", usage=SERVER), authority.issue("sender")

    async def anonymous(port: int) -> None:
        await send(port, b"<13>1 - h a - - - anonymous\n", tls=authority.client_context(None))
        await asyncio.sleep(0.3)

    async def known(port: int) -> None:
        await send(port, b"<13>1 - h a - - - known\n", tls=authority.client_context(client))
        for tls in (authority.client_context(None), None):
            with contextlib.suppress(OSError):
                await send(port, b"<13>1 - h a - - - intruder\n", tls=tls)
        await asyncio.sleep(0.3)

    files = f"?cert={server.certificate}&key={server.key}"
    served(tmp_path / "a", "tls", anonymous, files=files)
    served(tmp_path / "b", "tls", known, files=f"{files}&client_ca={authority.path}")
    assert bodies(tmp_path / "a") == ["anonymous"]
    ((body, pairs),) = rows(tmp_path / "b")
    assert (body, pairs["tls.client.subject"]) == ("known", "commonName=sender")


def test_a_full_spool_stops_senders_over_tcp(tmp_path: Path) -> None:
    """The agent stops reading, so the sender blocks; afterwards nothing is missing."""
    line = b"<13>1 - h a - - - %06d " + b"x" * 1000 + b"\n"
    sent = 0

    async def check(port: int) -> None:
        nonlocal sent
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(TimeoutError):
            while sent < 100_000:
                writer.write(line % sent)
                sent += 1
                async with asyncio.timeout(2.0):
                    await writer.drain()
        assert 1000 < sent < 100_000, "the sender was never stopped"
        room.append(True)
        await writer.drain()
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()

    with full_spool() as room:
        served(tmp_path, "tcp", check, batch_bytes=1 << 20)
    assert [int(body.split()[0]) for body in bodies(tmp_path)] == list(range(sent))


def test_datagrams_that_the_kernel_drops_are_counted(tmp_path: Path) -> None:
    """Received and dropped are together what was sent."""
    count, health, counts = 20_000, free_port(), {}

    async def check(port: int) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for n in range(count):
                sock.sendto(b"<13>1 - h a - - - %d " % n + b"x" * 1400, ("127.0.0.1", port))
                if n % 100 == 0:
                    await asyncio.sleep(0)
            room.append(True)
            await asyncio.sleep(1.0)
            sock.sendto(b"<13>1 - h a - - - last", ("127.0.0.1", port))
        async with aiohttp.ClientSession() as session:
            for _ in range(100):
                async with session.get(f"http://127.0.0.1:{health}/metrics") as answer:
                    text = await answer.text()
                for name in ("messages_total", "dropped_datagrams_total"):
                    (value,) = re.findall(
                        rf"^sluice_agent_syslog_{name}\S* (\S+)$", text, re.MULTILINE
                    )
                    counts[name] = int(float(value))
                if sum(counts.values()) == count + 1:
                    return
                await asyncio.sleep(0.1)

    with full_spool() as room:
        served(tmp_path, "udp", check, batch_bytes=1 << 20, health=f"127.0.0.1:{health}")
    found = bodies(tmp_path)
    assert counts["dropped_datagrams_total"] > 0
    assert counts["messages_total"] + counts["dropped_datagrams_total"] == count + 1
    assert len(found) == counts["messages_total"]
    assert found[-1] == "last"


def test_a_broken_count_closes_the_connection(tmp_path: Path) -> None:
    """What was received is kept raw, and the sender connects again."""

    async def check(port: int) -> None:
        await send(port, b"9 <13>shortNOT A COUNT <13>rest")

    served(tmp_path, "tcp", check)
    (first, _), (second, pairs) = rows(tmp_path)
    assert (first, second) == ("short", "NOT A COUNT <13>rest")
    assert "octet count" in pairs["sluice.error"]


def test_what_was_sent_before_a_stop_is_received(tmp_path: Path) -> None:
    """Open connections are read to what has arrived; an unfinished line is kept."""

    with socket.socket() as sock:

        async def check(port: int) -> None:
            sock.connect(("127.0.0.1", port))
            sock.sendall(b"<13>1 - h a - - - whole\n<13>1 - h a - - - cut")

        served(tmp_path, "tcp", check)
    assert bodies(tmp_path) == ["whole", "cut"]


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_one_process_owns_an_address(tmp_path: Path, transport: str) -> None:
    """A second agent would receive a part of the messages, so it does not start."""

    async def check(port: int) -> None:
        other = settings(tmp_path / "other", f"{transport}://127.0.0.1:{port}")
        with pytest.raises(BadUsage, match="cannot listen for syslog"):
            await run_agent(other, stop=asyncio.Event())

    served(tmp_path, transport, check)


@pytest.mark.parametrize(
    ("syslog", "how", "message"),
    [
        ("http://127.0.0.1:1", {}, "syslog must be"), ("127.0.0.1:514", {}, "syslog must be"),
        ("udp://127.0.0.1", {}, "HOST:PORT"), ("tls://127.0.0.1:1", {}, "certificate"),
        ("udp://127.0.0.1:1", {"once": True}, "once"),
    ],
)  # fmt: skip
def test_wrong_settings_are_reported(
    tmp_path: Path, syslog: str, how: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadUsage, match=message):
        settings(tmp_path, syslog, **how).for_syslog()
