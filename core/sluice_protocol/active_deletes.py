"""The deletes that readers must apply, in one object, without those that another one implies.

Delete records are decisions of operators and permanent: a rebuild of the lake applies all of them
again. A reader needs only those that no other one implies. One delete implies another if it hides
every record that the other hides, of every batch, whenever that batch arrives. Dropping an implied
delete is therefore sound for late batches too, which no rule about finished maintenance is: a batch
of a spool, or one that was held back, may arrive years after the tables honoured a delete.
"""

from collections.abc import Collection, Iterable
from typing import Final, Literal

import msgspec

from sluice_protocol.keys import ACTIVE_DELETES
from sluice_protocol.manifests import decode_record
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import UnixNs
from sluice_protocol.wider_deletes import WiderDeletes

_BASE32: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_DIGITS: Final = 10
_NS_PER_MS: Final = 1_000_000
_SKEW_NS: Final = 3600 * 10**9


class ActiveDeletes(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False
):
    """The register of deletes at `reconciler/v1/active-deletes.json`.

    Attributes:
        revision: 1 more with each write.
        nonce: New with each write, so that bytes never repeat.
        through_id: Every delete with an id up to this one is considered here, except one whose
            writer's clock was ahead; a reader lists what came after it.
        known: How many delete records were considered; for operators.
        records: The deletes to apply, by id.
    """

    schema: Literal["sluice.active_deletes.v1"] = "sluice.active_deletes.v1"
    revision: int
    nonce: str
    through_id: str
    known: int
    records: tuple[DeleteRecord, ...]


def decode_active_deletes(body: bytes) -> ActiveDeletes:
    """Decode the register.

    Raises:
        InvalidRecord: It is not of this schema, or contains a field that this build does not know.
    """
    return decode_record(ACTIVE_DELETES, body, ActiveDeletes)


def is_retention(record: DeleteRecord) -> bool:
    """Return True if a delete removes everything before some time, without any other condition."""
    narrower = record.agent_id or record.contains or record.attributes
    return not narrower and record.from_unix_ns is None and record.to_unix_ns is not None


def rollup_deletes(records: Iterable[DeleteRecord]) -> list[DeleteRecord]:
    """Return the deletes that apply to rollups: those of metrics, except retention."""
    return [record for record in records if record.kind == "metrics" and not is_retention(record)]


def retention_cut_ns(records: Iterable[DeleteRecord]) -> UnixNs | None:
    """Return the time before which retention may have removed points; None without retention."""
    cuts = [one.to_unix_ns for one in records if one.kind == "metrics" and is_retention(one)]
    return max((UnixNs(cut) for cut in cuts if cut is not None), default=None)


def implies(wide: DeleteRecord, narrow: DeleteRecord) -> bool:
    """Return True if every record that `narrow` hides is also hidden by `wide`."""
    return (
        wide.kind == narrow.kind
        and wide.accepted_until_unix_ns >= narrow.accepted_until_unix_ns
        and _starts_earlier(wide.from_unix_ns, narrow.from_unix_ns)
        and _ends_later(wide.to_unix_ns, narrow.to_unix_ns)
        and wide.agent_id in (None, narrow.agent_id)
        and _contains_less(wide, narrow)
        and wide.attributes.items() <= narrow.attributes.items()
    )


def _starts_earlier(wide: int | None, narrow: int | None) -> bool:
    return wide is None or (narrow is not None and wide <= narrow)


def _ends_later(wide: int | None, narrow: int | None) -> bool:
    return wide is None or (narrow is not None and wide >= narrow)


def _contains_less(wide: DeleteRecord, narrow: DeleteRecord) -> bool:
    if wide.contains is None:
        return True
    if narrow.contains is None:
        return False
    if wide.kind == "metrics":
        return wide.contains == narrow.contains
    return wide.contains in narrow.contains


def needed_deletes(
    records: Iterable[DeleteRecord], honoured: Collection[str] = ()
) -> tuple[DeleteRecord, ...]:
    """Return the deletes that no other one implies, by id.

    A delete of metrics also applies to rollups, which retention does not. If only retention implies
    it, it stays until every rollup honours it.

    Args:
        records: Deletes; one of several with the same effect is returned.
        honoured: Ids of the deletes that every rollup honours.
    """
    ordered = sorted({one.delete_id: one for one in records}.values(), key=_narrower_last)
    needed: list[DeleteRecord] = []
    others, retention = WiderDeletes(), WiderDeletes()
    for record in ordered:
        on_rollups = record.kind == "metrics" and not is_retention(record)
        pinned = on_rollups and record.delete_id not in honoured
        if others.imply(record) or (not pinned and retention.imply(record)):
            continue
        needed.append(record)
        (retention if is_retention(record) else others).add(record)
    return tuple(sorted(needed, key=lambda one: one.delete_id))


def _narrower_last(record: DeleteRecord) -> tuple[int, ...]:
    """Order deletes so that one that implies another comes first."""
    start, end = record.from_unix_ns, record.to_unix_ns
    return (
        -record.accepted_until_unix_ns,
        0 if start is None else 1,
        start or 0,
        0 if end is None else 1,
        -(end or 0),
        0 if record.agent_id is None else 1,
        -1 if record.contains is None else len(record.contains),
        len(record.attributes),
    )


def through_id(records: Iterable[DeleteRecord], before: str = "") -> str:
    """Return the highest id, without ids whose time is later than the store's clock at the cut-off.

    A reader lists the records after it. An id of a clock that is ahead would hide all later ones.
    """
    sane = (
        one.delete_id
        for one in records
        if delete_id_time_ns(one.delete_id) <= one.accepted_until_unix_ns + _SKEW_NS
    )
    return max([before, *sane])


def delete_id_time_ns(delete_id: str) -> UnixNs:
    """Return the time in the id of a delete, in whole milliseconds."""
    number = 0
    for digit in delete_id[:_TIME_DIGITS]:
        number = number * len(_BASE32) + _BASE32.index(digit)
    return UnixNs(number * _NS_PER_MS)


def with_delete(
    register: ActiveDeletes, record: DeleteRecord, *, nonce: str
) -> ActiveDeletes | None:
    """Return the register with one more delete; None if it already considers it, or its effect.

    Args:
        register: The register as read.
        record: The delete.
        nonce: New for this write.
    """
    if any(one.delete_id == record.delete_id for one in register.records):
        return None
    needed = needed_deletes([*register.records, record])
    if record.delete_id <= register.through_id and record not in needed:
        return None
    return ActiveDeletes(
        revision=register.revision + 1,
        nonce=nonce,
        through_id=through_id([record], register.through_id),
        known=register.known + 1,
        records=needed,
    )
