"""A running agent that receives syslog, and what it has stored."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.constants import settings_with
from support.store_versitygw import free_port

from sluice_agent.app import run_agent
from sluice_agent.settings import AgentSettings, SpoolSettings
from sluice_agent.spool.disk import RealDisk
from sluice_agent.spool.spool import Spool
from sluice_protocol.columns import LogColumns
from sluice_protocol.frame import Frame, decode_frame
from sluice_protocol.ndjson import attribute_rows

Check = Callable[[int], Awaitable[None]]
Row = tuple[str, dict[str, str]]


def settings(tmp_path: Path, *syslog: str, **how: Any) -> AgentSettings:
    given = {"host_metrics_s": 0.0, "batch_age_s": 0.05, "drain_s": 1.0, **how}
    return settings_with(
        AgentSettings,
        gateway="http://127.0.0.1:9",
        spool=tmp_path / "s",
        agent_id="host-1",
        syslog=syslog,
        **given,
    )


def served(tmp_path: Path, transport: str, check: Check, *, files: str = "", **how: Any) -> None:
    """Run an agent with one syslog address until `check` has ended."""

    async def main() -> None:
        port, stop = free_port(), asyncio.Event()
        given = settings(tmp_path, f"{transport}://127.0.0.1:{port}{files}", **how)
        agent = asyncio.create_task(run_agent(given, stop=stop))
        await listening(port, transport)
        try:
            await check(port)
        finally:
            stop.set()
            await agent

    asyncio.run(main())


async def listening(port: int, transport: str) -> None:
    """Wait until the port is bound; a connection would count as a sender."""
    table = Path("/proc/net/udp" if transport == "udp" else "/proc/net/tcp")
    for _ in range(1000):
        text = await asyncio.to_thread(table.read_text)
        if re.search(rf":{port:04X} 00000000:0000", text):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the agent did not listen")


def frames(tmp_path: Path) -> list[Frame]:
    """Return the frames in the spool."""
    spool = Spool(
        SpoolSettings(directory=tmp_path / "s", agent_id="host-1"), RealDisk(), boot_id="next"
    )
    found = [decode_frame(spool.read(batch)) for batch in spool.ready()]
    spool.close()
    return found


def rows(tmp_path: Path) -> list[Row]:
    """Return body and attributes of every record in the spool."""
    found: list[Row] = []
    for frame in frames(tmp_path):
        columns = frame.columns
        assert isinstance(columns, LogColumns)
        pairs = attribute_rows(columns.attributes, len(columns))
        bodies = [body.decode() for body in columns.body.slices()]
        found += zip(bodies, map(dict, pairs), strict=True)
    return found


def bodies(tmp_path: Path) -> list[str]:
    return [body for body, _ in rows(tmp_path)]


@contextlib.contextmanager
def full_spool() -> Iterator[list[bool]]:
    """Let the spool have no room until the list contains True."""
    room: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spool, "fits", lambda *_: any(room))
        yield room
