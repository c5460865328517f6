"""rsyslog and syslog-ng of Debian send syslog to an agent, as docs/send describes.

A relay records what they send. The agent stores exactly that: a line that a client drops or sends
twice is the doing of the client, and the tests state which clients do so.

A TCP relay in front of a server, which records what clients send.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.client_programs import DEBIAN, debian_environment, program
from support.documented_blocks import blocks_of
from support.store_versitygw import free_port
from support.syslog_agent import full_spool, listening, rows, settings

from sluice_agent.app import run_agent

READ_BYTES = 64 * 1024


@dataclass
class RecordingRelay:
    """What was sent so far, by connection.

    A client waits while the server does not read: the relay reads no further than it can write.
    """

    server_port: int
    sent: list[bytearray] = field(default_factory=list)
    tasks: "set[asyncio.Task[None]]" = field(default_factory=set)

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.create_task(self._relay(reader, writer)))

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = bytearray()
        self.sent.append(sent)
        _, onward = await asyncio.open_connection("127.0.0.1", self.server_port)
        onward.transport.set_write_buffer_limits(0)
        with suppress(OSError, asyncio.CancelledError):
            while data := await reader.read(READ_BYTES):
                sent += data
                onward.write(data)
                await onward.drain()
        for one in (onward, writer):
            one.close()
            with suppress(OSError):
                await one.wait_closed()


@asynccontextmanager
async def relayed(port: int, server_port: int) -> AsyncIterator[RecordingRelay]:
    """Listen on a port while the context is active."""
    relay = RecordingRelay(server_port)
    server = await asyncio.start_server(relay.connected, "127.0.0.1", port, limit=READ_BYTES)
    try:
        yield relay
    finally:
        server.close()
        for task in relay.tasks:
            task.cancel()
        await asyncio.gather(*relay.tasks)


pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

WANTED = [f"order {n} was accepted: ü" for n in range(5_000)]
BODY = re.compile(rb"order [0-9]+ was accepted: \xc3\xbc")
INPUT = """global(workDirectory="{folder}")
module(load="imfile" mode="polling" pollingInterval="1")
input(type="imfile" File="{log}" Tag="shop:" Severity="error" Facility="local3")
"""
RSYSLOG = blocks_of("docs/send/syslog-to-agent.md")[1].text
FORMAT = 'template="RSYSLOG_SyslogProtocol23Format" TCP_Framing="octet-counted"'
QUEUE = re.compile(r'queue\.\w+="\w+"')
SYSLOG_NG = """@version: 3.38
source s_src {{ file("{log}" follow-freq(1) flags(no-parse) program-override("shop")
  default-facility(local3) default-priority(err)); }};
log {{ source(s_src); destination(d_sluice); flags(flow-control); }};
"""
FAULTS = r"lost message|message lost|[Mm]essages? dropped"
ENVIRONMENT = {"RSYSLOG_DEBUG_TIMEOUTS_TO_STDERR": "on"}
"""With it, rsyslog logs each message that it drops because a queue is full."""
FORMS = {
    "rsyslog-5424": RSYSLOG,
    "rsyslog-default": RSYSLOG.replace(FORMAT, ""),
    "rsyslog-3164": RSYSLOG.replace(FORMAT, 'template="RSYSLOG_TraditionalForwardFormat"'),
    "rsyslog-without-queue": QUEUE.sub("", RSYSLOG),
    "syslog-ng-5424": 'destination d_sluice { syslog("127.0.0.1" port(5514) transport("tcp")); };',
    "syslog-ng-3164": 'destination d_sluice { network("127.0.0.1" port(5514) transport("tcp")); };',
}


def command(name: str, config: Path, folder: Path) -> list[str | Path]:
    if name.startswith("rsyslog"):
        modules = DEBIAN / "usr/lib/x86_64-linux-gnu/rsyslog"
        return [DEBIAN / "usr/sbin/rsyslogd", "-n", "-iNONE", "-M", modules, "-f", config]
    return [
        *(DEBIAN / "usr/sbin/syslog-ng", "--foreground", "--stderr", "--no-caps", "-f", config),
        *("--module-path", DEBIAN / "usr/lib/syslog-ng/3.38"),
        *("-R", folder / "persist", "-p", folder / "pid", "-c", folder / "control"),
    ]


def write_config(name: str, folder: Path, log: Path, port: int) -> Path:
    """Write the configuration of a client, which follows a file."""
    head = INPUT if name.startswith("rsyslog") else SYSLOG_NG
    config = folder / "client.conf"
    config.write_text(
        head.format(folder=folder, log=log) + FORMS[name].replace("5514", str(port)),
        encoding="utf-8",
    )
    return config


@asynccontextmanager
async def receiving(folder: Path, port: int) -> AsyncIterator[RecordingRelay]:
    """Run an agent behind a relay while the context is active."""
    stop, own_port = asyncio.Event(), free_port()
    given = settings(folder, f"tcp://127.0.0.1:{own_port}", batch_records=1_000, drain_s=0.1)
    agent = asyncio.create_task(run_agent(given, stop=stop))
    await listening(own_port, "tcp")
    async with relayed(port, own_port) as relay:
        yield relay
    stop.set()
    await agent


def sent_by(relay: RecordingRelay) -> Counter[str]:
    """Return how often the client has sent each line."""
    return Counter(body.decode() for sent in relay.sent for body in BODY.findall(bytes(sent)))


async def wait_sent(relay: RecordingRelay) -> Counter[str]:
    """Wait until the client sends no more; return what it has sent."""
    before = None
    for _ in range(60):
        found = sent_by(relay)
        if found == before and len(found) >= len(WANTED):
            return found
        before = found
        await asyncio.sleep(2.0)
    return sent_by(relay)


def check_stored(folder: Path, sent: Counter[str]) -> None:
    """Check that the spool contains each line as often as it was sent."""
    records = [one for one in rows(folder) if one[1].get("service.name") == "shop"]
    assert Counter(body for body, _ in records) == sent
    assert {pairs["syslog.facility"] for _, pairs in records} == {"19"}
    assert not any("sluice.error" in pairs for _, pairs in records)


@pytest.mark.parametrize("name", FORMS)
def test_every_line_arrives_once_after_the_spool_was_full(tmp_path: Path, name: str) -> None:
    """The sender waits while the agent does not read, and keeps what it could not send."""
    log, port = tmp_path / "shop.log", free_port()
    log.touch()
    config = write_config(name, tmp_path, log, port)

    async def main() -> Counter[str]:
        async with receiving(tmp_path, port) as relay:
            with program(
                command(name, config, tmp_path), tmp_path / "client.log",
                debian_environment() | ENVIRONMENT, faults=FAULTS,
            ) as client:  # fmt: skip
                log.write_text("".join(f"{line}\n" for line in WANTED))
                await asyncio.sleep(5.0)
                room.append(True)
                sent = await wait_sent(relay)
                assert client.errors() == []
        return sent

    with full_spool() as room:
        sent = asyncio.run(main())
    assert sent == Counter(WANTED)
    check_stored(tmp_path, sent)


@pytest.mark.parametrize("name", ["rsyslog-5424", "rsyslog-without-queue", "syslog-ng-5424"])
def test_no_line_is_lost_while_no_agent_listens(tmp_path: Path, name: str) -> None:
    """The sender is refused for some seconds. With a queue, rsyslog repeats some lines."""
    log, port = tmp_path / "shop.log", free_port()
    log.write_text("".join(f"{line}\n" for line in WANTED))
    config = write_config(name, tmp_path, log, port)

    async def main() -> Counter[str]:
        with program(
            command(name, config, tmp_path), tmp_path / "client.log",
            debian_environment() | ENVIRONMENT, faults=FAULTS,
        ) as client:  # fmt: skip
            await asyncio.sleep(4.0)
            async with receiving(tmp_path, port) as relay:
                sent = await wait_sent(relay)
                assert client.errors() == []
        return sent

    sent = asyncio.run(main())
    assert set(sent) == set(WANTED)
    if name != "rsyslog-5424":
        assert sent == Counter(WANTED)
    check_stored(tmp_path, sent)
