"""Syslog: a fault before or after each write of the gateway, a kill, and a lost answer.

A sender of syslog repeats nothing. The agent has stored its messages when the gateway fails, and
sends the same batch again, also after its own restart: every message is read once.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.constants import settings_with
from support.dying_store import WriteFault, WriteFaultStore
from support.gateway import Running, TestKey, run, running
from support.reconciler_seed import queued_bodies
from support.store_versitygw import free_port

from sluice_agent.app import run_agent
from sluice_agent.sending.signing_key import make_key, principal_entry
from sluice_agent.settings import AgentSettings
from sluice_protocol.authority import Authority
from sluice_reconciler.service import Reconciler
from sluice_store import StoreMode, open_store

HOST = TestKey("other", ("other",))
LINES = [f"message {place}" for place in range(5)]
MESSAGES = b"".join(b"<13>1 2026-01-01T00:00:00Z h a - - - %s\n" % one.encode() for one in LINES)


@dataclass(frozen=True)
class _AgentKey(TestKey):
    """The principal of an agent whose key is in a file."""

    text: str = ""

    @property
    def entry(self) -> str:
        return self.text


def settings(folder: Path, served: Running, **how: Any) -> AgentSettings:
    return settings_with(
        AgentSettings,
        gateway=f"http://127.0.0.1:{served.port}",
        spool=folder / "spool",
        key=folder / "key.pem",
        agent_id="host-1",
        host_metrics_s=0.0,
        batch_age_s=0.05,
        **how,
    )


async def send(port: int) -> None:
    """Send the messages as soon as the agent listens."""
    for _ in range(1000):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        writer.write(MESSAGES)
        writer.write_eof()
        assert await reader.read() == b""  # the agent has read all of it
        writer.close()
        return
    raise AssertionError("the agent did not listen")


async def receive_with(folder: Path, store: WriteFaultStore, key: TestKey) -> None:
    """Receive the messages with a gateway that has a fault; the agent stops after the fault."""
    async with running(folder / "a", HOST, key, store=store, upload_time_s_max=0.5) as served:
        port, stop = free_port(), asyncio.Event()
        given = settings(folder, served, syslog=(f"tcp://127.0.0.1:{port}",), drain_s=0.1)
        agent = asyncio.create_task(run_agent(given, stop=stop))
        await send(port)
        async with asyncio.timeout(60):
            await store.reached.wait()
        stop.set()
        await agent


@pytest.mark.daily(3)
@pytest.mark.parametrize("kills", [False, True], ids=["fails", "killed"])
@pytest.mark.parametrize("applies", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("nth", [1, 2], ids=["blob", "manifest"])
def test_a_fault_at_every_write_loses_and_doubles_nothing(
    tmp_path: Path, nth: int, applies: bool, kills: bool
) -> None:
    text = principal_entry("host-1", "host-1", make_key(tmp_path / "key.pem"))
    key = _AgentKey("host-1", ("host-1",), text=text)

    async def main() -> None:
        async with open_store(f"file://{tmp_path}/store", StoreMode.CREATE) as inner:
            fault = WriteFault(nth=nth, applies=applies, kills=kills)
            await receive_with(tmp_path, WriteFaultStore(inner, fault), key)
            async with running(tmp_path / "b", HOST, key, store=inner) as served:
                rest = settings(tmp_path, served, once=True, paths=(f"{tmp_path}/none*",))
                await run_agent(rest, stop=asyncio.Event())
            await Reconciler(inner, Authority(authority_id="A", lanes=2)).once()
            assert await queued_bodies(inner) == Counter(dict.fromkeys(LINES, 1))

    run(main())
