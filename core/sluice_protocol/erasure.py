"""Erasure: the decision that matching records vanish from every copy, and the report about it.

A decision names its filter as deletes, one for each kind of record. Queries hide the records from
the moment these exist. A run then removes the records from each place that the system itself
writes, and a report lists each place with its state. An erasure has ended when no place is left and
a search of all of them finds nothing.

The decision and its deletes are permanent, because a batch of a spool may arrive years later. So
they contain the filter, and the filter should name an identifier rather than the secret itself.
Source: ADR 49.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.keys import ERASURES
from sluice_protocol.manifests import decode_record
from sluice_protocol.record_deletes import (
    DeleteRecord,
    DeleteRequest,
    check_delete_id,
    decide_delete,
)
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey

DUE_AFTER_NS: Final = 30 * 86_400 * NS_PER_S
"""The time that an erasure may take: laws commonly grant a month."""


class ErasureDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of an operator to erase records: which, why, and by whom.

    Attributes:
        erasure_id: ULID, also in the key.
        where: The conditions as they were entered.
        deletes: The same filter for each kind of record that it can select.
        unsearched: The kinds that the filter cannot select, because they do not have its fields.
        decided_at_unix_ns: By the store's clock; later batches are not affected.
    """

    schema: Literal["sluice.erasure.v1"] = "sluice.erasure.v1"
    erasure_id: str
    where: str
    deletes: tuple[DeleteRecord, ...]
    unsearched: tuple[Kind, ...]
    reason: str
    decided_by: str
    decided_at_unix_ns: int

    @property
    def due_at_unix_ns(self) -> int:
        """The time after which an erasure that has not ended is late."""
        return self.decided_at_unix_ns + DUE_AFTER_NS


class SignedErasure(msgspec.Struct, frozen=True, kw_only=True):
    """A decision with a signature over its canonical bytes."""

    decision: ErasureDecision
    key_id: str
    signature: str


CopyState = Literal["done", "by_date", "open", "not_applicable", "stays", "elsewhere"]
"""`by_date`: a later run removes it. `open`: something keeps it, which `detail` names. `stays`:
permanent, and `detail` names what it contains. `elsewhere`: it is not within reach, and `detail`
names what an operator does about it."""


class ErasedCopy(msgspec.Struct, frozen=True, kw_only=True):
    """One place that may have contained the records.

    Attributes:
        found: What is left there: rows, files or objects.
        at_unix_ns: When it was first found clean (`done`), or from when a run can clean it
            (`by_date`).
    """

    name: str
    state: CopyState
    found: int = 0
    at_unix_ns: int | None = None
    detail: str = ""


class ErasureReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of an erasure. An auditor needs nothing else, and the public key.

    Attributes:
        number: 1 for the first run, without gaps.
        decision: What is erased, why, and who decided it.
        decision_sha256: That of the stored bytes of the decision.
        batches: The accepted batches in which the run found matching records, or an earlier run.
        records: The matching records that the run found in blobs, or an earlier run.
        refused: The quarantine manifests of refused batches in which this run or an earlier one
            found matching records; 1,000 at most. All records of such a batch end.
        searched: How many blobs and data files the last search of the run has read.
        verified: Whether that search read everything and found nothing.
        clean_versions: By table, the first version without a matching row that a run has seen.
        tombstones: The tombstones that runs of this erasure have created, and the certificate and
            plan that the last one used.
    """

    schema: Literal["sluice.erasure_report.v1"] = "sluice.erasure_report.v1"
    erasure_id: str
    number: int
    authority_id: str
    decision: ErasureDecision
    decision_sha256: Digest
    made_at_unix_ns: int
    batches: int
    records: int
    searched: dict[str, int]
    verified: bool
    copies: tuple[ErasedCopy, ...]
    refused: tuple[ObjectKey, ...] = ()
    clean_versions: dict[str, int] = {}
    tombstones: int = 0
    audit_id: str = ""
    plan_id: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing is left for another run."""
        return self.verified and not any(one.state in ("by_date", "open") for one in self.copies)

    @property
    def next_at_unix_ns(self) -> int | None:
        """The earliest time at which another run can remove more; None if no date is known."""
        dates = [one.at_unix_ns for one in self.copies if one.state == "by_date"]
        return min((at for at in dates if at is not None), default=None)


class SignedErasureReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report with the signature of the auditor over its canonical bytes."""

    report: ErasureReport
    key_id: str
    signature: str


def erasure_key(erasure_id: str) -> ObjectKey:
    """Return the key of a decision."""
    return ObjectKey(f"{ERASURES}{erasure_id}/decision.json")


def erasure_report_key(erasure_id: str, number: int) -> ObjectKey:
    """Return the key of a report; the names of all reports follow that of the decision."""
    return ObjectKey(f"{ERASURES}{erasure_id}/report-{number:06d}.json")


def decode_erasure(key: str, body: bytes) -> SignedErasure:
    """Decode a decision and check that it agrees with its key; its signature is not checked."""
    found = decode_record(key, body, SignedErasure)
    if erasure_key(found.decision.erasure_id) != key:
        raise InvalidRecord(key, "erasure belongs under another key")
    return found


def decide_erasure(  # noqa: PLR0913 - the fields of the decision
    where: str,
    kinds: Iterable[Kind],
    span: tuple[str | None, str | None],
    reason: str,
    *,
    erasure_id: str,
    delete_ids: Sequence[str],
    now_ns: int,
    decided_by: str,
) -> ErasureDecision:
    """Return the decision for conditions as `parse_where` reads them; `now_ns` is the cut-off.

    The filter is applied to each of `kinds` that has its fields; `span` are the times of the first
    record and of the first one after the last, RFC 3339.

    Raises:
        BadUsage: There is no reason or no filter, or it selects records by time alone.
    """
    if not reason.strip():
        raise BadUsage("an erasure needs a reason: add one with `--reason`")
    if not where.strip():
        raise BadUsage(
            "an erasure needs a filter: add `--where` with an agent, a text, a name or an"
            " attribute; the retention of tables removes records by time alone"
        )
    deletes: list[DeleteRecord] = []
    unsearched: list[Kind] = []
    refused: BadUsage | None = None
    wanted = list(dict.fromkeys(kinds)) or list(KINDS)
    for kind, delete_id in zip(wanted, delete_ids, strict=False):
        request = DeleteRequest(kind=kind, where=where, from_=span[0], to=span[1], reason=reason)
        try:
            record = decide_delete(
                request, delete_id=check_delete_id(delete_id), now_ns=now_ns, principal=decided_by
            )
        except BadUsage as error:
            refused = refused or error
            unsearched.append(kind)
            continue
        if not (record.agent_id or record.contains or any(record.attributes.values())):
            raise BadUsage("the filter matches every record: name an agent, a text or an attribute")
        deletes.append(record)
    if refused is not None and not deletes:
        raise refused
    return ErasureDecision(
        erasure_id=erasure_id,
        where=where,
        deletes=tuple(deletes),
        unsearched=tuple(unsearched),
        reason=reason,
        decided_by=decided_by,
        decided_at_unix_ns=now_ns,
    )
