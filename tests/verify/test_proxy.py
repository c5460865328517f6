"""The proxy of a run forwards what a client sent, of any size, except during a fault."""

import hashlib
import random
from io import BytesIO
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from verify.proxy import FaultyProxy, serving

from sluice_cli.verify.recording import Recorder
from sluice_protocol.system_clock import SystemClock

BODY = random.Random(7).randbytes(3 << 20)
"""Three times what `Request.read` of aiohttp accepts."""


@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
async def test_a_body_is_forwarded_once_and_unchanged(tmp_path: Path) -> None:
    received: list[str] = []

    async def receive(request: web.BaseRequest) -> web.Response:
        received.append(hashlib.sha256(await request.content.read()).hexdigest())
        return web.Response(text=received[-1])

    runner = web.ServerRunner(web.Server(receive))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = int(runner.addresses[0][1])
    sent = hashlib.sha256(BODY).hexdigest()
    with Recorder(tmp_path / "history", SystemClock()) as recorder:
        proxy = FaultyProxy("balancer", lambda: [port], recorder, random.Random(1))
        async with serving(proxy), aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{proxy.port}/one"
            async with session.post(url, data=BytesIO(BODY)) as response:
                assert (response.status, await response.text()) == (200, sent)
            proxy.pending["reset_before_forwarding"] = 1
            with pytest.raises(aiohttp.ClientError):
                await session.post(url, data=BytesIO(BODY))
            assert recorder.firings["balancer_reset_before_forwarding"] == 1
    await runner.cleanup()
    assert received == [sent]
