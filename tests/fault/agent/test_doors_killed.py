"""The agent's doors, killed with SIGKILL at random points: a client repeats what had no answer."""

import json
import logging
import random
import socket
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

import msgpack
import pytest
from support.agent_gateway import GatewayDouble
from support.constants import command_with_constants
from support.repetitions import times
from support.sluice_process import SluiceProcess
from support.store_versitygw import free_port

TIME_NS = 1_790_000_000_000_000_000
TIME_S = TIME_NS // 10**9
LINES = 20
REPEATED_S = 60
EXPORTER = logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:opentelemetry.*")


class Sender(threading.Thread):
    """Sends requests in order, each until it is answered with a success."""

    def __init__(self, port: int, requests: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.requests = requests
        self.accepted: list[bytes] = []
        self.repeated = 0

    def run(self) -> None:
        for number in range(self.requests):
            lines = [f"request {number} line {line}" for line in range(LINES)]
            self.send(number, lines)
            self.accepted += [line.encode() for line in lines]

    def send(self, number: int, lines: list[str]) -> None:
        until = time.monotonic() + REPEATED_S
        while not self.is_accepted(number, lines) and time.monotonic() < until:
            self.repeated += 1
            time.sleep(0.02)

    def is_accepted(self, number: int, lines: list[str]) -> bool:
        raise NotImplementedError


class HttpSender(Sender):
    """Sends to the door `json`."""

    def is_accepted(self, number: int, lines: list[str]) -> bool:
        records = ({"time": TIME_NS + number, "message": line} for line in lines)
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/ingest",
            "\n".join(map(json.dumps, records)).encode(),
            headers={"Content-Type": "application/x-ndjson"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return bool(answer.status == 200)
        except (OSError, HTTPException):
            return False


class ForwardSender(Sender):
    """Sends to the door `forward` with acks, each chunk on a new connection."""

    def is_accepted(self, number: int, lines: list[str]) -> bool:
        entries = [[TIME_S, {"message": line}] for line in lines]
        chunk = f"chunk {number}"
        unpacker = msgpack.Unpacker(raw=False)
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
                connection.sendall(msgpack.packb(["app", entries, {"chunk": chunk}]))
                while data := connection.recv(4096):
                    unpacker.feed(data)
                    for answer in unpacker:
                        return bool(answer == {"ack": chunk})
        except OSError:
            return False
        return False


class SdkSender(Sender):
    """Sends to the door `otlp` over gRPC by the OpenTelemetry SDK, which repeats requests."""

    def run(self) -> None:
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import (  # noqa: PLC0415
            OTLPLogExporter,
        )
        from opentelemetry.sdk._logs import LoggerProvider  # noqa: PLC0415 - collection is faster
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor  # noqa: PLC0415
        from support.otel_logging import logger_of  # noqa: PLC0415

        repeats = _Repeats(self)
        EXPORTER.addHandler(repeats)
        exporter = OTLPLogExporter(f"127.0.0.1:{self.port}", insecure=True, timeout=REPEATED_S)
        provider = LoggerProvider()
        provider.add_log_record_processor(
            BatchLogRecordProcessor(exporter, schedule_delay_millis=1_000_000)
        )
        self.provider, self.logger = provider, logger_of(provider)
        super().run()
        provider.shutdown()
        EXPORTER.removeHandler(repeats)

    def send(self, number: int, lines: list[str]) -> None:
        for line in lines:
            self.logger.info("%s", line)
        self.provider.force_flush(REPEATED_S * 1000)


class _Repeats(logging.Handler):
    """Counts the warnings of the exporter before it sends a request again."""

    def __init__(self, sender: Sender) -> None:
        super().__init__(logging.WARNING)
        self._sender = sender

    def emit(self, record: logging.LogRecord) -> None:
        self._sender.repeated += "retrying" in record.getMessage()


SENDERS: dict[str, tuple[Callable[[int, int], Sender], str, tuple[str, ...]]] = {
    "json": (HttpSender, "--doors-listen", ()),
    "forward": (ForwardSender, "--forward-listen", ()),
    "otlp": (SdkSender, "--otlp-grpc-listen", ("--doors-listen", "127.0.0.1:0")),
}


def command_of(door: str, port: int, gateway: str, folder: Path) -> list[str]:
    """Return the command of an agent whose door has a port."""
    _, listen, more = SENDERS[door]
    return [
        *command_with_constants("sluice_agent.settings:AgentSettings.batch_age_s=0.02"),
        "agent", "run", "--spool", str(folder / "s"),
        "--gateway", gateway, "--doors", door, listen, f"127.0.0.1:{port}", *more,
        "--host-metrics-s", "0",
    ]  # fmt: skip


def run(door: str, seed: int, kills: int, folder: Path) -> None:
    rng = random.Random(seed)
    print(f"seed={seed}")
    port = free_port()
    with GatewayDouble() as gateway:
        command = command_of(door, port, gateway.url, folder)
        sender = SENDERS[door][0](port, 30 * kills)
        sender.start()
        for _ in range(kills):
            before = len(sender.accepted)
            agent = SluiceProcess(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            until = time.monotonic() + 30
            while len(sender.accepted) == before and sender.is_alive() and time.monotonic() < until:
                assert agent.poll() is None
                time.sleep(0.01)
            time.sleep(rng.random() * 0.3)
            agent.kill()
            agent.wait()
        with SluiceProcess(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as agent:
            sender.join(REPEATED_S)
            assert not sender.is_alive()
            until = time.monotonic() + 30
            while len(gateway.bodies()) < len(sender.accepted) and time.monotonic() < until:
                time.sleep(0.05)
            agent.terminate()
        assert sender.repeated > 0
        assert gateway.problems == []
        assert Counter(gateway.bodies()) == Counter(sender.accepted)


@pytest.mark.parametrize("door", ["json", "forward"])
def test_a_request_whose_answer_is_lost_by_a_kill_is_stored_once(tmp_path: Path, door: str) -> None:
    """Killed after the records are durable: the client has to send them again."""
    port = free_port()
    sender = SENDERS[door][0](port, 1)
    with GatewayDouble() as gateway:
        for url in ("http://127.0.0.1:9", gateway.url, gateway.url):
            with SluiceProcess(
                command_of(door, port, url, tmp_path),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as agent:
                sender.send(0, ["one", "two"])
                until = time.monotonic() + 30
                while url == gateway.url and not gateway.bodies() and time.monotonic() < until:
                    time.sleep(0.02)
                agent.kill()
        assert gateway.bodies() == [b"one", b"two"]


def test_killed_agents_lose_and_double_no_request(tmp_path: Path) -> None:
    run("json", seed=1, kills=2, folder=tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("door", SENDERS)
@pytest.mark.parametrize("seed", range(2, 2 + times(1)))
def test_killed_agents_lose_and_double_no_request_over_many_runs(
    tmp_path: Path, seed: int, door: str
) -> None:
    run(door, seed=seed, kills=6, folder=tmp_path)
