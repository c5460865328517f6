"""Clients that upload frames as agents in trouble do, and record each try.

They leave out sequence numbers, send a batch twice concurrently, send other bytes of the same
identity, send old batches again, and repeat the same bytes after each unknown outcome.
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

BOOT_BATCHES: Final = 200
REMEMBERED_MAX: Final = 500
LEFT_OUT: Final = 0.03
"""Share of the ranges that are never sent."""
CONCURRENT: Final = 0.1
CONFLICTING: Final = 0.1
LATE: Final = 0.1
"""Shares of the batches that are sent twice concurrently, together with other bytes of the same
identity, and before an old batch is sent again."""
LATE_SAME: Final = 0.5
"""Share of the old batches that are sent unchanged."""
Settled = Literal["accepted", "conflict", "refused", "unknown"]


@dataclass(eq=False)
class Batch:
    """A frame that claims an identity; its records are `<payload> 0`, `<payload> 1` and so on."""

    who: Identity
    payload: str
    at_ns: int
    tries: int = 0
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


Send = Callable[[Batch, int, random.Random], Awaitable[UploadResult]]
"""Sends a batch once, as the operation with this number."""


@dataclass
class Uploads:
    """What all clients share.

    Attributes:
        names: Returns agent and boot of a client by its number and the number of its boot.
        stop: Ends each client when its last batch is settled.
        acknowledged: Batches that a client has sent successfully, the last ones.
    """

    recorder: Recorder
    seed: int
    names: Callable[[int, int], tuple[str, str]]
    send: Send
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    acknowledged: list[Batch] = field(default_factory=list)

    async def run(self, number: int) -> None:
        """Send batches until stopped, with gaps, races, conflicts and late retries."""
        rng = random.Random(f"{self.seed} {number}")  # noqa: S311 - a plan, not a secret
        boot, first = 0, 0
        while not self.stop.is_set():
            if rng.random() < 1 / BOOT_BATCHES:
                boot, first = boot + 1, 0
            records = rng.randint(1, 3)
            agent, boot_id = self.names(number, boot)
            who = Identity(
                agent_id=agent, boot_id=boot_id, seq_start=first, seq_end=first + records - 1
            )
            first += records
            if rng.random() < LEFT_OUT:  # these numbers are never sent
                continue
            batch = self.batch(who)
            kind = rng.random()
            if kind < CONCURRENT:
                await self._both(number, rng, batch, batch)
            elif kind < CONCURRENT + CONFLICTING:
                await self._both(number, rng, batch, self.batch(who))
            else:
                await self.settle(number, rng, batch)
                if kind < CONCURRENT + CONFLICTING + LATE and self.acknowledged:
                    old = rng.choice(self.acknowledged)
                    late = old if rng.random() < LATE_SAME else self.batch(old.who)
                    await self.settle(number, rng, late)
            await self.recorder.clock.sleep(rng.uniform(0.02, 0.25))

    def batch(self, who: Identity) -> Batch:
        """Return a batch with new records."""
        return Batch(who, self.recorder.new_payload(), self.recorder.clock.now_ns())

    async def _both(self, number: int, rng: random.Random, one: Batch, other: Batch) -> None:
        await asyncio.gather(self.settle(number, rng, one), self.settle(number, rng, other))

    async def settle(self, number: int, rng: random.Random, batch: Batch) -> None:
        """Send a batch until it is accepted or a conflict."""
        outcome = await self.attempt(number, rng, batch)
        while outcome not in {"accepted", "conflict"}:
            await self.recorder.clock.sleep(rng.uniform(0.1, 0.4 if outcome == "refused" else 1.0))
            outcome = await self.attempt(number, rng, batch)
        kept = self.acknowledged
        if outcome == "accepted" and batch not in kept:
            kept.append(batch)
            del kept[: max(0, len(kept) - REMEMBERED_MAX)]

    async def attempt(self, number: int, rng: random.Random, batch: Batch) -> Settled:
        """Send a batch once, and record it."""
        first_ns = None if batch.tries else batch.at_ns
        batch.tries += 1
        op = self.recorder.invoke(
            number, "upload", at_ns=first_ns, identity=batch.identity, sha256=batch.sha256,
            payload=batch.payload, records=batch.who.count,
        )  # fmt: skip
        received = await self.send(batch, op, rng)
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
    duplicate: bool | None = None
    effect: str = ""


def _body_of(received: UploadResult) -> _Body:
    try:
        return msgspec.json.decode(received.body, type=_Body)
    except UNREADABLE_JSON:
        return _Body()
