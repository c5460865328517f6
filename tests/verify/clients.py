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
from support.builders import make_identity
from support.constants import settings_with
from support.door_client import PROTOBUF, TestSender, otlp_logs
from support.gateway import Client, HttpResult, TestKey, head_of, post, upload_fields
from verify.proxy import OPERATION
from verify.recording import Recorder

from sluice_protocol.frame import encode_frame
from sluice_protocol.records import LogRecord, logs_from_records
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
BOOT_BATCHES: Final = 2000
REMEMBERED_MAX: Final = 20_000
LIST_SIZES: Final = (1, 1, 4, 16)
"""Batches that an uploader sends together: alone, or as a list of frames."""
LATE_SIZES: Final = (1, 4, 16, 64, 256)
"""The same for batches that were accepted before: they add nothing to the store."""
RIVAL_SHARE: Final = 0.01


@dataclass
class Batch:
    """A frame that claims an identity."""

    agent: str
    boot: str
    first: int
    records: int
    payload: str
    at_ns: int = field(default_factory=time.time_ns)
    tries: int = 0
    frame: bytes = b""
    sha256: str = ""
    settled: bool = False

    def __post_init__(self) -> None:
        who = make_identity(self.first, count=self.records, agent=self.agent, boot=self.boot)
        rows = [
            LogRecord(ts_ns=self.at_ns, body=f"{self.payload} {index}", attributes={})
            for index in range(self.records)
        ]
        self.frame = encode_frame(identity=who, columns=logs_from_records(rows))
        self.sha256 = hashlib.sha256(self.frame).hexdigest()

    @property
    def identity(self) -> str:
        return f"{self.agent}/{self.boot}/{self.first}-{self.first + self.records - 1}"


@dataclass
class Clients:
    """What all clients share.

    Attributes:
        balancer: The port of the proxy.
        gateways: The ports of the gateways that run now.
        acknowledged: Some of the batches that a client has sent successfully, of any age.
    """

    recorder: Recorder
    seed: int
    key: TestKey
    sender: TestSender
    balancer: int
    gateways: Callable[[], Sequence[int]]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    acknowledged: list[Batch] = field(default_factory=list)
    last_success_ns: int = 0
    _payloads: int = 0
    _remembered: int = 0
    _ages: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._ages = random.Random(f"{self.seed} ages")

    def new_payload(self) -> str:
        self._payloads += 1
        return f"p{self._payloads}"

    def remember(self, batch: Batch, rng: random.Random) -> None:
        """Keep a batch for late retries; each batch of the run is kept with the same chance."""
        self._remembered += 1
        if len(self.acknowledged) < REMEMBERED_MAX:
            self.acknowledged.append(batch)
        elif (at := rng.randrange(self._remembered)) < REMEMBERED_MAX:
            self.acknowledged[at] = batch

    async def upload(self, number: int) -> None:
        """Send batches until stopped, with gaps, races, conflicts and late retries."""
        rng = random.Random(f"{self.seed} {number}")
        agent, boot, first = f"agent-{number}", 0, 0
        async with self._session() as session:
            sender = _Uploader(self, session, number, rng)
            while not self.stop.is_set():
                batches: list[Batch] = []
                rivals: list[Batch] = []
                late: list[Batch] = []
                for _ in range(rng.choice(LIST_SIZES)):
                    if rng.random() < 1 / BOOT_BATCHES:
                        boot, first = boot + 1, 0
                    records = rng.randint(1, 3)
                    if rng.random() < 0.03:  # these numbers are never sent
                        first += records
                    batch = Batch(agent, f"boot-{boot}", first, records, self.new_payload())
                    first += records
                    batches.append(batch)
                    kind = rng.random()
                    if kind < 0.1:
                        rivals.append(batch)
                    elif kind < 0.2:
                        rivals.append(self._rival(batch))
                    elif kind < 0.3 and self.acknowledged:
                        old = rng.choice(self.acknowledged)
                        late.append(self._rival(old) if rng.random() < 0.5 else old)
                await asyncio.gather(sender.settle(batches), sender.settle(rivals))
                await sender.settle(late)
                await asyncio.sleep(rng.uniform(0.1, 0.9))

    def _rival(self, batch: Batch) -> Batch:
        """Return other bytes that claim the identity of a batch."""
        who = (batch.agent, batch.boot, batch.first, batch.records)
        return Batch(*who, self.new_payload())

    async def repeat(self, number: int) -> None:
        """Send accepted batches of any uploader and age again, some with other bytes."""
        rng = random.Random(f"{self.seed} {number}")
        async with self._session() as session:
            sender = _Uploader(self, session, number, rng)
            while not self.stop.is_set():
                count = min(rng.choice(LATE_SIZES), len(self.acknowledged))
                batches = rng.sample(self.acknowledged, count)
                await sender.settle(
                    [self._rival(old) if rng.random() < RIVAL_SHARE else old for old in batches]
                )
                await asyncio.sleep(rng.uniform(0.1, 0.9))

    async def repair(self, batch: Batch) -> None:
        """Send an old batch again until it is accepted, as after damage to its blob."""
        async with self._session() as session:
            await _Uploader(self, session, 99, random.Random(self.seed)).settle([batch])

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
        at_ns, payload, records = time.time_ns(), self.new_payload(), rng.randint(1, 3)
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
            payload = self.new_payload()
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


@dataclass
class _Uploader:
    clients: Clients
    session: aiohttp.ClientSession
    number: int
    rng: random.Random

    async def settle(self, batches: list[Batch]) -> None:
        """Send batches through any gateway until each is accepted or a conflict."""
        while batches:
            outcomes = await self._try(batches)
            again = []
            for batch, outcome in zip(batches, outcomes, strict=True):
                if outcome not in {"accepted", "conflict"}:
                    again.append(batch)
                elif outcome == "accepted" and not batch.settled:
                    batch.settled = True
                    self.clients.remember(batch, self.rng)
            batches = again
            if batches:
                unknown = "unknown" in outcomes
                await asyncio.sleep(self.rng.uniform(0.1, 1.0 if unknown else 0.4))

    async def _try(self, batches: list[Batch]) -> list[str]:
        recorder = self.clients.recorder
        client = Client(self.session, self.clients.port(self.rng), self.clients.key)
        listed, operations = [], []
        for batch in batches:
            listed.append(ListedFrame(frame=batch.frame, sent_before=batch.tries > 0))
            op = recorder.invoke(
                self.number, "upload", at_ns=None if batch.tries else batch.at_ns,
                identity=batch.identity, sha256=batch.sha256, payload=batch.payload,
                records=batch.records,
            )  # fmt: skip
            operations.append(op)
            batch.tries += 1
        try:
            results = await _send(client, listed, ",".join(map(str, operations)))
        except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as error:
            for op in operations:
                recorder.end(op, "unknown", result=type(error).__name__)
            return ["unknown"] * len(batches)
        return [self._end(op, *one) for op, one in zip(operations, results, strict=True)]

    def _end(self, op: int, status: int, body: dict[str, object]) -> str:
        recorder = self.clients.recorder
        if status == 200 and isinstance(body.get("duplicate"), bool):
            recorder.end(op, "ok", result="duplicate" if body["duplicate"] else "new")
            self.clients.last_success_ns = time.time_ns()
            return "accepted"
        if status == 409 and body.get("code") == "identity_conflict":
            recorder.end(op, "fail", result="conflict")
            return "conflict"
        if body.get("effect") == "none":
            recorder.end(op, "fail", result="refused", code=body.get("code"))
            return "refused"
        recorder.end(op, "unknown", result=f"{status} {body.get('code')}")
        return "unknown"


async def _send(
    client: Client, frames: list[ListedFrame], operations: str
) -> list[tuple[int, dict[str, object]]]:
    """Send one frame as an upload, more as a list; return status and body for each."""
    if len(frames) == 1:
        retry = {"Sluice_Retry": "1"} if frames[0].sent_before else {}
        fields = client.key.sign(upload_fields(frames[0].frame, **retry), client.authority)
        answer = await client.send(frames[0].frame, fields | {OPERATION: operations})
        return [_result(answer)]
    body = encode_frame_list(frames)
    answer = await post(client, body, head_of(client, body) | {OPERATION: operations})
    status, document = _result(answer)
    results = document.get("results")
    if status != 200 or not isinstance(results, list):
        return [(status, document)] * len(frames)
    return [
        (one["status"], one.get("accepted") or one.get("conflict") or one.get("problem") or {})
        for one in results
    ]


def _result(answer: HttpResult) -> tuple[int, dict[str, object]]:
    return answer.status, answer.body if isinstance(answer.body, dict) else {}


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
