"""Mode switch: changes an authority between `s3_manifest` and `local_spool` without a loss.

A switch is one record, `authority/v1/switches/<number>.json`, created only where none exists. Of
two concurrent switches one creates the record and the other fails. These rules make it safe:

- Away from a spool: the spool is locked, so its gateway does not run, and every record in it was
  transferred. The switch is written to the spool first: from then on the spool accepts nothing,
  also without a network. After a crash in between, the same command completes the switch.
- To a spool: a running gateway reads the record within `NOTICE_S_MAX`, or stops accepting because
  it cannot read it. The gateway of the spool waits for that time, then copies the accepted records
  (`adopt_records`), and only then serves: its manifests decide, so it needs all of them.

Source: ADR 16.
"""

from typing import Final

import structlog

from sluice_gateway.spool.claim import CLAIM, SpoolClaim
from sluice_gateway.spool.records import untransferred_keys
from sluice_protocol.authority import (
    Authority,
    ModeSwitch,
    apply_mode_switch,
    decode_mode_switch,
    mode_switch_key,
)
from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import ACCEPTED, DECISIONS, QUARANTINE_CONFLICTS
from sluice_protocol.manifests import (
    TRANSFER_MARKERS,
    TransferMarker,
    decode_record,
    encode_record,
    transfer_marker_key,
)
from sluice_protocol.outcomes import Found, NotFound, ObjectInfo
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_store.authority import AuthorityHistory, read_history, read_store_time
from sluice_store.port import ObjectStore, run_concurrently
from sluice_store.retry import Backoff, OtherBytes, create_known, create_once

ADOPT_CONCURRENCY: Final = 16

log = structlog.get_logger()


async def switch_to_spool(remote: ObjectStore, spool_writer: str, clock: Clock) -> Authority:
    """Let one spooling gateway accept, and no other gateway; nothing is written if it may already.

    Raises:
        BadUsage: Another gateway spools, another spool has claimed the authority, or a concurrent
            switch was first.
    """
    history = await read_history(remote)
    if history.current.acceptance == "local_spool":
        if history.current.spool_writer == spool_writer:
            return history.current
        raise BadUsage(
            "another gateway spools already: switch to s3_manifest first,"
            f" spool_writer=`{history.current.spool_writer}`"
        )
    found = await remote.get(CLAIM)
    if isinstance(found, Found):
        claimed = decode_record(CLAIM, found.body, SpoolClaim).spool_writer
        if claimed != spool_writer:
            raise BadUsage(
                "another spool has claimed the authority: only its gateway may spool again,"
                f" spool_writer=`{claimed}`"
            )
    body = await _record(
        remote,
        history,
        ModeSwitch(number=history.next_number, acceptance="local_spool", spool_writer=spool_writer),
    )
    return await _publish(remote, history, body, Backoff.seeded_by(clock))


async def switch_to_manifest(remote: ObjectStore, local: ObjectStore, clock: Clock) -> Authority:
    """Let every gateway on the object store accept; the caller has locked the spool.

    Nothing is written if they may already.

    Raises:
        BadUsage: The spool has not claimed the authority or contains records to transfer, or a
            concurrent switch was first.
    """
    history = await read_history(remote)
    if history.current.acceptance == "s3_manifest":
        return history.current
    await _check_own_spool(remote, local)
    await _check_all_transferred(local)
    wanted = ModeSwitch(number=history.next_number, acceptance="s3_manifest")
    body = await _record(remote, history, wanted)
    backoff = Backoff.seeded_by(clock)
    closed = await create_once(local, mode_switch_key(wanted.number), body, backoff)
    # The record of an earlier call that was interrupted wins: the spool already obeys it.
    begun = closed.body if isinstance(closed, OtherBytes) else body
    return await _publish(remote, history, begun, backoff)


async def _check_own_spool(remote: ObjectStore, local: ObjectStore) -> None:
    theirs, ours = await remote.get(CLAIM), await local.get(CLAIM)
    if isinstance(theirs, NotFound):
        if isinstance(ours, NotFound):
            return  # no gateway has ever spooled here
        raise BadUsage(
            "this spool has never reached the authority: start its gateway to transfer it"
        )
    if not isinstance(ours, Found) or ours.body != theirs.body:
        raise BadUsage("another spool has claimed the authority: pass the directory of that spool")


async def _check_all_transferred(local: ObjectStore) -> None:
    pending = [key async for key in untransferred_keys(local)]
    if pending:
        raise BadUsage(
            "the spool contains records to transfer: start its gateway until"
            f" sluice_spool_pending_batches is 0, pending=`{len(pending)}`, first=`{pending[0]}`"
        )


async def _record(remote: ObjectStore, history: AuthorityHistory, wanted: ModeSwitch) -> bytes:
    apply_mode_switch(history.current, wanted)
    now_ns = await read_store_time(remote)
    return encode_record(
        ModeSwitch(
            number=wanted.number,
            acceptance=wanted.acceptance,
            spool_writer=wanted.spool_writer,
            switched_at_unix_ns=now_ns,
        )
    )


async def _publish(
    remote: ObjectStore, history: AuthorityHistory, body: bytes, backoff: Backoff
) -> Authority:
    number = history.next_number
    if isinstance(await create_once(remote, mode_switch_key(number), body, backoff), OtherBytes):
        raise BadUsage(
            f"a concurrent switch was first: inspect it, key=`{mode_switch_key(number)}`"
        )
    return apply_mode_switch(history.current, decode_mode_switch(number, body))


async def adopt_records(
    local: ObjectStore,
    remote: ObjectStore,
    history: AuthorityHistory,
    clock: Clock,
    settle_s: float,
) -> None:
    """Copy the records that other gateways accepted before the switch to the spool.

    This is done once per switch; after a crash it is repeated. The transfer marker of a record is
    written before its copy, so that no transfer reads its blob.
    """
    number = len(history.switches)
    done = ObjectKey(f"{TRANSFER_MARKERS}adopted/{number:06d}.json")
    if number == 0 or isinstance(await local.head(done), ObjectInfo):
        return
    await _settle(remote, number, clock, settle_s)
    count = 0
    backoff = Backoff.seeded_by(clock)
    marker = encode_record(TransferMarker(result="copied", transferred_at_unix_ns=clock.now_ns()))
    for prefix in (ACCEPTED, QUARANTINE_CONFLICTS, DECISIONS):
        count += await _adopt_prefix(local, remote, prefix, marker, backoff)
    await create_known(local, done, marker, backoff)
    log.info("spool_records_adopted", switch=number, copied=count)


async def _settle(remote: ObjectStore, number: int, clock: Clock, settle_s: float) -> None:
    """Wait, by the clock of the store, until no gateway of the old mode can accept."""
    info = await remote.head(mode_switch_key(number))
    if not isinstance(info, ObjectInfo):
        raise BadUsage(f"the switch record is missing: restore it, key=`{mode_switch_key(number)}`")
    left_s = settle_s - (info.date_ns - info.last_modified_ns) / NS_PER_S
    if left_s > 0:
        log.info("mode_switch_settling", seconds=round(left_s, 1))
        await clock.sleep(left_s)


async def _adopt_prefix(
    local: ObjectStore, remote: ObjectStore, prefix: str, marker: bytes, backoff: Backoff
) -> int:
    known = {item.key async for page in local.list(prefix) for item in page.objects}
    count = 0
    async for page in remote.list(prefix):
        missing = [item.key for item in page.objects if item.key not in known]
        await run_concurrently(
            missing,
            lambda key: _adopt_one(local, remote, key, marker, backoff),
            concurrency=ADOPT_CONCURRENCY,
        )
        count += len(missing)
    return count


async def _adopt_one(
    local: ObjectStore, remote: ObjectStore, key: ObjectKey, marker: bytes, backoff: Backoff
) -> None:
    found = await remote.get(key)
    if isinstance(found, Found):
        await create_known(local, transfer_marker_key(key), marker, backoff)
        await create_known(local, key, found.body, backoff)
