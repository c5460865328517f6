"""Stored decisions about expiry: how long raw batches are kept, holds, and tombstones.

Decisions and holds grow by what operators decide. A hold that was lifted stays, with the record of
that. Tombstones grow with batches, and a reader lists only those of a week of acceptance.
"""

import asyncio
from collections import OrderedDict
from typing import Final, Literal

import msgspec

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.expiry import (
    TOMBSTONE_HOURS_MAX,
    BootIndex,
    Holds,
    LegalHold,
    LegalHoldLifted,
    RetentionDecision,
    SignedTombstone,
    check_hold,
    check_keep_s,
    decode_hold,
    decode_retention,
    decode_tombstone,
    hold_lifted_key,
    keep_s_least,
    legal_hold_key,
    retention_key,
)
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    EXPIRED,
    HOLDS,
    RETENTION_DECISIONS,
    hour_of,
    path_of_hour,
    tombstone_hours,
)
from sluice_protocol.manifests import (
    AcceptedManifest,
    ConflictManifest,
    decode_record,
    encode_record,
)
from sluice_protocol.outcomes import Found
from sluice_protocol.units import Digest, ObjectKey
from sluice_store.authority import read_authority, read_store_time
from sluice_store.port import ObjectStore, read_bodies
from sluice_store.retry import Backoff, OtherBytes, create_once

HOURS_KEPT: Final = 1_000
"""Hours of which a reader remembers the keys of tombstones."""
TOMBSTONES_KEPT: Final = 200
"""Tombstones that a reader remembers, with up to 10,000 batches of about 120 bytes each."""
_LIFTED: Final = "-lifted.json"
Unchanged = Literal["unchanged"]
"""A retention that stays as it was decided before."""


async def read_retention(store: ObjectStore) -> RetentionDecision | None:
    """Return the decision in effect; None if nothing was ever decided."""
    numbers = [
        int(one.key.removeprefix(RETENTION_DECISIONS).removesuffix(".json"))
        async for page in store.list(RETENTION_DECISIONS)
        for one in page.objects
        if one.key.removeprefix(RETENTION_DECISIONS).removesuffix(".json").isdecimal()
    ]
    if not numbers:
        return None
    key = retention_key(max(numbers))
    read = await store.get(key)
    if not isinstance(read, Found):
        raise InvalidRecord(key, "listed but no longer present, although decisions are permanent")
    return decode_retention(max(numbers), read.body)


async def set_retention(
    store: ObjectStore,
    raw_keep_s: int | Unchanged | None,
    *,
    tables_keep_s: int | Unchanged | None = "unchanged",
    by: str,
    note: str,
    backoff: Backoff,
) -> RetentionDecision:
    """Record a decision, unless it is in effect already; return the one in effect.

    Raises:
        BadUsage: It is too short, or another operator decided at the same moment.
    """
    before = await read_retention(store)
    if raw_keep_s == "unchanged":
        raw_keep_s = None if before is None else before.raw_keep_s
    if tables_keep_s == "unchanged":
        tables_keep_s = None if before is None else before.tables_keep_s
    check_keep_s(await read_authority(store), raw_keep_s)
    decided = (raw_keep_s, tables_keep_s)
    if before is not None and (before.raw_keep_s, before.tables_keep_s) == decided:
        return before
    wanted = RetentionDecision(
        number=1 if before is None else before.number + 1,
        raw_keep_s=raw_keep_s,
        tables_keep_s=tables_keep_s,
        decided_by=by,
        decided_at_unix_ns=await read_store_time(store),
        note=note,
    )
    key = retention_key(wanted.number)
    if isinstance(await create_once(store, key, encode_record(wanted), backoff), OtherBytes):
        raise BadUsage("another operator decided at the same moment: see `sluice retention show`")
    return wanted


async def read_holds(store: ObjectStore) -> Holds:
    """Read every hold; one that cannot be decoded, or whose end cannot, is in effect."""
    keys = [one.key async for page in store.list(HOLDS) for one in page.objects]
    bodies = dict(zip(keys, await read_bodies(store, keys), strict=True))
    active: list[LegalHold] = []
    lifted: list[tuple[LegalHold, LegalHoldLifted]] = []
    unreadable: list[InvalidRecord] = []
    for key in keys:
        if key.endswith(_LIFTED):
            continue
        try:
            hold = decode_hold(key, bodies[key] or b"")
        except InvalidRecord as error:
            unreadable.append(error)
            continue
        end_key = hold_lifted_key(hold.hold_id)
        body = bodies.get(end_key)
        try:
            end = None if body is None else decode_record(end_key, body, LegalHoldLifted)
        except InvalidRecord:
            end = None
        if end is None or end.hold_id != hold.hold_id:
            active.append(hold)
        else:
            lifted.append((hold, end))
    return Holds(active=tuple(active), unreadable=tuple(unreadable), lifted=tuple(lifted))


async def add_hold(store: ObjectStore, hold: LegalHold, backoff: Backoff) -> LegalHold:
    """Create a hold; its id is new."""
    check_hold(hold)
    key = legal_hold_key(hold.hold_id)
    if isinstance(await create_once(store, key, encode_record(hold), backoff), OtherBytes):
        raise BadUsage(f"another hold has this id: run the command again, hold=`{hold.hold_id}`")
    return hold


async def lift_hold(
    store: ObjectStore, hold_id: str, *, by: str, reason: str, backoff: Backoff
) -> LegalHoldLifted:
    """Record that a hold ends; a second time returns the first record."""
    if not reason.strip():
        raise BadUsage("the end of a hold needs a reason: add one with `--reason`")
    read = await store.get(legal_hold_key(hold_id))
    if not isinstance(read, Found):
        raise BadUsage(f"no such hold: see `sluice hold list`, hold=`{hold_id[:80]}`")
    end = LegalHoldLifted(
        hold_id=hold_id, lifted_by=by, reason=reason, lifted_at_unix_ns=read.info.date_ns
    )
    key = hold_lifted_key(hold_id)
    outcome = await create_once(store, key, encode_record(end), backoff)
    if isinstance(outcome, OtherBytes):
        return decode_record(key, outcome.body, LegalHoldLifted)
    return end


class RetentionState(msgspec.Struct, frozen=True, kw_only=True):
    """What is in effect.

    Attributes:
        rule: The last decision; null if nothing was ever decided, so that nothing expires.
        least_s: The shortest raw retention that the store accepts.
        unreadable: Holds that cannot be decoded, with the reason; each keeps everything.
        due: Ids of holds whose review date is over, by the store's clock.
        lifted: The ends of earlier holds.
    """

    rule: RetentionDecision | None = None
    least_s: int
    holds: tuple[LegalHold, ...] = ()
    unreadable: tuple[str, ...] = ()
    due: tuple[str, ...] = ()
    lifted: tuple[LegalHoldLifted, ...] = ()


async def read_retention_state(store: ObjectStore) -> RetentionState:
    """Read the decision in effect and every hold."""
    rule = await read_retention(store)
    holds = await read_holds(store)
    now_ns = await read_store_time(store)
    return RetentionState(
        rule=rule,
        least_s=keep_s_least(await read_authority(store)),
        holds=holds.active,
        unreadable=tuple(map(str, holds.unreadable)),
        due=tuple(one.hold_id for one in holds.active if one.review_at_unix_ns <= now_ns),
        lifted=tuple(end for _, end in holds.lifted),
    )


Boots = dict[tuple[str, str], BootIndex]


class TombstoneReader:
    """Finds the tombstones of batches, and remembers those that it read last.

    Tombstones are permanent, so it never reads one again. One that is damaged names nothing; audits
    report it. Signatures are not verified: a reader only reports them. A deletion verifies them.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._hours: OrderedDict[int, tuple[ObjectKey, ...]] = OrderedDict()
        self._read: OrderedDict[ObjectKey, tuple[SignedTombstone | None, Boots]] = OrderedDict()
        self._lock = asyncio.Lock()

    async def find(self, manifest: AcceptedManifest | ConflictManifest) -> SignedTombstone | None:
        """Return the newest tombstone that names a manifest and its hash; None without one."""
        if isinstance(manifest, ConflictManifest):
            hour = hour_of(manifest.observed_at_unix_ns)
            digest = Digest(manifest.submitted_frame_sha256)
            return await self.look_up(hour, manifest.identity, digest, refused=True)
        hour = hour_of(manifest.accepted_at_unix_ns)
        return await self.look_up(hour, manifest.identity, manifest.digest)

    async def look_up(
        self, hour: int, who: Identity, digest: Digest, *, refused: bool = False
    ) -> SignedTombstone | None:
        """Return the newest tombstone that names a batch of an hour of acceptance since 1970.

        With `refused`, it is the hour in which these bytes were refused.
        """
        newest: SignedTombstone | None = None
        async with self._lock:
            for key in await self._keys_of(hour):
                signed, boots = await self._get(key)
                boot = boots.get((who.agent_id, who.boot_id))
                if signed is None or boot is None or not boot.names(who, digest):
                    continue
                if (signed.tombstone.refused is True) != refused:
                    continue
                if newest is None or newest.tombstone.run_id < signed.tombstone.run_id:
                    newest = signed
        return newest

    async def _keys_of(self, hour: int) -> tuple[ObjectKey, ...]:
        """Return the keys of the tombstones that may name a batch of an hour."""
        if hour not in self._hours:
            pages = self._store.list(
                EXPIRED,
                start_after=f"{EXPIRED}{path_of_hour(hour)}/",
                end_at=f"{EXPIRED}{path_of_hour(hour + TOMBSTONE_HOURS_MAX)}/",
            )
            keys = [one.key async for page in pages for one in page.objects]
            self._hours[hour] = tuple(key for key in keys if hour in tombstone_hours(key))
            while len(self._hours) > HOURS_KEPT:
                self._hours.popitem(last=False)
        return self._hours[hour]

    async def _get(self, key: ObjectKey) -> tuple[SignedTombstone | None, Boots]:
        if key not in self._read:
            self._read[key] = await self._decode(key)
            while len(self._read) > TOMBSTONES_KEPT:
                self._read.popitem(last=False)
        self._read.move_to_end(key)
        return self._read[key]

    async def _decode(self, key: ObjectKey) -> tuple[SignedTombstone | None, Boots]:
        read = await self._store.get(key)
        try:
            signed = decode_tombstone(key, read.body) if isinstance(read, Found) else None
        except InvalidRecord:
            return None, {}
        boots = () if signed is None else signed.tombstone.boots
        return signed, {(one.agent_id, one.boot_id): BootIndex(one) for one in boots}
