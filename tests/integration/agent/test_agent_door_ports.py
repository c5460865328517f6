"""OTLP over gRPC and Fluent's forward protocol at a running agent: success means durable."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from fluent.sender import FluentSender
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from support.agent_doors import BODY, Client, chunk, export, served, spooled, with_ports
from support.agent_gateway import GatewayDouble
from support.door_bodies import FORWARD, S, pack
from support.forward_door import connect
from support.store_versitygw import free_port

from sluice_agent.settings import WhenFull
from sluice_agent.spool.batching import Batcher
from sluice_agent.spool.spool import Spool

PROTOBUF = {"Content-Type": "application/x-protobuf"}


# -- success is durable ------------------------------------------------------------------


@pytest.mark.parametrize("mode", FORWARD)
def test_an_ack_is_durable_and_a_chunk_that_is_sent_again_adds_nothing(
    tmp_path: Path, mode: str
) -> None:
    """Also when the agent was restarted in between."""
    counts = []

    async def check(client: Client) -> None:
        for _ in range(2):
            fluent = await connect(client.forward_port)
            await fluent.send(FORWARD[mode])
            assert (await fluent.receive())["ack"] in ("c1", b"c1")

    for _ in range(2):
        served(tmp_path, check, **with_ports())
        counts.append(spooled(tmp_path))
    assert counts == ([1, 1] if mode == "message" else [6, 6])


def test_an_ok_is_durable_and_a_retry_over_either_transport_adds_nothing(tmp_path: Path) -> None:
    async def check(client: Client) -> None:
        for _ in range(2):
            code, answer = await export(client)
            assert code is grpc.StatusCode.OK
            assert ExportLogsServiceResponse.FromString(answer) == ExportLogsServiceResponse()
        assert (await client.post("/v1/logs", BODY, PROTOBUF)).status == 200

    for _ in range(2):
        served(tmp_path, check, **with_ports())
        assert spooled(tmp_path) == 2


def test_neither_is_answered_before_its_batch_is_durable(tmp_path: Path) -> None:
    """The batch is committed when the test allows it."""
    allowed = asyncio.Event()
    commit = Batcher._commit

    async def delayed(self: Batcher, sealed: Any) -> Any:
        await allowed.wait()
        return await commit(self, sealed)

    async def check(client: Client) -> None:
        call = asyncio.create_task(export(client))
        fluent = await connect(client.forward_port)
        await fluent.send(chunk("c"))
        acked = asyncio.create_task(fluent.receive())
        await asyncio.wait((call, acked), timeout=0.5)
        assert not call.done()
        assert not acked.done()
        allowed.set()
        assert (await call)[0] is grpc.StatusCode.OK
        assert await acked == {"ack": "c"}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batcher, "_commit", delayed)
        served(tmp_path, check, **with_ports())


def test_equal_messages_without_a_chunk_are_stored_each_time(tmp_path: Path) -> None:
    """Their client sends nothing again; a time of whole seconds does not tell them apart."""
    message = pack(["t", S, {"log": "tick"}])

    async def check(client: Client) -> None:
        for count in (1, 2, 3):
            fluent = await connect(client.forward_port)
            await fluent.send(message)
            for _ in range(200):
                if gateway.bodies().count(b"tick") == count:
                    break
                await asyncio.sleep(0.05)
            assert gateway.bodies().count(b"tick") == count

    with GatewayDouble() as gateway:
        served(tmp_path, check, **with_ports(gateway=gateway.url))


# -- later -------------------------------------------------------------------------------


def test_a_full_spool_is_later_in_the_form_of_each_protocol(tmp_path: Path) -> None:
    async def check(client: Client) -> None:
        code, detail = await export(client)
        assert (code, b"spool is full" in detail) == (grpc.StatusCode.UNAVAILABLE, True)
        fluent = await connect(client.forward_port)
        await fluent.send(chunk("c"))
        assert await fluent.receive() is None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spool, "fits", lambda *_: False)
        served(tmp_path, check, **with_ports(when_full=WhenFull.DROP_NEWEST))
    assert spooled(tmp_path) == 0


def test_messages_without_a_chunk_wait_for_room(tmp_path: Path) -> None:
    has_room = False

    async def check(client: Client) -> None:
        nonlocal has_room
        fluent = await connect(client.forward_port)
        await fluent.send(pack(["t", S, {"log": "line 0"}]))  # there is no room for its batch
        for _ in range(200):
            if (await export(client))[0] is grpc.StatusCode.UNAVAILABLE:
                break
        other = await connect(client.forward_port)
        await other.send(pack(["t", S, {"log": "line 1"}]))  # refused until there is room
        await asyncio.sleep(1.0)
        assert not fluent.reader.at_eof()
        assert not other.reader.at_eof()
        has_room = True
        for _ in range(200):
            if {b"line 0", b"line 1"} <= {*gateway.bodies()}:
                break
            await asyncio.sleep(0.05)
        assert Counter(gateway.bodies())[b"line 0"] == Counter(gateway.bodies())[b"line 1"] == 1

    with pytest.MonkeyPatch.context() as patch, GatewayDouble() as gateway:
        patch.setattr(Spool, "fits", lambda *_: has_room)
        served(tmp_path, check, **with_ports(gateway=gateway.url))


def test_a_chunk_that_is_sent_again_while_the_spool_is_full_joins_the_first(
    tmp_path: Path,
) -> None:
    has_room = False

    async def check(client: Client) -> None:
        nonlocal has_room
        first = await connect(client.forward_port)
        await first.send(chunk("c"))
        await asyncio.sleep(0.3)  # there is no room for its batch
        first.writer.transport.abort()
        second = await connect(client.forward_port)
        await second.send(chunk("c"))
        assert await second.receive() is None
        has_room = True
        for _ in range(100):
            third = await connect(client.forward_port)
            await third.send(chunk("c"))
            if await third.receive() == {"ack": "c"}:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("no ack")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spool, "fits", lambda *_: has_room)
        served(tmp_path, check, **with_ports())
    assert spooled(tmp_path) == 1


# -- metrics and the end -----------------------------------------------------------------


def test_metrics_count_messages_and_connections(tmp_path: Path) -> None:
    health = f"127.0.0.1:{free_port()}"

    async def check(client: Client) -> None:
        await export(client)
        fluent = await connect(client.forward_port)
        await fluent.send(chunk("c"))
        await fluent.receive()
        refused = await connect(client.forward_port)
        await refused.send(b"\xc1")
        await refused.receive()
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{health}/metrics") as answer,
        ):
            lines = (await answer.text()).splitlines()
        for line in (
            'sluice_agent_door_requests_total{door="otlp",result="new"} 1.0',
            'sluice_agent_door_requests_total{door="forward",result="new"} 1.0',
            'sluice_agent_door_requests_total{door="forward",result="bad_request"} 1.0',
            'sluice_agent_door_records_total{door="forward"} 1.0',
            "sluice_agent_door_connections 1.0",
        ):
            assert line in lines

    served(tmp_path, check, **with_ports(health=health))


def test_what_was_received_before_the_end_is_answered(tmp_path: Path) -> None:
    """A chunk that waits for its batch, and messages that no client waits for."""

    async def check(client: Client) -> None:
        named = await connect(client.forward_port)
        unnamed = await connect(client.forward_port)
        idle = await connect(client.forward_port)
        await named.send(chunk("c"))
        for number in range(20):
            await unnamed.send(pack(["t", S + number, {"log": f"line {number}"}]))
        await asyncio.sleep(0.5)
        client.stop.set()
        assert await named.receive() == {"ack": "c"}
        for fluent in (named, unnamed, idle):
            assert await fluent.receive() is None
        await client.agent

    served(tmp_path, check, **with_ports(batch_age_s=1.0))
    assert spooled(tmp_path) == 1 + 20


def test_a_call_that_waits_for_its_batch_is_answered_at_the_end(tmp_path: Path) -> None:
    async def check(client: Client) -> None:
        call = asyncio.create_task(export(client))
        await asyncio.sleep(0.5)
        client.stop.set()
        assert (await call)[0] is grpc.StatusCode.OK
        await client.agent

    served(tmp_path, check, **with_ports(batch_age_s=1.5))
    assert spooled(tmp_path) == 2


def test_the_real_client_without_acks(tmp_path: Path) -> None:
    def send(port: int) -> None:
        sender = FluentSender("app", port=port, nanosecond_precision=True)
        for number in range(200):
            assert sender.emit("log", {"message": f"line {number}"})
        sender.close()

    async def check(client: Client) -> None:
        await asyncio.to_thread(send, client.forward_port)
        for _ in range(200):
            if len(gateway.bodies()) >= 200:
                break
            await asyncio.sleep(0.05)

    with GatewayDouble() as gateway:
        served(tmp_path, check, **with_ports(gateway=gateway.url))
        assert sorted(gateway.bodies()) == sorted(b"line %d" % number for number in range(200))
