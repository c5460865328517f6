"""The spool: a local store that accepts, bound to one authority and to one process.

Three records prevent a second writer: the authority names one collector, a claim in the authority
names one spool directory, and a lock in that directory admits one process.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

import msgspec
import structlog

from sluice_protocol.authority import mode_switch_key
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import BadUsage, StoreError, StoreUnavailable
from sluice_protocol.keys import AUTHORITY_SETTINGS
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Applied, Exists, Found, ObjectInfo
from sluice_protocol.units import ObjectKey
from sluice_store import ObjectStore
from sluice_store.authority import AuthorityHistory, read_history
from sluice_store.replication import refuse_replica
from sluice_store.retry import Backoff, OtherBytes, create_once
from sluice_store.url import parse_local_path

CLAIM: Final = ObjectKey("authority/v1/spool.json")
LOCK_NAME: Final = ".spool.lock"

log = structlog.get_logger()


class SpoolClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Binds an authority to one spool directory; both contain the same record.

    `spool_id` is the ULID of the directory, and `spool_writer` the collector id of its gateway.
    """

    schema: Literal["sluice.spool_claim.v1"] = "sluice.spool_claim.v1"
    spool_id: str
    spool_writer: str


@contextmanager
def lock_spool(url: str) -> Iterator[None]:
    """Lock the directory of a spool for this process; raise `BadUsage` if another one has it."""
    folder = parse_local_path(url)
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise BadUsage(f"another gateway has locked this spool: stop it, spool=`{url}`") from error
    finally:
        os.close(handle)


async def mirror_authority(
    local: ObjectStore, remote: ObjectStore, clock: Clock
) -> AuthorityHistory:
    """Copy the settings of the authority to the spool, which then starts without a network.

    Raises:
        BadUsage: The spool belongs to another authority, or a mode switch is unfinished.
    """
    try:
        history = await read_history(remote)
        await refuse_replica(remote)
    except StoreUnavailable as error:
        log.warning("authority_unreachable", reason=str(error), settings="copy in the spool")
        return await read_history(local, is_spool=True)
    backoff = Backoff.seeded_by(clock)
    await _mirror(local, AUTHORITY_SETTINGS, history.created, backoff)
    for switch, body in history.switches:
        await _mirror(local, mode_switch_key(switch.number), body, backoff)
    if isinstance(await local.head(mode_switch_key(history.next_number)), ObjectInfo):
        raise BadUsage("a switch away from this spool is unfinished: run `sluice switch` again")
    return history


async def _mirror(local: ObjectStore, key: ObjectKey, body: bytes, backoff: Backoff) -> None:
    # Read first: a spool that has the record starts without a write, also on a full disk.
    found = await local.get(key)
    same = isinstance(found, Found) and found.body == body
    if not same and isinstance(await create_once(local, key, body, backoff), OtherBytes):
        raise BadUsage(
            f"the spool belongs to another authority: choose another directory, key=`{key}`"
        )


async def claim_authority(
    local: ObjectStore, remote: ObjectStore, ids: IdSource, collector_id: str
) -> None:
    """Claim the authority for this spool, or confirm the claim; a second spool is refused."""
    body = await _own_claim(local, ids, collector_id)
    found = await remote.get(CLAIM)
    if isinstance(found, Found) and found.body == body:
        return
    # One try only: an unreachable authority must not delay the start; the transfer tries again.
    match await remote.create(CLAIM, body):
        case Applied():
            return
        case Exists():
            found = await remote.get(CLAIM)
            if isinstance(found, Found) and found.body == body:
                return
            raise BadUsage("another spool has claimed this authority: nothing was transferred")
        case _:
            raise StoreUnavailable(
                "create", CLAIM, "the outcome of the claim is unknown: it is tried again"
            )


async def _own_claim(local: ObjectStore, ids: IdSource, collector_id: str) -> bytes:
    found = await local.get(CLAIM)
    if not isinstance(found, Found):
        body = encode_record(SpoolClaim(spool_id=ids.ulid(), spool_writer=collector_id))
        if isinstance(await local.create(CLAIM, body), Applied):
            return body
        found = await local.get(CLAIM)
    if not isinstance(found, Found):
        raise StoreError("get", CLAIM, "the claim of the spool cannot be read")
    decode_record(CLAIM, found.body, SpoolClaim)
    return found.body
