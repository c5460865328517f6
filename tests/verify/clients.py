"""Clients of a run: uploads of frames, requests of doors, lines in files, and queries."""

import asyncio
import hashlib
import json
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
from support.constants import settings_with
from support.door_client import PROTOBUF, TestSender, otlp_logs
from support.gateway import Client, HttpResult, TestKey, head_of, post, upload_fields
from verify.proxy import OPERATION

from sluice_agent.sending.transport import (
    UploadRequest,
    UploadResult,
    parse_response,
    parse_results,
)
from sluice_agent.sending.upload_decisions import ConnectionFailure, NoGatewayResponse
from sluice_cli.verify.recording import Recorder
from sluice_cli.verify.uploads import Batch, Uploads
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_protocol.upload_http import ListedFrame, encode_frame_list
from sluice_query.request import Query
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings
from sluice_store import open_store

QUERY: Final = settings_with(QuerySettings, threads=1, accepted_list_max=0)
WINDOW_NS: Final = 2 * NS_PER_S
AGE_S_MAX: Final = 60.0
"""How long before its query a window begins at most."""


@dataclass
class Clients:
    """What all clients share.

    Attributes:
        balancer: The port of the proxy.
        gateways: The ports of the gateways that run now.
        pause_s: Pause before each request of an uploader or repeater.
        acknowledged: Some of the batches that a client has sent successfully, of any age.
    """

    recorder: Recorder
    seed: int
    key: TestKey
    sender: TestSender
    balancer: int
    gateways: Callable[[], Sequence[int]]
    pause_s: float
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    acknowledged: list[Batch] = field(default_factory=list)
    last_success_ns: int = 0
    _ages: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._ages = random.Random(f"{self.seed} ages")

    async def upload(self, number: int) -> None:
        """Send batches until stopped, with gaps, races, conflicts and late retries."""
        async with self._session() as session:
            await self._uploads(session).run(number)

    async def repeat(self, number: int) -> None:
        """Send accepted batches of any uploader and age again, some with other bytes."""
        async with self._session() as session:
            await self._uploads(session).repeat(number)

    async def repair(self, batch: Batch) -> None:
        """Send an old batch again until it is accepted, as after damage to its blob."""
        async with self._session() as session:
            await self._uploads(session).settle(99, random.Random(self.seed), [batch])

    def _uploads(self, session: aiohttp.ClientSession) -> Uploads:
        """Return uploads through the balancer or a gateway; its proxy learns each operation."""

        async def send(
            batches: list[Batch], operations: list[int], rng: random.Random
        ) -> list[UploadResult]:
            await asyncio.sleep(self.pause_s)
            client = Client(session, self.port(rng), self.key)
            numbers = {OPERATION: ",".join(map(str, operations))}
            try:
                return await send_once(client, [one.request for one in batches], numbers)
            except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError):
                lost = NoGatewayResponse(failure=ConnectionFailure.RESET)
                return [UploadResult(response=lost)] * len(batches)

        def names(number: int, boot: int) -> tuple[str, str]:
            return f"agent-{number}", f"boot-{boot}"

        return Uploads(self.recorder, self.seed, names, send, self.stop, self.acknowledged)

    async def door(self, number: int, door: str) -> None:
        """Send requests until stopped, each with the same bytes until it is accepted."""
        rng = random.Random(f"{self.seed} {number}")
        async with self._session() as session:
            while not self.stop.is_set():
                await self._request(session, number, door, rng)
                await asyncio.sleep(rng.uniform(0.1, 0.5))

    async def _request(
        self, session: aiohttp.ClientSession, number: int, door: str, rng: random.Random
    ) -> None:
        at_ns, payload, records = time.time_ns(), self.recorder.new_payload(), rng.randint(1, 3)
        lines = [f"{payload} {index}" for index in range(records)]
        path, body, headers = door_request(door, lines, at_ns)
        digest = hashlib.sha256(body).hexdigest()
        fields = {"Authorization": f"Bearer {self.sender.token.token}", **headers}
        sent = {
            "identity": f"door/{self.sender.name}/{digest}",
            "sha256": digest,
            "payload": payload,
            "records": records,
        }
        first: int | None = at_ns
        while True:
            op = self.recorder.invoke(number, "door", at_ns=first, **sent)
            first, port = None, self.port(rng)
            url = f"http://127.0.0.1:{port}{path}"
            try:
                async with session.post(url, data=body, headers=fields) as answer:
                    text = (await answer.read()).decode(errors="replace")
                    if answer.status < 300:
                        self.recorder.end(op, "ok", result="stored")
                        self.last_success_ns = time.time_ns()
                        return
                    self.recorder.end(op, "unknown", result=f"{answer.status} {text[:80]}")
            except (aiohttp.ClientError, TimeoutError) as error:
                self.recorder.end(op, "unknown", result=type(error).__name__)
            await asyncio.sleep(rng.uniform(0.2, 1.0))

    async def write_lines(self, number: int, path: Path) -> list[int]:
        """Append lines to the file of an agent until stopped; return their operations."""
        rng, operations = random.Random(f"{self.seed} {number}"), []
        while not self.stop.is_set():
            payload = self.recorder.new_payload()
            identity = f"{path.stem}/line/{payload}"
            operations.append(
                self.recorder.invoke(number, "line", identity=identity, payload=payload, records=1)
            )
            with path.open("a") as file:
                file.write(f"{payload} 0\n")
            await asyncio.sleep(rng.uniform(0.05, 0.5))
        return operations

    async def query(self, number: int, url: str) -> None:
        """Query the last records until stopped."""
        while not self.stop.is_set():
            await self.compare(number, url)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), 1.0)

    async def compare(self, number: int, url: str) -> int:
        """Record one answer, and return through which time it is complete."""
        from_ns = time.time_ns() - int(self._ages.uniform(0.0, AGE_S_MAX) * NS_PER_S)
        to_ns = from_ns + WINDOW_NS
        op = self.recorder.invoke(number, "query", **{"from": from_ns, "to": to_ns})
        try:
            async with asyncio.timeout(60), open_store(url) as store:
                searcher = Searcher(store=store, store_url=url, settings=QUERY, clock=SystemClock())
                wanted = Query(from_ns=UnixNs(from_ns), to_ns=UnixNs(to_ns), limit=100_000)
                found = await searcher.search(wanted)
        except Exception as error:  # the store may be unreachable
            self.recorder.end(op, "unknown", result=f"{type(error).__name__}: {error}"[:200])
            return 0
        until = found.summary.accepted_until
        until_ns = 0 if until is None else parse_rfc3339(until)
        seen = [str(row["body"]) for row in found.records]
        reasons = list(found.summary.reasons)
        self.recorder.end(op, "ok", until=until_ns, seen=seen, reasons=reasons)
        return until_ns

    def port(self, rng: random.Random) -> int:
        """Return the balancer or a gateway."""
        gateways = self.gateways()
        return rng.choice(gateways) if gateways and rng.random() < 0.4 else self.balancer

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=15),
            connector=aiohttp.TCPConnector(limit=0),
        )


async def send_once(
    client: Client, requests: list[UploadRequest], more: dict[str, str]
) -> list[UploadResult]:
    """Send one frame as an upload, more as a list, with further header fields."""
    if len(requests) == 1:
        (one,) = requests
        retry = {"Sluice_Retry": "1"} if one.retry else {}
        fields = client.key.sign(upload_fields(one.frame, **retry), client.authority)
        return [_result(await client.send(one.frame, fields | more))]
    listed = [ListedFrame(frame=one.frame, sent_before=one.retry) for one in requests]
    body = encode_frame_list(listed)
    found = parse_results(
        _result(await post(client, body, head_of(client, body) | more)), len(listed)
    )
    return [found] * len(listed) if isinstance(found, UploadResult) else list(found)


def _result(answer: HttpResult) -> UploadResult:
    body = json.dumps(answer.body).encode()
    return UploadResult(response=parse_response(answer.status, answer.headers, body), body=body)


def door_request(door: str, lines: list[str], at_ns: int) -> tuple[str, bytes, dict[str, str]]:
    """Return path, body and headers of a request of a door."""
    if door == "otlp":
        return "/v1/logs", otlp_logs(*lines, at_ns=at_ns), dict(PROTOBUF)
    kind = {"Content-Type": "application/json"}
    if door == "loki":
        values = [[str(at_ns), line] for line in lines]
        streams = [{"stream": {"job": "verify"}, "values": values}]
        return "/loki/api/v1/push", json.dumps({"streams": streams}).encode(), kind
    rows = [json.dumps({"time": at_ns, "message": line}) for line in lines]
    return "/v1/ingest", "\n".join(rows).encode(), {"Content-Type": "application/x-ndjson"}
