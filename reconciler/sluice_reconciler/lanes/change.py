"""Changing the number of lanes of every queue.

The lanes in use between two changes are a layout. A change ends one layout and begins the next, in
these steps. Each may be repeated, so a run that was killed is continued by the same command.

    1 close      the state of each lane is closed by a swap; no process can take the lane again
    2 drain      wait until the consumers have acknowledged every entry
    3 seal       each register gets a layout that no process knows: appends and consumers stop
    4 build      the states of the new lanes are created from those of the closed ones
    5 record     `authority/v1/lanes/<number>.json` is created: the new number is in effect
    6 continue   each register continues after the same sequence, in the new layout
    7 empty      the parts of the closed states are deleted; their records stay closed

The first lane is closed first, and names the new number: of two commands with different numbers,
one is refused there. After step 1 the reconcilers index new batches and leave them; gateways accept
throughout. A process that missed the change owns a closed lane state and a register of another
layout, and changes neither.

A boot belongs to the lane that the hash of its agent selects. A part of a lane state contains that
hash, so the boots of a lane are divided or joined without the names of their agents.

Source: `docs/queue.md`, Number of lanes; ADR 50.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Final

from msgspec.structs import replace as copy_with

from sluice_protocol.authority import (
    LANE_CHANGES_MAX,
    LANES_MAX,
    Authority,
    LaneChange,
    decode_lane_change,
    lane_change_key,
)
from sluice_protocol.errors import BadUsage, StoreUnavailable
from sluice_protocol.keys import INGEST_QUEUE, lane_of
from sluice_protocol.manifests import encode_record
from sluice_protocol.outcomes import Applied
from sluice_queue.errors import LayoutChanged, RegisterLost
from sluice_queue.inspection import handed_over
from sluice_queue.lane import Lane, list_lanes
from sluice_queue.register import NO_OWNER, SEALED, Register, continue_after, encode_register, seal
from sluice_queue.register_client import SWAP_RETRY, RegisterClient, Runtime
from sluice_reconciler.lanes.defects import defect_text, find_defect, has_ledger
from sluice_reconciler.lanes.owner import LaneClosed, LaneOwner, LaneTakenOver
from sluice_reconciler.lanes.part_log import (
    LaneLog,
    OwnedObjects,
    PartCache,
    PartMissing,
    read_part,
    refuse_if_current,
)
from sluice_reconciler.lanes.parts import LanePart
from sluice_reconciler.lanes.request_log import join_requests, requests_prefix
from sluice_reconciler.lanes.state import (
    LaneRecord,
    SettledLane,
    StoredLaneState,
    encode_lane,
    lane_key,
    list_lane_states,
    parts_prefix,
    read_lane_state,
)
from sluice_store.authority import read_authority, read_store_time
from sluice_store.port import ObjectStore, run_concurrently
from sluice_store.retry import WRITE_RETRY, OtherBytes, RetryBudget, create_once

DRAIN_PAUSE_S: Final = 1.0
CONCURRENCY: Final = 16

Note = Callable[[str], None]


async def change_lanes(store: ObjectStore, lanes: int, runtime: Runtime, note: Note) -> LaneChange:
    """Change the number of lanes, or continue a change that was interrupted.

    Nothing is written if the number is in effect; the change that began it is returned, or one with
    the number 0 for that of `sluice init`. `note` is called with what is done next.

    Raises:
        BadUsage: The number is out of range, another change was begun, or a queue with pending
            entries has no consumer.
    """
    if not 1 <= lanes <= LANES_MAX:
        raise BadUsage(f"lanes must be 1 to {LANES_MAX}, lanes=`{lanes}`")
    authority = await read_authority(store)
    left = await _finish_last(store, authority, runtime)
    if lanes == authority.lanes and not await read_begun(store, authority):
        done = "finished the change to" if left else "nothing to change: the queues have"
        note(f"{done} {lanes} lanes")
        return authority.changes[-1] if authority.changes else _first_layout(lanes)
    queues = await _queues(store)
    run = _Change(store=store, before=authority, lanes=lanes, queues=queues, runtime=runtime)
    await run.check()
    note(f"close {authority.lanes} lanes of {', '.join(queues)}")
    await run.close()
    await run.drain(note)
    note(f"build the states of {lanes} lanes")
    change = await run.record()
    after = await read_authority(store)
    note(f"{lanes} lanes are in effect; continue after sequence {change.after_sequence}")
    await _finish_last(store, after, runtime)
    return change


def _first_layout(lanes: int) -> LaneChange:
    return LaneChange(number=0, lanes=lanes, lanes_before=lanes, after_sequence=0, ends={})


async def read_begun(store: ObjectStore, authority: Authority) -> int:
    """Return the number of lanes of a change that was begun and is not in effect; 0 for none."""
    found = [
        state.record.closed_for
        for lane in await list_lane_states(store)
        if lane.layout == authority.layout
        and (state := await read_lane_state(store, lane)) is not None
    ]
    return max(found, default=0)


async def _queues(store: ObjectStore) -> tuple[str, ...]:
    """Return every queue that was ever used, the ingest queue first."""
    states = await list_lane_states(store)
    used = {INGEST_QUEUE, *(one.queue for one in (*states, *await list_lanes(store)))}
    return (INGEST_QUEUE, *sorted(used - {INGEST_QUEUE}))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """One run of the command, until the new number is recorded."""

    store: ObjectStore
    before: Authority
    lanes: int
    queues: Sequence[str]
    runtime: Runtime
    _sealed: dict[Lane, Register] = field(default_factory=dict)

    @property
    def layout(self) -> int:
        """The layout that the change begins."""
        return self.before.layout + 1

    def _each(self, lanes: int, layout: int) -> Iterator[Lane]:
        for queue in self.queues:
            for lane in range(lanes):
                yield Lane(queue=queue, lane=lane, layout=layout)

    def registers(self) -> list[Lane]:
        """Return every lane whose register exists or will exist."""
        return list(self._each(max(self.lanes, self.before.lanes_ever), self.before.layout))

    async def check(self) -> None:
        """Refuse what could not be finished, before anything is changed."""
        begun = await read_begun(self.store, self.before)
        if begun not in (0, self.lanes):
            raise _begun(begun)
        if begun:
            return
        if self.layout > LANE_CHANGES_MAX:
            raise BadUsage(f"the number of lanes was changed {LANE_CHANGES_MAX} times already")
        if await has_ledger(self.store) and not await list_lanes(self.store, INGEST_QUEUE):
            raise BadUsage("every register of the ingest queue is lost: run `sluice rebuild` first")
        for lane in self._each(self.before.lanes, self.before.layout):
            await self._check_lane(lane)

    async def _check_lane(self, lane: Lane) -> None:
        if (defect := await find_defect(self.store, lane)) is not None:
            raise BadUsage(f"a lane is halted: {defect_text(defect)}")
        seen = await RegisterClient(self.store, lane, self.runtime).read()
        if seen is None or not seen.state.waiting or seen.state.acked_through:
            return
        if seen.state.owner == NO_OWNER:
            raise BadUsage(
                "a queue has pending entries and no consumer: start its consumer first,"
                f" queue=`{lane.queue}`, lane=`{lane.lane}`, pending=`{seen.state.waiting}`"
            )

    async def close(self) -> None:
        """Close the state of every lane; the first lane alone, as it decides between commands."""
        first, *others = self._each(self.before.lanes, self.before.layout)
        await self._close_lane(first)
        await run_concurrently(others, self._close_lane, concurrency=CONCURRENCY)

    async def _close_lane(self, lane: Lane) -> None:
        budget = RetryBudget("close", lane_key(lane), self.runtime.backoff(SWAP_RETRY))
        while True:
            try:
                owner = await LaneOwner.take(self.store, lane, self.runtime)
                await owner.close_for(self.lanes)
            except LaneClosed as closed:
                if closed.lanes != self.lanes:
                    raise _begun(closed.lanes) from closed
                return
            except LaneTakenOver:
                await budget.wait_or_raise()
            except LayoutChanged as changed:
                if changed.current != SEALED:
                    raise
                await self._close_rebuilt(lane)
                await budget.wait_or_raise()
            else:
                return

    async def _close_rebuilt(self, lane: Lane) -> None:
        """Close a lane state that a rebuild emptied after its register was sealed."""
        stored = await read_lane_state(self.store, lane)
        if stored is not None:
            nonce = self.runtime.id_bytes().hex()
            closed = copy_with(stored.record, nonce=nonce, closed_for=self.lanes, released=True)
            await self.store.replace(lane_key(lane), encode_lane(closed), if_match=stored.etag)

    async def drain(self, note: Note) -> None:
        """Seal every register as soon as its consumer has acknowledged every entry."""
        noted = 0
        while True:
            await run_concurrently(self.registers(), self._seal, concurrency=CONCURRENCY)
            pending = {lane: state.waiting for lane, state in self._sealed.items() if state.waiting}
            if not pending:
                return
            if noted != len(pending):
                noted, lane = len(pending), min(pending, key=lambda one: (one.queue, one.lane))
                note(
                    f"wait for the consumers: {sum(pending.values())} entries are pending in"
                    f" {noted} lanes, the first is {lane.queue}.{lane.lane:03d}"
                )
            await self.runtime.clock.sleep(DRAIN_PAUSE_S)

    async def _seal(self, lane: Lane) -> None:
        """Seal a register without pending entries, and note its state."""
        client = RegisterClient(self.store, lane, self.runtime)
        budget = RetryBudget("seal", lane.key, self.runtime.backoff(SWAP_RETRY))
        while True:
            try:
                seen = await client.read()
                if seen is None:
                    await self._create_sealed(lane)
                elif seen.state.layout == SEALED or seen.state.waiting:
                    self._sealed[lane] = seen.state
                    return
                elif seen.state.layout > self.before.layout:
                    raise LayoutChanged(lane.key, self.before.layout, seen.state.layout)
                else:
                    await client.swap(seen, seal(seen.state, self.runtime.id_bytes()))
            except StoreUnavailable as error:
                await budget.wait_or_raise(error)
                continue
            await budget.wait_or_raise()

    async def _create_sealed(self, lane: Lane) -> None:
        """Create the register of a lane that is new; closed lanes had one after they were taken."""
        if lane.lane < self.before.lanes:
            raise RegisterLost(lane.key)
        new = Register(revision=1, nonce=self.runtime.id_bytes(), layout=SEALED)
        await self.store.create(lane.key, encode_register(new))

    async def record(self) -> LaneChange:
        """Create the states of the new lanes, then the record that puts the number into effect."""
        new = list(self._each(self.lanes, self.layout))
        await run_concurrently(new, self._build, concurrency=1)
        ends = {
            f"{lane.lane:03d}": handed_over(self.before, lane.lane, state)
            for lane, state in self._sealed.items()
            if lane.queue == INGEST_QUEUE
        }
        wanted = LaneChange(
            number=self.layout,
            lanes=self.lanes,
            lanes_before=self.before.lanes,
            after_sequence=max(one.acked_through for one in self._sealed.values()),
            ends={lane: end for lane, end in sorted(ends.items()) if end},
            changed_at_unix_ns=await read_store_time(self.store),
        )
        key, backoff = lane_change_key(self.layout), self.runtime.backoff(WRITE_RETRY)
        created = await create_once(self.store, key, encode_record(wanted), backoff)
        # Two runs of the same command differ in the time alone: all registers are sealed.
        if isinstance(created, OtherBytes):
            return decode_lane_change(self.layout, created.body)
        return wanted

    async def _build(self, lane: Lane) -> None:
        """Create the state of a new lane from those of the closed lanes with boots of it."""
        if await read_lane_state(self.store, lane) is not None:
            return
        step = gcd(self.before.lanes, self.lanes)
        sources: list[StoredLaneState] = []
        for number in range(lane.lane % step, self.before.lanes, step):
            place = replace(lane, lane=number, layout=self.before.layout)
            stored = await read_lane_state(self.store, place)
            if stored is not None:
                sources.append(stored)
        records = [one.record for one in sources]
        parts = [part for one in sources for part in await self._read_parts(one, lane.lane)]
        log = LaneLog(self.store, lane, 0, PartCache(), self.runtime)
        run = await log.write_run(parts) if parts else ()
        new = LaneRecord(
            queue=lane.queue,
            lane=lane.lane,
            layout=lane.layout,
            nonce=self.runtime.id_bytes().hex(),
            producer_id=self.runtime.id_bytes().hex(),
            recent=tuple(
                one
                for record in records
                for one in record.recent
                if lane_of(one.agent_id, self.lanes) == lane.lane
            ),
            runs=(run,) if run else (),
            settled_lanes=tuple(dict.fromkeys(self._settled(records))),
            unsettled=tuple(
                one
                for record in records
                for one in record.unsettled
                if lane_of(one.agent_id, self.lanes) == lane.lane
            ),
            requests=await join_requests(self.store, records, lane, self.runtime),
        )
        backoff = self.runtime.backoff(WRITE_RETRY)
        await create_once(self.store, lane_key(lane), encode_lane(new), backoff)

    def _settled(self, records: Sequence[LaneRecord]) -> Iterator[SettledLane]:
        for record in records:
            if record.settled_s:
                lanes = self.before.lanes
                yield SettledLane(lanes=lanes, lane=record.lane, settled_s=record.settled_s)
            yield from record.settled_lanes

    async def _read_parts(self, stored: StoredLaneState, lane: int) -> list[LanePart]:
        """Return the boots of a closed state that belong to a new lane, the oldest first."""
        found: list[LanePart] = []
        for reference in stored.record.parts():
            try:
                part = await read_part(self.store, stored.record.of_lane, reference)
            except PartMissing as missing:
                await refuse_if_current(self.store, stored, missing)
                raise BadUsage("another run has finished this change: run it again") from missing
            if (mine := part.of_lane(lane, self.lanes)) is not None:
                found.append(mine)
        return found


def _begun(lanes: int) -> BadUsage:
    return BadUsage(
        f"a change to {lanes} lanes was begun and is not finished: run `sluice queue lanes {lanes}`"
    )


async def _finish_last(store: ObjectStore, authority: Authority, runtime: Runtime) -> bool:
    """Let every sealed register continue after the last change; return True if one was left.

    It also empties the states of earlier layouts. A later change is begun only after this.
    """
    if not authority.changes:
        return False
    left = False

    async def each(lane: Lane) -> None:
        nonlocal left
        left |= await _continue(store, authority, lane, runtime)

    lanes = [
        Lane(queue=queue, lane=lane, layout=authority.layout, after=authority.after_sequence)
        for queue in await _queues(store)
        for lane in range(authority.lanes)
    ]
    await run_concurrently(lanes, each, concurrency=CONCURRENCY)

    async def empty(lane: Lane) -> None:
        nonlocal left
        left |= await _empty(store, lane, runtime)

    old = [one for one in await list_lane_states(store) if one.layout < authority.layout]
    await run_concurrently(old, empty, concurrency=CONCURRENCY)
    return left


async def _continue(store: ObjectStore, authority: Authority, lane: Lane, runtime: Runtime) -> bool:
    """Let a sealed register continue in its layout; return False if it was not sealed.

    A register that the next change sealed is left: that change has closed the lanes before.
    """
    client = RegisterClient(store, lane, runtime)
    budget = RetryBudget("continue", lane.key, runtime.backoff(SWAP_RETRY))
    left = False
    while True:
        try:
            seen = await client.read()
            if seen is None or seen.state.layout != SEALED or await read_begun(store, authority):
                return left
            left = True
            after = continue_after(seen.state, lane.after, lane.layout, runtime.id_bytes())
            await client.swap(seen, after)
        except StoreUnavailable as error:
            await budget.wait_or_raise(error)
            continue
        await budget.wait_or_raise()


async def _empty(store: ObjectStore, lane: Lane, runtime: Runtime) -> bool:
    """Empty the closed state of an earlier layout; return False if it was empty."""
    stored = await read_lane_state(store, lane)
    if stored is None:
        return False
    old = stored.record
    if not (old.runs or old.recent or old.requests or old.unsettled):
        return False
    empty = copy_with(
        old,
        nonce=runtime.id_bytes().hex(),
        recent=(),
        runs=(),
        requests=(),
        unsettled=(),
    )
    if isinstance(
        await store.replace(lane_key(lane), encode_lane(empty), if_match=stored.etag), Applied
    ):
        for prefix in (parts_prefix(lane), requests_prefix(lane)):
            await OwnedObjects(store, prefix, old.owner_term + 1, runtime).collect(())
    return True
