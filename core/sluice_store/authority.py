"""Writes and reads what all parts of a deployment agree on: settings, and switches beside them."""

from dataclasses import dataclass

import msgspec

from sluice_protocol.authority import (
    SWITCHES_MAX,
    Authority,
    ModeSwitch,
    apply_mode_switch,
    check_authority,
    decode_authority,
    decode_mode_switch,
    mode_switch_key,
)
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import BadUsage, InvalidRecord, StoreMisconfigured
from sluice_protocol.keys import AUTHORITY_SETTINGS
from sluice_protocol.manifests import encode_record
from sluice_protocol.outcomes import Applied, Exists, Found
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, create_known


async def create_authority(
    store: ObjectStore,
    wanted: Authority | None = None,
    *,
    ids: IdSource | None = None,
    clock: Clock | None = None,
) -> Authority:
    """Writes the settings once; the same settings again are no error.

    Args:
        store: The store that becomes the acceptance authority.
        wanted: The settings, their id included; the defaults under a fresh id when None. The
            creation time is filled in with the store's own.
        ids: Where a fresh id comes from.
        clock: For the pauses between tries; the machine's clock when None.

    Returns:
        The settings that stand in the store.

    Raises:
        BadUsage: The settings break a rule, or others stand there already.
        OutcomeUnknown: Nobody knows whether the write landed; call again.
        StoreError: The store refused.
    """
    wanted = wanted or Authority(authority_id=(ids or SystemIds()).ulid())
    check_authority(wanted)
    wanted = msgspec.structs.replace(
        wanted, created_at_unix_ns=(await store.head(AUTHORITY_SETTINGS)).date_ns
    )
    backoff = Backoff.seeded_by(clock or SystemClock())
    match await create_known(store, AUTHORITY_SETTINGS, encode_record(wanted), backoff):
        case Applied():
            return wanted
        case Exists():
            return _same(wanted, await read_authority(store))


def _same(wanted: Authority, found: Authority) -> Authority:
    """Takes the settings that stand, when they differ in nothing that was chosen."""
    chosen = msgspec.structs.replace(
        wanted, authority_id=found.authority_id, created_at_unix_ns=found.created_at_unix_ns
    )
    if chosen != found:
        raise BadUsage(
            f"the store has other settings, only `sluice switch` changes the mode, found=`{found}`"
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityHistory:
    """The settings as they were created, and every switch since, in order.

    Attributes:
        created: The bytes of `authority/v1/settings.json`.
        switches: Each switch with its bytes.
    """

    created: bytes
    switches: tuple[tuple[ModeSwitch, bytes], ...]

    @property
    def current(self) -> Authority:
        """The settings that hold now.

        Raises:
            InvalidRecord: What stands there breaks a rule.
        """
        settings = decode_authority(self.created)
        for switch, _ in self.switches:
            settings = apply_mode_switch(settings, switch)
        return settings

    @property
    def next_number(self) -> int:
        """The number of the switch that comes next."""
        return len(self.switches) + 1


async def read_history(store: ObjectStore) -> AuthorityHistory:
    """Reads the settings and every switch.

    Raises:
        StoreMisconfigured: The store has none: `sluice init` was not run.
        InvalidRecord: A record is damaged.
        StoreError: No answer, or a refusal.
    """
    read = await store.get(AUTHORITY_SETTINGS)
    if not isinstance(read, Found):
        raise StoreMisconfigured(
            "get",
            AUTHORITY_SETTINGS,
            "no authority stands here: run `sluice init --store URL` first",
        )
    switches: list[tuple[ModeSwitch, bytes]] = []
    for number in range(1, SWITCHES_MAX + 1):
        found = await store.get(mode_switch_key(number))
        if not isinstance(found, Found):
            return AuthorityHistory(created=read.body, switches=tuple(switches))
        switches.append((decode_mode_switch(number, found.body), found.body))
    raise InvalidRecord(mode_switch_key(SWITCHES_MAX), "there are more switches than are read")


async def read_authority(store: ObjectStore) -> Authority:
    """Reads the settings that every part must agree on, as the last switch left them.

    Raises:
        StoreMisconfigured: The store has none: `sluice init` was not run.
        InvalidRecord: What stands there breaks a rule.
        StoreError: No answer, or a refusal.
    """
    return (await read_history(store)).current
