"""Writes and reads `authority/v1/settings.json`, what all parts of a deployment agree on."""

import msgspec

from sluice_protocol.authority import Authority, check_authority, decode_authority
from sluice_protocol.errors import BadUsage, OutcomeUnknown, StoreMisconfigured
from sluice_protocol.keys import AUTHORITY_SETTINGS
from sluice_protocol.manifests import encode_record
from sluice_protocol.outcomes import Applied, Exists, Found, Unknown
from sluice_store.clock import IdSource, SystemIds
from sluice_store.port import ObjectStore

TRIES_MAX = 5


async def create_authority(
    store: ObjectStore, wanted: Authority | None = None, *, ids: IdSource | None = None
) -> Authority:
    """Writes the settings once; the same settings again are no error.

    Args:
        store: The store that becomes the acceptance authority.
        wanted: The settings, their id included; the defaults under a fresh id when None. The
            creation time is filled in with the store's own.
        ids: Where a fresh id comes from.

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
    for _ in range(TRIES_MAX):
        match await store.create(AUTHORITY_SETTINGS, encode_record(wanted)):
            case Applied():
                return wanted
            case Exists():
                return _same(wanted, await read_authority(store))
            case Unknown():
                continue
    raise OutcomeUnknown("create", AUTHORITY_SETTINGS, TRIES_MAX)


def _same(wanted: Authority, found: Authority) -> Authority:
    """Takes the settings that stand, when they differ in nothing that was chosen."""
    chosen = msgspec.structs.replace(
        wanted, authority_id=found.authority_id, created_at_unix_ns=found.created_at_unix_ns
    )
    if chosen != found:
        raise BadUsage(f"the store has other settings, they are never changed, found=`{found}`")
    return found


async def read_authority(store: ObjectStore) -> Authority:
    """Reads the settings that every part must agree on.

    Raises:
        StoreMisconfigured: The store has none: `sluice init` was not run.
        InvalidRecord: What stands there breaks a rule.
        StoreError: No answer, or a refusal.
    """
    read = await store.get(AUTHORITY_SETTINGS)
    if isinstance(read, Found):
        return decode_authority(read.body)
    raise StoreMisconfigured(
        "get", AUTHORITY_SETTINGS, "no authority stands here: run `sluice init --store URL` first"
    )
