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
from support.door_bodies import S, firehose, pack
from support.door_fleet import Fleet, fleet
from support.forward_door import close_clients, connect
from support.gateway import GatewayProcess

REQUESTS = 24
DOORS = ("splunk", "firehose", "fluent")
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


def post_event(running: Fleet, place: int, line: str) -> None:
    """Send an event as Splunk's clients do."""
    event = json.dumps({"time": S + place, "host": "web-1", "event": line}).encode()
    post(running, "/services/collector/event", event, {"Authorization": f"Splunk {running.token}"})


def post_delivery(running: Fleet, place: int, line: str) -> None:
    """Send a request of Firehose with one record."""
    fields = {
        "X-Amz-Firehose-Access-Key": running.token,
        "X-Amz-Firehose-Request-Id": f"request-{place}",
    }
    post(running, "/v1/firehose", firehose(line.encode()), fields)


def forward_port(gateway: GatewayProcess) -> int:
    return int(gateway.events("forward_listening")[0]["port"])


async def send_chunk(running: Fleet, message: bytes, place: int) -> None:
    """Send a chunk with a new connection to any gateway, until it is acknowledged."""
    for attempt in range(200):
        gateway = running.gateways[(place + attempt) % len(running.gateways)]
        with suppress(OSError, TimeoutError):
            client = await connect(forward_port(gateway))
            pong = await client.log_in(running.shared_key)
            if pong is not None and pong[1]:
                await client.send(message)
                if await client.receive() == {"ack": f"chunk-{place}"}:
                    return
        await asyncio.sleep(0.1)
    raise AssertionError("no gateway acknowledged the chunk")


async def send_to_every_door(running: Fleet) -> None:
    """Send each line to each door; lose responses, and kill a gateway half-way.

    Every third chunk is sent twice: its first ack is not read.
    """
    for place, line in enumerate(LINES):
        if place == REQUESTS // 2:
            running.kill()
            running.start()
        for door, send in (("splunk", post_event), ("firehose", post_delivery)):
            running.balancer.lost_responses += place % 5 == 0
            await asyncio.to_thread(send, running, place, f"{door} {line}")
        chunk = {"chunk": f"chunk-{place}"}
        message = pack(["app", [[S + place, {"log": f"fluent {line}"}]], chunk])
        for _ in range(2 if place % 3 == 0 else 1):
            await send_chunk(running, message, place)
    await close_clients()


def test_requests_of_every_door_arrive_once(tmp_path: Path) -> None:
    flags = ("--forward-listen", "127.0.0.1:0")
    with fleet(tmp_path, "hec", "firehose", "forward", flags=flags) as running:
        asyncio.run(send_to_every_door(running))
        found = running.bodies()
    assert found == sorted(f"{door} {line}" for door in DOORS for line in LINES)


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
