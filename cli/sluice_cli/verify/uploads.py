"""Clients that upload frames as agents in trouble do, and record each try.

They leave out sequence numbers, send a batch twice concurrently, send other bytes of the same
identity, send old batches again, alone and as lists, and repeat the same bytes after each unknown
outcome.
"""

import asyncio
import random  # noqa: TID251 - the type of seeded arguments
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from sluice_agent.sending.transport import UploadRequest, UploadResult
from sluice_agent.sending.upload_decisions import Forget, NoGatewayResponse, decide_reaction
from sluice_cli.verify.recording import Recorder
from sluice_protocol.errors import UNREADABLE_JSON, ErrorCode
from sluice_protocol.frame import encode_frame
from sluice_protocol.identity import Identity, format_identity
from sluice_protocol.keys import digest_of
from sluice_protocol.records import LogRecord, logs_from_records
from sluice_protocol.units import Digest
from sluice_store.port import run_together

BOOT_BATCHES: Final = 2000
REMEMBERED_MAX: Final = 20_000
LIST_SIZES: Final = (1, 1, 4, 16)
"""Batches that a client sends together: alone, or as a list of frames."""
LATE_SIZES: Final = (1, 4, 16, 64, 256)
"""The same for batches that were accepted before: they add nothing to the store."""
LEFT_OUT: Final = 0.03
"""Share of the ranges that are never sent."""
CONCURRENT: Final = 0.1
CONFLICTING: Final = 0.1
LATE: Final = 0.1
"""Shares of the batches that are sent twice concurrently, together with other bytes of the same
identity, and with an old batch after them."""
LATE_RIVAL: Final = 0.5
"""Share of the old batches of which other bytes are sent."""
RIVAL_SHARE: Final = 0.01
"""The same of a client that only repeats."""
Settled = Literal["accepted", "conflict", "refused", "unknown"]


@dataclass(eq=False)
class Batch:
    """A frame that claims an identity; its records are `<payload> 0`, `<payload> 1` and so on."""

    who: Identity
    payload: str
    at_ns: int
    tries: int = 0
    settled: bool = False
    frame: bytes = field(init=False)
    sha256: Digest = field(init=False)

    def __post_init__(self) -> None:
        """Encode the frame once: its bytes never change."""
        rows = [
            LogRecord(ts_ns=self.at_ns, body=f"{self.payload} {index}", attributes={})
            for index in range(self.who.count)
        ]
        self.frame = encode_frame(identity=self.who, columns=logs_from_records(rows))
        self.sha256 = digest_of(self.frame)

    @property
    def identity(self) -> str:
        """The identity as histories have it."""
        return format_identity(self.who)

    @property
    def request(self) -> UploadRequest:
        """The current try."""
        return UploadRequest(frame=self.frame, digest=self.sha256, retry=self.tries > 1)


Send = Callable[[list[Batch], list[int], random.Random], Awaitable[list[UploadResult]]]
"""Sends batches once, in one request, as the operations with these numbers."""


@dataclass
class Uploads:
    """What all clients share.

    Attributes:
        names: Returns agent and boot of a client by its number and the number of its boot.
        stop: Ends each client when its last batch is settled.
        acknowledged: Some of the batches that a client has sent successfully, of any age.
    """

    recorder: Recorder
    seed: int
    names: Callable[[int, int], tuple[str, str]]
    send: Send
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    acknowledged: list[Batch] = field(default_factory=list)
    _remembered: int = 0

    async def run(self, number: int) -> None:
        """Send batches until stopped, with gaps, races, conflicts and late retries."""
        rng = self._plan(number)
        boot, first = 0, 0
        while not self.stop.is_set():
            batches: list[Batch] = []
            rivals: list[Batch] = []
            late: list[Batch] = []
            for _ in range(rng.choice(LIST_SIZES)):
                if rng.random() < 1 / BOOT_BATCHES:
                    boot, first = boot + 1, 0
                first += rng.randint(1, 3) if rng.random() < LEFT_OUT else 0
                last = first + rng.randint(0, 2)
                agent, boot_id = self.names(number, boot)
                who = Identity(agent_id=agent, boot_id=boot_id, seq_start=first, seq_end=last)
                first = last + 1
                batch = self._batch(who)
                batches.append(batch)
                kind = rng.random()
                if kind < CONCURRENT:
                    rivals.append(batch)
                elif kind < CONCURRENT + CONFLICTING:
                    rivals.append(self._batch(who))
                elif kind < CONCURRENT + CONFLICTING + LATE and self.acknowledged:
                    late.append(self._again(rng.choice(self.acknowledged), rng, LATE_RIVAL))
            await run_together(self.settle(number, rng, batches), self.settle(number, rng, rivals))
            await self.settle(number, rng, late)
            await self.recorder.clock.sleep(rng.uniform(0.1, 0.9))

    async def repeat(self, number: int) -> None:
        """Send accepted batches of any client and age again, some with other bytes."""
        rng = self._plan(number)
        while not self.stop.is_set():
            count = min(rng.choice(LATE_SIZES), len(self.acknowledged))
            batches = rng.sample(self.acknowledged, count)
            again = [self._again(old, rng, RIVAL_SHARE) for old in batches]
            await self.settle(number, rng, again)
            await self.recorder.clock.sleep(rng.uniform(0.1, 0.9))

    def _plan(self, number: int) -> random.Random:
        return random.Random(f"{self.seed} {number}")  # noqa: S311 - a plan, not a secret

    def _batch(self, who: Identity) -> Batch:
        return Batch(who, self.recorder.new_payload(), self.recorder.clock.now_ns())

    def _again(self, old: Batch, rng: random.Random, rival_share: float) -> Batch:
        """Return the batch, or other bytes that claim its identity."""
        return self._batch(old.who) if rng.random() < rival_share else old

    async def settle(self, number: int, rng: random.Random, batches: list[Batch]) -> None:
        """Send batches until each is accepted or a conflict."""
        while batches:
            outcomes = await self._attempt(number, rng, batches)
            again = []
            for batch, outcome in zip(batches, outcomes, strict=True):
                if outcome not in {"accepted", "conflict"}:
                    again.append(batch)
                elif outcome == "accepted" and not batch.settled:
                    batch.settled = True
                    self._remember(batch, rng)
            batches = again
            if batches:
                longest_s = 1.0 if "unknown" in outcomes else 0.4
                await self.recorder.clock.sleep(rng.uniform(0.1, longest_s))

    def _remember(self, batch: Batch, rng: random.Random) -> None:
        """Keep a batch for late retries, or not, so that those that are kept have any age."""
        self._remembered += 1
        if len(self.acknowledged) < REMEMBERED_MAX:
            self.acknowledged.append(batch)
        elif (at := rng.randrange(self._remembered)) < REMEMBERED_MAX:
            self.acknowledged[at] = batch

    async def _attempt(
        self, number: int, rng: random.Random, batches: list[Batch]
    ) -> list[Settled]:
        """Send batches once in one request, and record each of them."""
        operations = []
        for batch in batches:
            first_ns = None if batch.tries else batch.at_ns
            batch.tries += 1
            op = self.recorder.invoke(
                number, "upload", at_ns=first_ns, identity=batch.identity, sha256=batch.sha256,
                payload=batch.payload, records=batch.who.count,
            )  # fmt: skip
            operations.append(op)
        received = await self.send(batches, operations, rng)
        return [
            self._end(batch, op, one)
            for batch, op, one in zip(batches, operations, received, strict=True)
        ]

    def _end(self, batch: Batch, op: int, received: UploadResult) -> Settled:
        response = received.response
        if isinstance(response, NoGatewayResponse):
            self.recorder.end(op, "unknown", result=response.failure)
            return "unknown"
        body = _body_of(received)
        is_accepted = isinstance(decide_reaction(response, sent=batch.sha256), Forget)
        if is_accepted and body.duplicate is not None:
            self.recorder.end(op, "ok", result="duplicate" if body.duplicate else "new")
            return "accepted"
        if response.code == ErrorCode.IDENTITY_CONFLICT:
            self.recorder.end(op, "fail", result="conflict")
            return "conflict"
        if response.code and body.effect == "none":
            self.recorder.end(op, "fail", result="refused", code=response.code)
            return "refused"
        self.recorder.end(op, "unknown", result=f"{response.status} {response.code}")
        return "unknown"


class _Body(msgspec.Struct, frozen=True):
    """What a result states in addition to what an agent needs.

    One of a list is in the member of its kind.
    """

    duplicate: bool | None = None
    effect: str = ""
    accepted: "_Body | None" = None
    problem: "_Body | None" = None


def _body_of(received: UploadResult) -> _Body:
    try:
        found = msgspec.json.decode(received.body, type=_Body)
    except UNREADABLE_JSON:
        return _Body()
    return found.accepted or found.problem or found
