"""Lanes whose register or work lists are lost: told, and made again from what was accepted.

A lane whose register is gone has also lost which sequences it gave. It is created anew from one
above the highest that its consumer persisted, which for Spark's queue the lake tells; its ledger is
emptied, so that every batch is enqueued again and the consumer's own ledger drops what it has. So
for a register that is there and has not come as far as its consumer: it is not the one it was.
"""

from collections.abc import AsyncIterator, Mapping

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import ACCEPTED, lane_of, parse_accepted_key
from sluice_protocol.manifests import (
    AcceptedManifest,
    WorkList,
    decode_accepted,
    encode_record,
)
from sluice_protocol.outcomes import Applied, Exists, Found, Unknown
from sluice_protocol.units import ObjectKey
from sluice_queue.entries import Descriptor
from sluice_queue.errors import WorkListMissing
from sluice_queue.inspection import list_lanes, read_lane
from sluice_queue.lane import Lane, Runtime
from sluice_queue.register import Register, decode_register, encode_register
from sluice_queue.worklists import read_work_list
from sluice_reconciler.differences import Difference, Wrong
from sluice_reconciler.intake import Intake
from sluice_reconciler.lane_owner import is_register_lost, read_lane_state
from sluice_reconciler.lane_state import LaneRecord, encode_lane, lane_key


class LaneRebuild:
    """The lanes of one store."""

    def __init__(self, intake: Intake, runtime: Runtime, persisted: Mapping[Lane, int]) -> None:
        """As `Rebuild`."""
        self._intake = intake
        self._store = intake.store
        self._runtime = runtime
        self._persisted = persisted

    async def differences(self) -> list[Difference]:
        """Looks at registers, lane states, and the lists of waiting entries."""
        found: list[Difference] = []
        for desk in self._intake.desks.values():
            wrong = await self._register_wrong(desk.lane)
            if wrong is not None:
                detail = "its lane was given batches; rebuild goes on behind its consumer"
                found.append(Difference(key=desk.lane.key, wrong=wrong, detail=detail))
        for lane in await list_lanes(self._store):
            for entry in await self._lost_lists(lane):
                detail = f"entry {entry.sequence} of {lane.queue}.{lane.lane:03d}"
                found.append(Difference(key=entry.location, wrong=Wrong.MISSING, detail=detail))
        return found

    async def _register_wrong(self, lane: Lane) -> Wrong | None:
        """Tells whether a register is lost, or is not the one that its consumer read from."""
        persisted = self._persisted.get(lane, 0)
        lost = await is_register_lost(self._store, lane)
        read = await self._store.get(lane.key)
        if isinstance(read, Found):
            behind = decode_register(lane.key, read.body).next_sequence <= persisted
            return Wrong.DIFFERENT if lost or behind else None
        return Wrong.MISSING if lost or persisted > 0 else None

    async def _lost_lists(self, lane: Lane) -> list[Descriptor]:
        view = await read_lane(self._store, lane.queue, lane.lane)

        async def lost(entry: Descriptor) -> bool:
            try:
                await read_work_list(self._store, lane, entry)
            except (WorkListMissing, InvalidRecord):
                return True
            return False

        gone = await self._intake.each(view.descriptors, lost)
        return [entry for entry, is_gone in zip(view.descriptors, gone, strict=True) if is_gone]

    async def mend_registers(self, first_sequence: int | None) -> AsyncIterator[Difference]:
        """Makes lost registers anew and gives each.

        Raises:
            BadUsage: A register is lost and nobody tells where it goes on.
        """
        for desk in self._intake.desks.values():
            wrong = await self._register_wrong(desk.lane)
            if wrong is not None:
                yield await self._new_register(desk.lane, wrong, first_sequence)

    async def mend_lists(self) -> None:
        """Writes every lost work list again."""
        for lane in await list_lanes(self._store):
            await self._mend_lists(lane)

    async def _new_register(
        self, lane: Lane, wrong: Wrong, first_sequence: int | None
    ) -> Difference:
        """Empties the lane's ledger, then makes a register that goes on behind its consumer."""
        first = self._persisted[lane] + 1 if lane in self._persisted else first_sequence
        if first is None or first < 1:
            raise BadUsage(
                "a lane's register is lost: give --first-sequence, one above the highest sequence"
                f" that its consumer persisted, register=`{lane.key}`"
            )
        stored = await read_lane_state(self._store, lane)
        record = LaneRecord(
            queue=lane.queue,
            lane=lane.lane,
            nonce=self._runtime.id_bytes().hex(),
            producer_id=self._runtime.id_bytes().hex(),
            life=stored.record.life + 1 if stored is not None else 0,
        )
        await self._store.overwrite(lane_key(lane), encode_lane(record))
        state = Register(
            revision=1,
            nonce=self._runtime.id_bytes(),
            next_sequence=first,
            acked_through=first - 1,
        )
        body = encode_register(state)
        put = self._store.create if wrong is Wrong.MISSING else self._store.overwrite
        match await put(lane.key, body):
            case Applied():
                detail = f"created anew from {first}"
                return Difference(key=lane.key, wrong=wrong, detail=detail)
            case Exists() | Unknown():
                raise BadUsage(f"the register came back, run again, register=`{lane.key}`")

    async def _mend_lists(self, lane: Lane) -> None:
        """Writes each lost list again: every batch of the lane accepted in the entry's span.

        That is what the entry stood for and perhaps more; the consumer's ledger drops the rest.
        """
        for entry in await self._lost_lists(lane):
            batches = [one async for one in self._accepted_in(lane, entry)]
            if len(batches) < entry.batches:
                raise InvalidRecord(entry.location, "fewer batches are accepted than it held")
            body = encode_record(WorkList(queue=lane.queue, lane=lane.lane, batches=tuple(batches)))
            await self._store.overwrite(entry.location, body)

    async def _accepted_in(self, lane: Lane, entry: Descriptor) -> AsyncIterator[AcceptedManifest]:
        span = range(entry.first_accepted_at_ns, entry.last_accepted_at_ns + 1)
        async for page in self._store.list(ACCEPTED):
            mine = [one.key for one in page.objects if self._of_lane(one.key, lane)]
            for read in await self._intake.each(mine, self._store.get):
                if isinstance(read, Found):
                    try:
                        manifest = decode_accepted(read.info.key, read.body)
                    except InvalidRecord:
                        continue
                    if manifest.accepted_at_unix_ns in span:
                        yield manifest

    def _of_lane(self, key: ObjectKey, lane: Lane) -> bool:
        try:
            return lane_of(parse_accepted_key(key).agent_id, self._intake.lanes) == lane.lane
        except InvalidRecord:
            return False
