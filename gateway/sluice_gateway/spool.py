"""Opens a spool: the local store that accepts, tied to one authority and to one process.

Three things refuse a second writer: the authority names the one collector, a claim in the authority
names the one spool directory, and a lock in that directory admits one process.
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
from sluice_store.retry import Backoff, OtherBytes, create_once
from sluice_store.url import parse_local_path

CLAIM: Final = ObjectKey("authority/v1/spool.json")
LOCK_NAME: Final = ".spool.lock"

log = structlog.get_logger()


class SpoolClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Ties an authority to one spool directory; the same record stands in both.

    Attributes:
        spool_id: ULID of the directory.
        spool_writer: The collector id of its gateway.
    """

    schema: Literal["sluice.spool_claim.v1"] = "sluice.spool_claim.v1"
    spool_id: str
    spool_writer: str


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Holds the directory of a spool for this process.

    Raises:
        BadUsage: Another process holds it.
    """
    folder = parse_local_path(url)
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise BadUsage(f"another gateway holds this spool: stop it, spool=`{url}`") from error
    finally:
        os.close(handle)


async def agree(local: ObjectStore, remote: ObjectStore, clock: Clock) -> AuthorityHistory:
    """Gives the authority's settings, kept in the spool too so that it starts without a network.

    Raises:
        BadUsage: The spool was made for another authority, or a switch of it was only begun.
        StoreError: The authority cannot be read and the spool does not know it yet.
    """
    try:
        history = await read_history(remote)
    except StoreUnavailable as error:
        log.warning("authority not reached, the spool's copy holds", reason=str(error))
        return await read_history(local)
    backoff = Backoff.seeded_by(clock)
    await _mirror(local, AUTHORITY_SETTINGS, history.created, backoff)
    for switch, body in history.switches:
        await _mirror(local, mode_switch_key(switch.number), body, backoff)
    if isinstance(await local.head(mode_switch_key(history.next_number)), ObjectInfo):
        raise BadUsage("a switch away from this spool was begun: run `sluice switch` again")
    return history


async def _mirror(local: ObjectStore, key: ObjectKey, body: bytes, backoff: Backoff) -> None:
    if isinstance(await create_once(local, key, body, backoff), OtherBytes):
        raise BadUsage(
            f"the spool belongs to another authority: take another directory, key=`{key}`"
        )


async def claim(local: ObjectStore, remote: ObjectStore, ids: IdSource, collector_id: str) -> None:
    """Claims the authority for this spool, or finds that it is claimed so already.

    Raises:
        BadUsage: Another spool has claimed it: landing would mix two writers.
        StoreError: No answer; call again.
    """
    body = await _own_claim(local, ids, collector_id)
    # One try only: an unreachable authority must not delay the start, and the lander tries again.
    match await remote.create(CLAIM, body):
        case Applied():
            return
        case Exists():
            found = await remote.get(CLAIM)
            if isinstance(found, Found) and found.body == body:
                return
            raise BadUsage("another spool lands on this authority: nothing was landed")
        case _:
            raise StoreUnavailable("create", CLAIM, "the claim may not have landed: tried again")


async def _own_claim(local: ObjectStore, ids: IdSource, collector_id: str) -> bytes:
    body = encode_record(SpoolClaim(spool_id=ids.ulid(), spool_writer=collector_id))
    outcome = await local.create(CLAIM, body)
    if isinstance(outcome, Applied):
        return body
    found = await local.get(CLAIM)
    if not isinstance(found, Found):
        raise StoreError("get", CLAIM, "the spool's claim cannot be read")
    decode_record(CLAIM, found.body, SpoolClaim)
    return found.body
