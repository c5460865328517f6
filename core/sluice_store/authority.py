"""The settings that all parts of a deployment share: the record, and the changes since."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from sluice_protocol.authority import (
    LANE_CHANGES_MAX,
    SWITCHES_MAX,
    Authority,
    LaneChange,
    ModeSwitch,
    Restore,
    apply_lane_change,
    apply_mode_switch,
    check_authority,
    decode_authority,
    decode_lane_change,
    decode_mode_switch,
    is_copy,
    lane_change_key,
    mode_switch_key,
    restore_key,
)
from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage, InvalidRecord, NoStore, StoreMisconfigured
from sluice_protocol.keys import AUTHORITY_SETTINGS
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Applied, Exists, Found, ObjectInfo
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_store.port import ObjectStore, run_together
from sluice_store.retry import Backoff, create_known
from sluice_store.url import StoreMode, open_store

_Record = TypeVar("_Record")


async def create_authority(
    store: ObjectStore,
    wanted: Authority | None = None,
    *,
    clock: Clock | None = None,
) -> Authority:
    """Create the settings of a deployment; creating the same settings again succeeds.

    Existing settings are only read, so a caller that may not create them may repeat it. `wanted` is
    stored with the store's time; None means the defaults with a new id.

    Raises:
        BadUsage: The settings break a rule, or the store has other settings.
    """
    wanted = wanted or Authority(authority_id=SystemIds().ulid())
    check_authority(wanted)
    looked = await store.head(AUTHORITY_SETTINGS)
    if isinstance(looked, ObjectInfo):
        return _same(wanted, await read_authority(store))
    wanted = msgspec.structs.replace(wanted, created_at_unix_ns=looked.date_ns)
    backoff = Backoff.seeded_by(clock or SystemClock())
    match await create_known(store, AUTHORITY_SETTINGS, encode_record(wanted), backoff):
        case Applied() | Exists():
            return _same(wanted, await read_authority(store))


async def read_store_time(store: ObjectStore) -> UnixNs:
    """Return the store's clock: the Date of the response to one HEAD request."""
    return (await store.head(AUTHORITY_SETTINGS)).date_ns


def _same(wanted: Authority, found: Authority) -> Authority:
    """Return the existing settings when every chosen value is the same, now or when created."""
    created_with = found.changes[0].lanes_before if found.changes else found.lanes
    chosen = msgspec.structs.replace(
        wanted,
        authority_id=found.authority_id,
        created_at_unix_ns=found.created_at_unix_ns,
        lane_changes=found.lane_changes,
        lanes=found.lanes if wanted.lanes == created_with else wanted.lanes,
    )
    other = [
        f"{name}=`{value}`"
        for name, value in msgspec.structs.asdict(found).items()
        if value != getattr(chosen, name)
    ]
    if other:
        raise BadUsage(
            "cannot create settings: the store has other ones, and only `sluice switch` can change"
            " the mode and its writer, and `sluice queue lanes` the number of lanes; omit these"
            " options or use another store,"
            f" {', '.join(other)}"
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityHistory:
    """The settings as created, and every change since, in order, each with its bytes."""

    created: bytes
    settings: Authority
    switches: tuple[tuple[ModeSwitch, bytes], ...]
    lane_changes: tuple[tuple[LaneChange, bytes], ...] = ()

    @property
    def current(self) -> Authority:
        """The settings after every mode switch and every change of the number of lanes."""
        settings = self.settings
        for switch, _ in self.switches:
            settings = apply_mode_switch(settings, switch)
        for change, _ in self.lane_changes:
            settings = apply_lane_change(settings, change)
        return settings

    @property
    def spool_left_ns(self) -> UnixNs | None:
        """The time of the newest switch away from `local_spool`; None if there is none."""
        times = [
            switch.switched_at_unix_ns
            for switch, _ in self.switches
            if switch.acceptance != "local_spool"
        ]
        return UnixNs(times[-1]) if times else None

    @property
    def next_number(self) -> int:
        """The number of the next mode switch."""
        return len(self.switches) + 1


async def read_history(store: ObjectStore, *, is_spool: bool = False) -> AuthorityHistory:
    """Read the settings, every mode switch, and every change of the number of lanes.

    The settings in the spool of a gateway are always a copy.

    Raises:
        NoStore: `sluice init` was not run.
        StoreMisconfigured: The store is a copy in which newer deletes may be missing.
    """
    read = await store.get(AUTHORITY_SETTINGS)
    if not isinstance(read, Found):
        raise NoStore(
            AUTHORITY_SETTINGS,
            "no authority in this store: correct its URL, or run `sluice init --store URL` first",
        )
    settings, date_ns = decode_authority(read.body), read.info.last_modified_ns
    if (
        not is_spool
        and is_copy(settings, date_ns, 0)
        and is_copy(settings, date_ns, await read_restored_at(store))
    ):
        raise StoreMisconfigured(
            "open",
            AUTHORITY_SETTINGS,
            "this store is a copy, in which newer deletes, erasures and holds may be missing: run"
            " `sluice restore`",
        )
    switches, lane_changes = await run_together(
        _read_numbered(store, mode_switch_key, decode_mode_switch, SWITCHES_MAX),
        _read_numbered(store, lane_change_key, decode_lane_change, LANE_CHANGES_MAX),
    )
    return AuthorityHistory(
        created=read.body, settings=settings, switches=switches, lane_changes=lane_changes
    )


async def _read_numbered(
    store: ObjectStore,
    key_of: Callable[[int], ObjectKey],
    decode: Callable[[int, bytes], _Record],
    most: int,
) -> tuple[tuple[_Record, bytes], ...]:
    """Read the records of one kind, which are numbered from 1 without gaps."""
    found: list[tuple[_Record, bytes]] = []
    while isinstance(read := await store.get(key_of(len(found) + 1)), Found):
        found.append((decode(len(found) + 1, read.body), read.body))
        if len(found) > most:
            raise InvalidRecord(key_of(most), "too many records of this kind")
    return tuple(found)


async def read_restored_at(store: ObjectStore) -> int:
    """Return when a copy was restored last; 0 for never."""
    restores = await read_restores(store)
    return restores[-1].restored_at_unix_ns if restores else 0


async def read_restores(store: ObjectStore) -> list[Restore]:
    """Return the records of all restores."""
    found: list[Restore] = []
    while isinstance(read := await store.get(key := restore_key(len(found) + 1)), Found):
        found.append(decode_record(key, read.body, Restore))
    return found


async def read_authority(store: ObjectStore) -> Authority:
    """Read the settings that every part must share, as of their last change."""
    return (await read_history(store)).current


@asynccontextmanager
async def open_deployment(
    url: str, mode: StoreMode = StoreMode.WRITE, *, initialised: bool = True
) -> AsyncIterator[ObjectStore]:
    """Open the store that a URL names, after a check that this version can read its settings.

    With `initialised=False` they may be missing: `sluice doctor` runs before `sluice init`.
    """
    async with open_store(url, mode) as store:
        if initialised or isinstance(await store.get(AUTHORITY_SETTINGS), Found):
            await read_authority(store)
        yield store
