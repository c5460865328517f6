"""A client of Fluent's forward protocol without a shared key is refused, counted and logged."""

import asyncio
from pathlib import Path

from structlog.testing import capture_logs
from support.door_bodies import S, pack
from support.forward_door import serving


async def test_a_client_without_a_key_is_counted_and_logged_once_a_minute(tmp_path: Path) -> None:
    """It does not read the response: `emit()` of fluent-logger returns True."""
    async with serving(tmp_path, forward_principal="") as (served, port):
        with capture_logs() as logs:
            for _ in range(3):
                async with asyncio.timeout(15):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(pack(["t", S, {"log": "lost"}]))
                    await reader.read()
                    writer.close()
        refused = [one for one in logs if one["event"] == "door_clients_refused"]
        assert [one["refusals"] for one in refused] == [1]
        assert refused[0]["reason"] == "it sent no key"
        exact = [one["reason"] for one in logs if one["event"] == "request_refused"]
        assert len(exact) == 3
        assert "no PING" in exact[0]
        labels = {"door": "forward", "outcome": "unauthenticated"}
        registry = served.gateway.uploads.metrics.registry
        assert registry.get_sample_value("sluice_door_requests_total", labels) == 3
