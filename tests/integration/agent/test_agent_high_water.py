"""A real agent reports its high-water mark to a real gateway."""

import asyncio
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

from support.constants import command_with_constants
from support.gateway import CountingStore, TestKey, bodies_under, run, running
from support.local_deployment import clean_environment
from support.sluice_process import SluiceProcess

from sluice_agent.sending.signing_key import make_key, principal_entry
from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.keys import ACCEPTED, HIGH_WATER, parse_accepted_key
from sluice_protocol.manifests import HighWaterMark, decode_accepted, decode_record
from sluice_protocol.outcomes import CreateOutcome
from sluice_protocol.units import Digest, ObjectKey
from sluice_store import StoreMode, open_store

LINES = 5000
SEALED_S_MAX = 60.0
QUIET: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


class OneAcceptance(CountingStore):
    """A store that accepts the manifest of the first batch and fails all later ones."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.accepted = asyncio.Event()

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        if not key.startswith(ACCEPTED):
            return await super().create(key, body, sha256=sha256)
        if parse_accepted_key(key).seq_start != 0:
            raise StoreUnavailable("create", key, "out of reach")
        outcome = await super().create(key, body, sha256=sha256)
        self.accepted.set()
        return outcome


def test_an_agent_with_a_backlog_reports_its_high_water_mark(tmp_path: Path) -> None:
    """Of many sealed batches one is accepted; its high-water mark is the last sealed number."""
    url = f"file://{tmp_path}/store"
    lines = [f"{n} {sha256(b'%d' % n).hexdigest()}\n" for n in range(LINES)]
    (tmp_path / "app.log").write_text("".join(lines))
    key = make_key(tmp_path / "key.pem")

    async def main() -> None:
        async with open_store(url, StoreMode.CREATE) as inner:
            store = OneAcceptance(inner)
            async with running(tmp_path, TestKey("op", ("op",)), store=store) as served:
                served.gateway.settings.principals.write_text(
                    principal_entry("host-1", "host-1", key)
                )
                principals = served.gateway.uploads.principals
                assert [principals.reload() for _ in range(2)] == [False, True]
                await until_accepted(tmp_path, served.port, store)
                assert await served.gateway.uploads.high_water.flush() == 1

    run(main())
    marks = asyncio.run(bodies_under(url, HIGH_WATER))
    accepted = asyncio.run(bodies_under(url, ACCEPTED))
    (manifest,) = (decode_accepted(ObjectKey(at), body) for at, body in accepted.items())
    (mark,) = (decode_record(ObjectKey(at), body, HighWaterMark) for at, body in marks.items())
    assert (mark.agent_id, mark.boot_id) == (manifest.agent_id, manifest.boot_id)
    assert manifest.seq_end < mark.seq_end == LINES - 1


async def until_accepted(folder: Path, port: int, store: OneAcceptance) -> None:
    """Seal everything without a gateway, then run the agent until one batch is accepted."""
    agent = (
        *command_with_constants(
            "sluice_agent.settings:AgentSettings.batch_bytes=20000",
            "sluice_agent.settings:AgentSettings.batch_age_s=0.05",
        ),
        *("agent", "run", "--key", "key.pem"),
        *("--agent-id", "host-1", "--spool", "spool", "--paths", str(folder / "app.log")),
        *("--host-metrics-s", "0"),
    )
    away = (*agent, "--gateway", "http://127.0.0.1:1")
    there = (*agent, "--gateway", f"http://127.0.0.1:{port}")
    sealing = SluiceProcess(away, cwd=folder, env=clean_environment(), **QUIET)
    try:
        await until_sealed(folder / "spool" / "ready")
    finally:
        sealing.kill()
        sealing.wait()
    sending = SluiceProcess(there, cwd=folder, env=clean_environment(), **QUIET)
    try:
        await asyncio.wait_for(store.accepted.wait(), 20)
        await asyncio.sleep(0.5)  # the response, and the high-water mark written after it
    finally:
        sending.kill()
        sending.wait()


async def until_sealed(ready: Path) -> None:
    """Wait until several batches are sealed and no further one appears.

    Raises:
        TimeoutError: The agent does not seal them in time.
    """
    seen, since = 0, 0
    async with asyncio.timeout(SEALED_S_MAX):
        while seen < 2 or since < 20:
            await asyncio.sleep(0.05)
            now = count_in(ready)
            seen, since = now, since + 1 if now == seen else 0


def count_in(folder: Path) -> int:
    return sum(1 for _ in folder.glob("*")) if folder.exists() else 0
