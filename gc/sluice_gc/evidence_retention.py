"""Removal of old audit evidence: the certificate decides, and only then are files removed.

Every audit writes one row for each manifest and blob, so its evidence is as large as the listing.
Only the evidence of the newest two certificates and of plans that may still be executed is needed.
Certificates themselves are small and permanent. Each states the lowest chain position whose
evidence is kept (`evidence_kept_from`), is signed, and exists before anything is removed. A missing
file below that position was removed by rule; a missing file at or above it is a fault.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from sluice_gc.certificate import (
    ChainLink,
    certificate_key,
    read_certificate,
    read_newest,
    read_place,
)
from sluice_gc.errors import CertificateInvalid, GcRefused
from sluice_gc.plan import check_not_stopped, is_finished, read_plan_ids, read_stored_plan
from sluice_gc.signing_keys import TrustedKeys
from sluice_protocol.clock import ulid_time_prefix
from sluice_protocol.keys import GC_EVIDENCE
from sluice_protocol.outcomes import Deleted, NotFound
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_store.plan_folders import read_first_key
from sluice_store.port import ListedIncarnation, ObjectStore

KEPT_CERTIFICATES: Final = 2
"""The evidence of this many newest certificates is always kept: the next audit copies from one."""
OPEN_PLAN_NS: Final = 7 * 86_400 * NS_PER_S
"""A plan older than this keeps no evidence; a run of it is refused."""
UNCERTIFIED_NS: Final = 14 * 86_400 * NS_PER_S
"""Evidence without a certificate belongs to a running audit, or to a killed one after this time."""
_CLOCKS_NS: Final = 86_400 * NS_PER_S


class FolderRuling(StrEnum):
    """What happens to the evidence of one audit, and why."""

    REMOVE = "remove"
    KEPT = "kept"
    """Its certificate is at or above the position from which evidence is kept."""
    RUNNING = "running"
    """It has no certificate, and its audit may still be running."""


def decide_kept_from(place: int, before: int, pinned: Iterable[int]) -> int:
    """Return the lowest chain position whose evidence is kept once a certificate exists.

    `before` is the value in the certificate before `place`; it never falls, because files are gone.
    `pinned` are the chain positions of the certificates of plans that may still be executed.
    """
    newest = max(place - KEPT_CERTIFICATES + 1, 0)
    return max(before, min((newest, *(one for one in pinned if one >= before)), default=newest))


def decide_folder(
    *, kept: bool, certified: bool, newest_write_ns: int, now_ns: int
) -> FolderRuling:
    """Decide about the evidence of one audit.

    `kept` is True if its certificate is at or above `evidence_kept_from` of the newest one.
    `newest_write_ns` is when its newest file was written; `now_ns` is the store's clock.
    """
    if kept:
        return FolderRuling.KEPT
    if not certified and newest_write_ns + UNCERTIFIED_NS > now_ns:
        return FolderRuling.RUNNING
    return FolderRuling.REMOVE


class PruneReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one removal of old evidence.

    Attributes:
        files: In a dry run, those to remove.
        unknown: Removals whose outcome is unknown; the next run tries again.
    """

    kept_from: int
    audits: dict[str, int]
    files: int
    bytes: int
    unknown: int


async def read_pinned_places(store: ObjectStore, trusted: TrustedKeys, now_ns: int) -> list[int]:
    """Return the chain positions of the certificates of plans that may still be executed."""
    after = ulid_time_prefix(now_ns - OPEN_PLAN_NS - _CLOCKS_NS)
    places: list[int] = []
    for plan_id in await read_plan_ids(store, after=after):
        try:
            plan = (await read_stored_plan(store, trusted, plan_id)).plan
            await check_not_stopped(store, plan_id)
            open_ns = plan.made_at_unix_ns + OPEN_PLAN_NS
            if open_ns > now_ns and not await is_finished(store, plan_id):
                link = await read_certificate(store, plan.audit_id, trusted)
                places.append(link.certificate.chain_index)
        except (GcRefused, CertificateInvalid):
            continue  # a plan that was stopped or edited is never executed
    return places


FILES_MAX: Final = 100_000
"""Files that one run removes at most; the next run continues."""


async def prune_evidence(
    store: ObjectStore, trusted: TrustedKeys, *, dry_run: bool = False
) -> PruneReport:
    """Remove the evidence that the newest certificate no longer keeps.

    A run may be killed at any time; the next one lists what is left. Two runs do no harm.
    """
    head = await read_newest(store, trusted)
    kept_from = 0 if head is None else head.certificate.evidence_kept_from
    kept = await _kept_audits(store, trusted, head)
    audits: dict[str, int] = {}
    files = total = unknown = 0
    audit_id = await _next_audit(store, "")
    while audit_id is not None and head is not None and files < FILES_MAX:
        listed, now_ns = await _list_folder(store, audit_id)
        place = None if audit_id in kept else await _find_place(store, trusted, audit_id)
        ruling = decide_folder(
            # An audit that ended after `head` was read has a later position.
            kept=audit_id in kept or (place is not None and place >= kept_from),
            certified=place is not None,
            newest_write_ns=max((one.last_modified_ns for one in listed), default=0),
            now_ns=now_ns,
        )
        audits[ruling.value] = audits.get(ruling.value, 0) + 1
        for one in listed[: FILES_MAX - files] if ruling is FolderRuling.REMOVE else ():
            gone = dry_run or isinstance(await store.delete(one.key, one.incarnation), Deleted)
            files, total, unknown = (
                files + gone,
                total + gone * one.size_bytes,
                unknown + (not gone),
            )
        audit_id = await _next_audit(store, audit_id)
    return PruneReport(
        kept_from=kept_from, audits=audits, files=files, bytes=total, unknown=unknown
    )


async def _kept_audits(
    store: ObjectStore, trusted: TrustedKeys, head: ChainLink | None
) -> frozenset[str]:
    """Return the audits whose evidence is kept; each of these certificates is verified."""
    if head is None:
        return frozenset()
    kept = {head.certificate.audit_id}
    for place in range(head.certificate.evidence_kept_from, head.certificate.chain_index):
        link = await read_place(store, place, trusted)
        kept.add(link.certificate.audit_id)
    return frozenset(kept)


async def _find_place(store: ObjectStore, trusted: TrustedKeys, audit_id: str) -> int | None:
    """Return the chain position of the certificate of an audit; None if there is none."""
    if isinstance(await store.head(certificate_key(audit_id)), NotFound):
        return None
    return (await read_certificate(store, audit_id, trusted)).certificate.chain_index


async def _next_audit(store: ObjectStore, after: str) -> str | None:
    start = f"{GC_EVIDENCE}{after}/~" if after else ""
    key = await read_first_key(store, GC_EVIDENCE, start)
    return None if key is None else key.removeprefix(GC_EVIDENCE).partition("/")[0]


async def _list_folder(store: ObjectStore, audit_id: str) -> tuple[list[ListedIncarnation], int]:
    found: list[ListedIncarnation] = []
    now_ns = 0
    async for page in store.list_incarnations(evidence_folder(audit_id)):
        found += page.incarnations
        now_ns = page.date_ns
    return found, now_ns


def evidence_folder(audit_id: str) -> ObjectKey:
    """Return the key prefix of the evidence of an audit."""
    return ObjectKey(f"{GC_EVIDENCE}{audit_id}/")
