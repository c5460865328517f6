"""OTLP over HTTP into a running agent: 200 means durable."""

import asyncio
import gzip
import json
from pathlib import Path

import aiohttp
from support.agent_gateway import GatewayDouble
from support.constants import settings_with
from support.otlp_requests import LOG_REQUEST
from support.store_versitygw import free_port

from sluice_agent.app import run_agent
from sluice_agent.settings import AgentSettings, SpoolSettings
from sluice_agent.spool.disk import RealDisk
from sluice_agent.spool.spool import Spool

LOGS = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "hello"}}]}]}]}
METRICS = {
    "resourceMetrics": [
        {"scopeMetrics": [{"metrics": [{"name": "m", "gauge": {"dataPoints": [{"asInt": "3"}]}}]}]}
    ]
}


TRACES = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {"spans": [{"name": "op", "startTimeUnixNano": "5", "traceId": "0a" * 16}]}
            ]
        }
    ]
}


def settings(tmp_path: Path, gateway: str, port: int) -> AgentSettings:
    return settings_with(
        AgentSettings, gateway=gateway, spool=tmp_path / "s", agent_id="host-1",
        doors=("otlp",), doors_listen=f"127.0.0.1:{port}", host_metrics_s=0, batch_age_s=0.05,
        drain_s=0.5,
    )  # fmt: skip


async def post(port: int, path: str, **how: object) -> tuple[int, dict]:
    async with aiohttp.ClientSession() as session:
        for _ in range(200):
            try:
                async with session.post(f"http://127.0.0.1:{port}{path}", **how) as answer:
                    is_json = answer.content_type == "application/json" and await answer.read()
                    return answer.status, await answer.json() if is_json else {}
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.02)
    raise AssertionError("the receiver did not start")


def test_all_signals_are_accepted(tmp_path: Path) -> None:
    """Each is sent in separate frames; bombs and invalid bodies are rejected."""

    async def main(gateway: GatewayDouble) -> None:
        port, stop = free_port(), asyncio.Event()
        agent = asyncio.create_task(run_agent(settings(tmp_path, gateway.url, port), stop=stop))
        assert await post(port, "/v1/logs", json=LOGS) == (200, {})
        assert await post(port, "/v1/metrics", json=METRICS) == (200, {})
        assert await post(port, "/v1/traces", json=TRACES) == (200, {})
        assert (await post(port, "/v1/logs", json=[]))[0] == 400
        protobuf = {"Content-Type": "application/x-protobuf"}
        assert (await post(port, "/v1/logs", data=b"x", headers=protobuf))[0] == 400
        packed = {**protobuf, "Content-Encoding": "gzip"}
        body = gzip.compress(LOG_REQUEST.SerializeToString())
        assert await post(port, "/v1/logs", data=body, headers=packed) == (200, {})
        bomb = gzip.compress(bytes(100 << 20))
        assert (await post(port, "/v1/logs", data=bomb, headers=packed))[0] == 413
        text = {"Content-Type": "application/x-ndjson"}
        assert (await post(port, "/v1/logs", data=b"x", headers=text))[0] == 415
        stop.set()
        outcome = await agent
        assert (outcome.sealed_records, outcome.waiting) == (7, 0)

    with GatewayDouble() as gateway:
        asyncio.run(main(gateway))
        assert [f.envelope.kind for f in gateway.frames()] == ["logs", "metrics", "spans", "logs"]
        assert gateway.bodies()[:2] == [b"hello", "it broke: ü".encode()]


async def test_200_means_durable(tmp_path: Path) -> None:
    """Without any gateway the response is 200, and the record is in the spool."""
    port, stop = free_port(), asyncio.Event()
    given = settings(tmp_path, "http://127.0.0.1:9", port)
    agent = asyncio.create_task(run_agent(given, stop=stop))
    assert (await post(port, "/v1/logs", data=json.dumps(LOGS), headers={
        "Content-Type": "application/json; charset=utf-8"}))[0] == 200  # fmt: skip
    assert len(list((tmp_path / "s" / "ready").glob("*.batch"))) == 1
    stop.set()
    assert (await agent).waiting == 1
    reopened = Spool(
        SpoolSettings(directory=tmp_path / "s", agent_id="host-1"), RealDisk(), boot_id="next"
    )
    assert len(reopened.ready()) == 1
    reopened.close()
