"""`sluice delete`: hide records from queries; maintenance removes them from the tables."""

import asyncio
from collections.abc import Callable

from rich.console import Console

from sluice_cli.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.output import emit
from sluice_protocol.clock import IdSource
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.manifests import Kind
from sluice_protocol.record_deletes import DeleteRecord, Where, delete_key, parse_where
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import NS_PER_S
from sluice_store import open_store
from sluice_store.retry import Backoff
from sluice_store.stored_deletes import write_delete

_DAY_NS = 24 * 3600 * NS_PER_S


def delete(
    *,
    store: StoreUrl = STORE_DEFAULT,
    kind: Kind = "logs",
    where: str | None = None,
    from_: str | None = None,
    to: str | None = None,
    older_than_days: float | None = None,
    reason: str = "",
    json: Json = False,
) -> int:
    """Hide matching records of every batch accepted so far, including batches not ingested yet.

    Queries hide them immediately; `sluice spark compact` removes them. A delete is permanent: its
    record is never changed or withdrawn.

    Args:
        store: The store.
        kind: Kind of the records.
        where: Conditions joined by `and`: agent = 'a', body contains 'x', name = 'm',
            attributes['k'] = 'v'.
        from_: Only records at or after this time, RFC 3339.
        to: Only records before this time, RFC 3339.
        older_than_days: Only records older than this many days, for retention.
        reason: Why; kept in the record.
        json: Print JSON for programs.
    """
    found = parse_where(where, kind) if where is not None else Where()
    span = (
        None if from_ is None else parse_rfc3339(from_),
        None if to is None else parse_rfc3339(to),
    )
    if older_than_days is not None and to is not None:
        raise BadUsage("--to and --older-than-days exclude each other")

    def record(now_ns: int, delete_id: str) -> DeleteRecord:
        age_ns = None if older_than_days is None else round(older_than_days * _DAY_NS)
        return DeleteRecord(
            delete_id=delete_id,
            kind=kind,
            accepted_until_unix_ns=now_ns,
            from_unix_ns=span[0],
            to_unix_ns=span[1] if age_ns is None else now_ns - age_ns,
            agent_id=found.agent_id,
            contains=found.contains,
            attributes=dict(found.attributes),
            reason=reason,
        )

    written = asyncio.run(_write(store, record, SystemIds()))

    def human(console: Console) -> None:
        console.print(f"delete {written.delete_id} now hides matching {kind}")

    emit(written, as_json=json, human=human)
    return ExitCode.DONE.value


async def _write(url: str, make: Callable[[int, str], DeleteRecord], ids: IdSource) -> DeleteRecord:
    """Write the record under a new id; its cut-off time comes from the store's clock."""
    delete_id = ids.ulid()
    key = delete_key(delete_id)
    async with open_store(url) as store:
        record = _checked(make, (await store.head(key)).date_ns, delete_id)
        await write_delete(store, record, Backoff.seeded_by(SystemClock()), ids)
        return record


def _checked(make: Callable[[int, str], DeleteRecord], now_ns: int, delete_id: str) -> DeleteRecord:
    try:
        return make(now_ns, delete_id)
    except ValueError as error:
        raise BadUsage(str(error)) from error
