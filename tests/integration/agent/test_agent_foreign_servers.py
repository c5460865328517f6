"""An agent whose uploads reach another server than a gateway, on real sockets."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from support.agent_gateway import GatewayDouble, Scripted, Seen
from support.constants import settings_with
from support.store_versitygw import free_port

from sluice_agent.app import run_agent
from sluice_agent.settings import AgentSettings
from sluice_agent.spool.parked import list_parked
from sluice_cli.upload import upload

PAGE = Scripted(404, headers={"Content-Type": "text/html"}, body=b"<html>no such page</html>")


async def _get(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


async def _until(is_true: Callable[[], bool]) -> None:
    for _ in range(1200):
        if is_true():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not become true within a minute")


def test_a_page_of_a_proxy_is_reported_and_parks_nothing(tmp_path: Path) -> None:
    """`/readyz` names the address until a gateway responds; then every line is accepted."""
    lines = [b"line %d" % n for n in range(30)]
    (tmp_path / "app.log").write_bytes(b"\n".join(lines) + b"\n")
    behind_proxy = [True]

    def script(_: int, __: Seen) -> Scripted | None:
        return PAGE if behind_proxy[0] else None

    async def main(gateway: GatewayDouble) -> None:
        port, stop = free_port(), asyncio.Event()
        given = settings_with(
        AgentSettings,
            gateway=gateway.url, spool=tmp_path / "s", agent_id="host-1", host_metrics_s=0,
            paths=(str(tmp_path / "app.log"),), batch_age_s=0.05, batch_records=3, drain_s=0.2,
            health=f"127.0.0.1:{port}",
        )  # fmt: skip
        agent = asyncio.create_task(run_agent(given, stop=stop))
        await _until(lambda: len(gateway.seen) >= 4)
        status, reason = await _get(port, "/readyz")
        assert status == 503
        assert f"{gateway.url}/v1/batches responded with 404 and text/html" in reason
        assert "sluice_agent_misdirected 1.0" in (await _get(port, "/metrics"))[1]
        behind_proxy[0] = False
        await _until(lambda: sorted(gateway.bodies()) == sorted(lines))
        assert (await _get(port, "/readyz"))[0] == 200
        stop.set()
        result = await agent
        assert (result.parked, list_parked(tmp_path / "s")) == (0, ())

    with GatewayDouble(script=script) as gateway:
        asyncio.run(main(gateway))


def test_upload_names_a_server_that_is_not_a_gateway(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = tmp_path / "one.lmbatch"
    frame.write_bytes(b"frame")
    with GatewayDouble() as gateway:
        assert upload(frame, gateway=f"{gateway.url}/typo", json=True) == 1
        report = json.loads(capsys.readouterr().out)
        assert (report["status"], report["reaction"]) == (404, "sendagain")
        assert report["problem"].startswith(
            f"{gateway.url}/typo/v1/batches responded with 404 and text/plain, which is not the"
        )
        assert upload(frame, gateway=gateway.url, json=True) == 1
        assert json.loads(capsys.readouterr().out)["problem"] == ""
