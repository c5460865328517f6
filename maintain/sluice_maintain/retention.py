"""Retention: one delete of old records per kind and day.

The key and the bytes of such a delete are functions of kind, day and limit. Every process therefore
creates the same object, and a repeated run changes nothing. The deletes of a day cover those of
all days before.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

from ulid import ULID

from sluice_maintain.settings import RetentionOptions
from sluice_protocol.fields import Kind
from sluice_protocol.record_deletes import DeleteRecord, delete_key
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff
from sluice_store.stored_deletes import write_delete

PRINCIPAL: Final = "maintain:retention"
_DAY_NS: Final = 86_400 * NS_PER_S


def plan_retention(options: RetentionOptions, now_ns: int) -> Iterator[DeleteRecord]:
    """Yield the deletes that the options require today, by the store's clock.

    A batch that is accepted today and contains older records is covered tomorrow.
    """
    today_ns = now_ns // _DAY_NS * _DAY_NS
    kinds: tuple[tuple[Kind, int], ...] = (
        ("logs", options.logs_days),
        ("metrics", options.metrics_days),
        ("entries", options.entries_days),
    )
    for kind, days in kinds:
        if days:
            yield DeleteRecord(
                delete_id=_delete_id(kind, days, today_ns),
                kind=kind,
                accepted_until_unix_ns=today_ns,
                to_unix_ns=today_ns - days * _DAY_NS,
                reason=f"retention of {days} days",
                principal=PRINCIPAL,
            )


def _delete_id(kind: Kind, days: int, today_ns: int) -> str:
    time_ms = (today_ns // 1_000_000).to_bytes(6, "big")
    content = hashlib.sha256(f"{PRINCIPAL} {kind} {days} {today_ns}".encode()).digest()
    return str(ULID(time_ms + content[:10]))


async def apply_retention(store: ObjectStore, options: RetentionOptions) -> dict[str, float]:
    """Create the deletes of today that do not exist; return how many were created."""
    created = 0
    date_ns = (await store.head(delete_key("0" * 26))).date_ns
    for record in plan_retention(options, date_ns):
        backoff = Backoff.seeded_by(SystemClock())
        created += (await write_delete(store, record, backoff, SystemIds())).created
    return {"deletes_created": created}
