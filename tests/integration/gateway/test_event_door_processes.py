"""Splunk, Firehose and Fluent clients through real gateways, of which one is killed on the way."""

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fluent.sender import FluentSender
from support.door_fleet import Fleet, fleet
from support.event_bodies import S, firehose, pack
from support.forward_client import close_clients, connect
from support.gateway import GatewayProcess

REQUESTS = 24
LINES = [f"line {place:03}" for place in range(REQUESTS)]


def post(running: Fleet, path: str, body: bytes, headers: Mapping[str, str]) -> None:
    """Send the same request until it is a success."""
    fields = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"http://{running.address}{path}", body, fields)
    for _ in range(200):
        with (
            suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(request, timeout=20) as answer,
        ):
            assert answer.status == 200
            return
        threading.Event().wait(0.1)
    raise AssertionError("the gateways did not accept the request")


def disturb(running: Fleet, place: int) -> None:
    """Lose responses, and kill a gateway half-way; another one starts."""
    if place % 5 == 0:
        running.balancer.lost_responses += 1
    if place == REQUESTS // 2:
        running.kill()
        running.start()


def test_events_of_splunk_arrive_once(tmp_path: Path) -> None:
    with fleet(tmp_path, "hec") as running:
        for place, line in enumerate(LINES):
            disturb(running, place)
            event = json.dumps({"time": S + place, "host": "web-1", "event": line}).encode()
            fields = {"Authorization": f"Splunk {running.token}"}
            post(running, "/services/collector/event", event, fields)
        assert running.bodies() == LINES


def test_deliveries_of_firehose_arrive_once(tmp_path: Path) -> None:
    with fleet(tmp_path, "firehose") as running:
        for place, line in enumerate(LINES):
            disturb(running, place)
            fields = {
                "X-Amz-Firehose-Access-Key": running.token,
                "X-Amz-Firehose-Request-Id": f"request-{place}",
            }
            post(running, "/v1/firehose", firehose(line.encode()), fields)
        assert running.bodies() == LINES


def forward_port(gateway: GatewayProcess) -> int:
    for line in gateway.log.read_text(encoding="utf-8").splitlines():
        if '"forward_listening"' in line:
            return int(json.loads(line)["port"])
    raise AssertionError("the gateway has no port for forward")


def shared_key(running: Fleet) -> str:
    entry = running.sender.token.principal
    return entry.partition('shared_key = "')[2].partition('"')[0]


async def send_chunk(running: Fleet, message: bytes, place: int) -> None:
    """Send a chunk with a new connection to any gateway, until it is acknowledged."""
    for attempt in range(200):
        gateway = running.gateways[(place + attempt) % len(running.gateways)]
        with suppress(OSError, TimeoutError):
            client = await connect(forward_port(gateway))
            pong = await client.log_in(shared_key(running))
            if pong is not None and pong[1]:
                await client.send(message)
                if await client.receive() == {"ack": f"chunk-{place}"}:
                    return
        await asyncio.sleep(0.1)
    raise AssertionError("no gateway acknowledged the chunk")


def test_chunks_of_fluent_arrive_once(tmp_path: Path) -> None:
    """Every third chunk is sent twice: its first ack is not read."""

    async def send(running: Fleet) -> None:
        for place, line in enumerate(LINES):
            message = pack(["app", [[S + place, {"log": line}]], {"chunk": f"chunk-{place}"}])
            for _ in range(2 if place % 3 == 0 else 1):
                await send_chunk(running, message, place)
            if place == REQUESTS // 2:
                running.kill()
                running.start()
        await close_clients()

    with fleet(tmp_path, "forward", flags=("--forward-listen", "127.0.0.1:0")) as running:
        asyncio.run(send(running))
        assert running.bodies() == LINES


def test_the_real_client_of_fluent_sends_to_a_real_gateway(tmp_path: Path) -> None:
    """A gateway that stops has accepted what it has read from a client that has ended."""
    flags = ("--forward-listen", "127.0.0.1:0", "--forward-principal", "shop")
    with fleet(tmp_path, "forward", count=1, flags=flags) as running:
        sender = FluentSender("app", port=forward_port(running.gateways[0]))
        for line in LINES:
            assert sender.emit("log", {"message": line})
        sender.close()
        for _ in range(300):
            if running.bodies() == LINES:
                return
            threading.Event().wait(0.1)
        assert running.bodies() == LINES
