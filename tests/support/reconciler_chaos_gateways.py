"""Gateways and clients of a simulation of whole reconcilers.

A gateway writes its journal with the product's `JournalBook` and fences itself with
`must_register_again`. Each rule that makes journals sound can be left out, to show that the
simulation finds it.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace
from support.builders import manifest
from support.reconciler_chaos_store import ChaosStore, Connection, Killed, LoopClock

from sluice_gateway.journal import JournalBook, must_register_again
from sluice_protocol.clock import MachineInstant
from sluice_protocol.errors import StoreError
from sluice_protocol.journals import (
    FENCE_S,
    HEARTBEAT_S,
    GatewayProcess,
    process_name,
    registration_key,
)
from sluice_protocol.keys import accepted_key, blob_key, digest_of
from sluice_protocol.manifests import AcceptedManifest, decode_record, encode_record
from sluice_protocol.outcomes import Applied, Exists, Found
from sluice_protocol.units import UnixNs

WRITE_S = 2.0
"""Pause between two journal objects of a gateway with entries."""


class Refused(Exception):
    """A 503, or a connection that was lost: the client sends the batch again."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What makes a journal sound; each rule can be left out.

    Attributes:
        manifest_first: An entry is noted after the manifest exists.
        heartbeat_flushes: An object without a due flush contains the noted entries too.
        store_clock: Times are of the store's clock.
        fenced: A 200 requires a young journal.
        duplicates: A duplicate is noted too.
        time_before_entries: The time is read before the entries are collected.
        registers_first: The registration is written before the first 200.
        closes_last: The closed object is written after the last 200.
        new_name: A lapsed process registers again instead of continuing its journal.
    """

    manifest_first: bool = True
    heartbeat_flushes: bool = True
    store_clock: bool = True
    fenced: bool = True
    duplicates: bool = True
    time_before_entries: bool = True
    registers_first: bool = True
    closes_last: bool = True
    new_name: bool = True


@dataclass
class Gateway:
    """One gateway process."""

    store: ChaosStore
    clock: LoopClock
    rng: random.Random
    collector_id: str
    ulids: Callable[[], str]
    rules: Rules
    book: JournalBook = field(init=False)
    stopping: bool = False
    known: set[str] = field(default_factory=set)
    old: list[JournalBook] = field(default_factory=list)
    uploads: int = 0
    serving: bool = False

    def __post_init__(self) -> None:
        self.connection = Connection(self.store)
        self.book = JournalBook("", None)

    @property
    def instant(self) -> MachineInstant:
        """Now, by the clocks of its machine."""
        return MachineInstant(
            boottime_ns=self.clock.monotonic_ns(), wall_ns=int(self.clock.now_ns())
        )

    @property
    def is_alive(self) -> bool:
        """Whether a client can connect."""
        return self.serving and not self.connection.dead and not self.stopping

    def kill(self) -> None:
        """Kill it: every call of it ends."""
        self.connection.dead = True
        self.connection.running.set()

    async def run(self) -> None:
        """Register, and write the journal until it is closed or the process is killed."""
        try:
            if self.rules.registers_first:
                await self.register()
            self.serving = True
            if not self.rules.registers_first:
                await asyncio.sleep(10.0)
            while not self.book.closed:
                await asyncio.sleep(WRITE_S)
                await self.connection.gate()
                await self._write_due()
            self.serving = False
        except Killed:
            self.serving = False

    async def register(self) -> None:
        """Create a registration; a response that is lost is resolved by repeating the call."""
        began = self.instant
        if self.book.process and not self.rules.new_name:
            self.book.durable_from = began
            return
        while True:
            try:
                await self.connection.head(registration_key(self.book.process or "none"))
                date_ns = self.connection.answered_ns
                process = process_name(date_ns, self.ulids())
                record = GatewayProcess(
                    collector_id=self.collector_id,
                    process=process,
                    acceptance="s3_manifest",
                    started_at_unix_ns=date_ns,
                )
                key, body = registration_key(process), encode_record(record)
                began = self.instant
                while not isinstance(await self.connection.create(key, body), (Applied, Exists)):
                    pass
            except StoreError:
                continue
            break
        if self.book.process:
            self.old.append(self.book)
            self.book = self.book.succeed(process, began, date_ns)
        else:
            after = JournalBook(process, began, date_ns)
            self.book.move_to(after)
            self.book = after

    async def _write_due(self) -> None:
        book = self.book
        try:
            if not book.process or self._is_fenced():
                await self.register()
                return
            for one in list(self.old):
                await self._write(one, closes=True)
                if one.closed:
                    self.old.remove(one)
            closes = self.stopping and (not self.uploads or not self.rules.closes_last)
            idle_s = book.begun.seconds_to(self.instant) if book.begun else HEARTBEAT_S
            if closes or book.has_entries or book.pending or idle_s >= HEARTBEAT_S:
                await self._write(book, closes=closes)
        except StoreError:
            return

    async def _write(self, book: JournalBook, *, closes: bool) -> None:
        at_ns = self.connection.answered_ns
        if not self.rules.store_clock:
            at_ns = UnixNs(int(self.clock.now_ns()))
        hidden: tuple[bytes, ...] = ()
        if not self.rules.time_before_entries and not book.pending:
            collected = len(book._entries)
            await asyncio.sleep(0.5)
            at_ns = self.connection.answered_ns
            hidden = tuple(book._entries)[collected:]
            for _ in hidden:
                book._entries.pop()
        if not self.rules.heartbeat_flushes and not book.pending and self.rng.random() < 0.3:
            hidden = tuple(book._entries)
            book._entries.clear()
        pending = book.next_object(at_ns, self.instant, closes=closes)
        for one in hidden:
            book.note(one)
        if isinstance(await self.connection.create(pending.key, pending.body), (Applied, Exists)):
            book.settle(pending)

    async def upload(self, one: AcceptedManifest, frame: bytes) -> None:
        """Accept a batch.

        Raises:
            Refused: There was no 200.
        """
        if not self.is_alive:
            raise Refused
        self.uploads += 1
        try:
            await self._accept(one, frame)
        except (Killed, StoreError) as error:
            raise Refused from error
        finally:
            self.uploads -= 1

    async def _accept(self, one: AcceptedManifest, frame: bytes) -> None:
        key = accepted_key(one.identity)
        body = encode_record(replace(one, accepted_at_unix_ns=self.clock.at_ns))
        await self._create(blob_key(digest_of(frame)), frame)
        if not self.rules.manifest_first:
            self.book.note(body)
            await asyncio.sleep(self.rng.choice((0.0, 5.0)))
        created = await self._create(key, body)
        await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.5, 4.0)))  # a slow store
        read = await self.connection.get(key)
        if not isinstance(read, Found):
            raise Refused
        if key not in self.known and (created or self.rules.duplicates):
            if self.rules.manifest_first:
                self.book.note(read.body)
            self.known.add(key)
        if self._is_fenced() or (self.rules.closes_last and self.book.closed):
            raise Refused
        await asyncio.sleep(self.rng.choice((0.0, 0.0, 1.0)))  # the response takes its time
        if not self.connection.running.is_set():
            await self.connection.running.wait()
        if self.connection.dead:
            raise Refused
        self.store.acknowledge(decode_record(key, read.body, AcceptedManifest).identity)

    def _is_fenced(self) -> bool:
        if not self.book.process and not self.rules.registers_first:
            return False
        return self.rules.fenced and must_register_again(
            self.book.durable_from, self.instant, FENCE_S
        )

    async def _create(self, key: Any, body: bytes) -> bool:
        outcome = await self.connection.create(key, body)
        if not isinstance(outcome, (Applied, Exists)):
            raise Refused
        return isinstance(outcome, Applied)


@dataclass
class Client:
    """One agent: it sends its batches in order, each until a 200, over any gateway."""

    gateways: list[Gateway]
    clock: LoopClock
    rng: random.Random
    agent: str
    sent: int = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Send until stopped."""
        while not stop.is_set():
            await self._send(self.sent * 10)
            self.sent += 1
            await asyncio.sleep(self.rng.choice((0.2, 1.0, 8.0)))

    async def _send(self, seq: int) -> None:
        frame = f"{self.agent}/{seq}".encode()
        one = manifest(seq, agent=self.agent, frame=frame)
        while True:
            alive = [gateway for gateway in self.gateways if gateway.is_alive]
            if alive:
                gateway = self.rng.choice(alive)
                try:
                    mine = replace(one, collector_id=gateway.collector_id)
                    async with asyncio.timeout(15):
                        await gateway.upload(mine, frame)
                except (Refused, TimeoutError):
                    pass
                else:
                    return
            await asyncio.sleep(self.rng.choice((0.2, 2.0)))
