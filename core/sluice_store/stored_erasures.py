"""Stored erasures: their decisions and reports. Each is created once and permanent.

They grow by what operators decide and by the runs that they start.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sluice_protocol.erasure import (
    DUE_AFTER_NS,
    ErasureDecision,
    ErasureReport,
    SignedErasure,
    SignedErasureReport,
    decode_erasure,
    erasure_key,
    erasure_report_key,
)
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import ERASURES, LEDGER_LOG
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_store.authority import read_restored_at, read_store_time
from sluice_store.port import ObjectStore
from sluice_store.stored_expiry import read_holds

_ABSENT: Final = "listed but no longer present, although it is permanent"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredErasure:
    """A decision, its stored bytes, and the newest report; signatures are not checked.

    `report` is None before the first run has ended. `restored_at_ns` is the date of the last
    restore: a copy of a store may contain what an erasure had removed.
    """

    signed: SignedErasure
    body: bytes
    report: SignedErasureReport | None
    restored_at_ns: int = 0

    @property
    def last(self) -> ErasureReport | None:
        """The newest report."""
        return None if self.report is None else self.report.report

    @property
    def ended(self) -> bool:
        """Whether the newest report is about this copy of the store, and nothing is left."""
        last = self.last
        return last is not None and last.ended and last.made_at_unix_ns > self.restored_at_ns

    def is_late(self, now_ns: int) -> bool:
        """Return True if the erasure has not ended in the time that it may take."""
        due_ns = max(self.signed.decision.due_at_unix_ns, self.restored_at_ns + DUE_AFTER_NS)
        return not self.ended and now_ns > due_ns


@dataclass(slots=True, kw_only=True)
class EndedErasures:
    """The newest report of each erasure that had ended, as of the last restore."""

    reports: dict[str, ObjectKey] = field(default_factory=dict)
    restored_at_ns: int = 0


async def read_erasure(store: ObjectStore, erasure_id: str) -> StoredErasure:
    """Return an erasure with its newest report.

    Raises:
        BadUsage: There is no such erasure.
    """
    stored = await _list_keys(store, f"{ERASURES}{erasure_id}/") if erasure_id.isalnum() else {}
    if erasure_key(erasure_id) not in stored.get(erasure_id, ()):
        raise BadUsage(f"no such erasure: see `sluice erase list`, erasure=`{erasure_id[:80]}`")
    return await _read(store, erasure_id, stored[erasure_id], await read_restored_at(store))


async def read_erasures(
    store: ObjectStore, ended: EndedErasures | None = None
) -> list[StoredErasure]:
    """Return all erasures, the oldest first, without those that are known as ended."""
    stored = await _list_keys(store, ERASURES)
    restored_at_ns = await read_restored_at(store) if stored else 0
    ended = EndedErasures() if ended is None else ended
    if ended.restored_at_ns != restored_at_ns:
        ended.restored_at_ns = restored_at_ns
        ended.reports.clear()
    found = []
    for erasure_id, keys in stored.items():
        if erasure_key(erasure_id) in keys and ended.reports.get(erasure_id) != keys[-1]:
            one = await _read(store, erasure_id, keys, restored_at_ns)
            if one.ended:
                ended.reports[erasure_id] = keys[-1]
            found.append(one)
    return found


async def _read(
    store: ObjectStore, erasure_id: str, keys: Sequence[ObjectKey], restored_at_ns: int
) -> StoredErasure:
    """Read the decision and the newest report; keys of reports follow that of the decision."""
    key = erasure_key(erasure_id)
    read = await store.get(key)
    if not isinstance(read, Found):
        raise InvalidRecord(key, _ABSENT)
    reports = [one for one in keys if one != key]
    report = None
    if reports:
        newest = await store.get(reports[-1])
        if not isinstance(newest, Found):
            raise InvalidRecord(reports[-1], _ABSENT)
        report = decode_record(reports[-1], newest.body, SignedErasureReport)
        of = report.report
        if erasure_report_key(of.erasure_id, of.number) != reports[-1]:
            raise InvalidRecord(reports[-1], "report belongs under another key")
    return StoredErasure(
        signed=decode_erasure(key, read.body),
        body=read.body,
        report=report,
        restored_at_ns=restored_at_ns,
    )


async def check_erasable(store: ObjectStore, decision: ErasureDecision) -> None:
    """Refuse an erasure under a hold, and one before anything was ingested.

    Raises:
        BadUsage: A hold covers batches that may contain the records, or no table can prove that it
            has the other records of a batch.
    """
    holds = await read_holds(store)
    for record in decision.deletes:
        case = holds.touching(record)
        if case is not None:
            raise BadUsage(
                "a hold covers batches that may contain these records: see `sluice hold list`,"
                f" case=`{case}`"
            )
    async for page in store.list(LEDGER_LOG):
        if page.objects:
            return
    raise BadUsage(
        "nothing was ingested, so no table has the other records of a batch: run"
        " `sluice spark ingest --once` first"
    )


async def count_late_erasures(store: ObjectStore, ended: EndedErasures | None = None) -> int:
    """Return the number of erasures that have not ended in the time that they may take.

    A process that counts repeatedly passes the same `ended`, so that each is read once after it has
    ended.
    """
    found = await read_erasures(store, ended)
    now_ns = await read_store_time(store) if found else 0
    return sum(one.is_late(now_ns) for one in found)


async def _list_keys(store: ObjectStore, prefix: str) -> dict[str, list[ObjectKey]]:
    """Return the keys of each erasure, in order."""
    found: dict[str, list[ObjectKey]] = {}
    async for page in store.list(prefix):
        for one in page.objects:
            found.setdefault(one.key.removeprefix(ERASURES).partition("/")[0], []).append(one.key)
    return found
