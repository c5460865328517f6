"""Deletes for operators: count the effect of one, write it, list them, and show their state.

A delete hides records from the moment its record exists. The state shows which tables no longer
contain such records. It is observed, not recorded: a batch that arrives later may bring further
records, which readers hide and the next maintenance removes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec

from sluice_lake.delta import find_table
from sluice_lake.errors import read_transaction
from sluice_lake.locations import lake_location
from sluice_lake.source_ranges import ROLLUP_APP, DeleteIdsReader, read_source_range
from sluice_lake.tables import RECORD_TABLES, ROLLUPS
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import DELETES
from sluice_protocol.outcomes import Found
from sluice_protocol.record_deletes import (
    DeleteRecord,
    DeleteRequest,
    check_delete_id,
    decode_delete,
    delete_key,
    implies,
    is_retention,
)
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_query.engine import LAKE, QueryEngine, open_engine
from sluice_query.pruning import select_files, select_partitions
from sluice_query.request import Query, query_of_delete
from sluice_query.result import MatchCount, QueryResult
from sluice_query.search import Searcher
from sluice_query.statements import matches_sql, rollup_matches_sql
from sluice_store.port import run_together
from sluice_store.retry import Backoff
from sluice_store.stored_deletes import plan_delete, read_active_deletes, submit_delete

_ROLLUPS: Final = "rollups"
_DAY_NS: Final = 86_400 * NS_PER_S
_FIRST_DAY: Final = "0001-01-01"
_LAST_DAY: Final = "9999-12-31"


def count_in_table(engine: QueryEngine, store_url: str, record: DeleteRecord) -> int:
    """Count the records that a delete hides in the newest state of its table."""
    table, query = RECORD_TABLES[record.kind], query_of_delete(record)
    files = select_files(store_url, table, query, ())
    if not files.read:
        return 0
    engine.register_files(LAKE, files.read, files.location)
    return int(engine.rows(matches_sql(LAKE, record, query, ()))[0][0])


def applies_to_rollups(record: DeleteRecord) -> bool:
    """Return True if rollups change with a delete; retention keeps them (ADR 35)."""
    return record.kind == "metrics" and not is_retention(record)


def count_in_rollups(
    engine: QueryEngine, store_url: str, record: DeleteRecord
) -> tuple[MatchCount, ...]:
    """Count the rows of `rollups` that may contain a deleted point; empty if it does not apply."""
    if not applies_to_rollups(record):
        return ()
    first, last = _day(record.from_unix_ns, _FIRST_DAY), _day(record.to_unix_ns, _LAST_DAY)
    files = select_partitions(store_url, ROLLUPS, lambda day: first <= day <= last)
    rows = 0
    if files:
        engine.register_files(_ROLLUPS, files, lake_location(store_url, ROLLUPS.name))
        rows = int(engine.rows(rollup_matches_sql(_ROLLUPS, record))[0][0])
    return (MatchCount(source=ROLLUPS.name, records=rows, batches=None),)


def _day(at_ns: int | None, default: str) -> str:
    """Return the UTC date of a time, or a default if there is none or it has no date."""
    if at_ns is None:
        return default
    try:
        return datetime.fromtimestamp(at_ns // _DAY_NS * 86_400, UTC).strftime("%Y-%m-%d")
    except (OverflowError, ValueError, OSError):
        return default


PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1_000
_READS: Final = 16

_Count = TypeVar("_Count")

SearchRunner = Callable[[Query], Awaitable[QueryResult]]


class DeletePreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a delete would hide in addition to the deletes that exist.

    Attributes:
        matches: Counts for each table and for the pending batches. A row of rollups may contain a
            deleted point; its hour is aggregated again.
        accepted_until: Every batch that was acknowledged before this time is counted, except those
            that `reasons` name; RFC 3339.
        held_by: The gateway and process that hold that time back, if the counts are partial and
            one does.
        partial: Whether records may be missing in the counts.
        reasons: Why the counts are partial.
    """

    matches: tuple[MatchCount, ...]
    accepted_until: str | None
    held_by: str | None
    partial: bool
    reasons: tuple[str, ...]


class DeleteReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request for a delete.

    Attributes:
        record: The stored delete, or with `dry_run` what would be stored.
        created: Whether this request created it; false for a repeated request and a dry run.
        preview: The counts of a dry run.
    """

    record: DeleteRecord
    created: bool
    preview: DeletePreview | None = None


class TableState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a table honours a delete.

    Attributes:
        honoured: Whether its newest state contains no deleted record; for rollups, whether the
            delete is applied to every row.
        records_left: Number of deleted records in it, which readers hide; null for rollups.
    """

    table: str
    honoured: bool
    records_left: int | None = None


class DeleteView(msgspec.Struct, frozen=True, kw_only=True):
    """One delete and its state.

    Attributes:
        active: Whether readers apply it themselves; otherwise a wider one hides the same records.
        implied_by: That wider delete.
    """

    record: DeleteRecord
    active: bool
    implied_by: str | None
    tables: tuple[TableState, ...]


class UnreadableDelete(msgspec.Struct, frozen=True, kw_only=True):
    """A delete that cannot be decoded; queries of its kind fail until it is repaired."""

    key: str
    unreadable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletes:
    """The deletes of one store."""

    searcher: Searcher
    run: SearchRunner
    running: asyncio.Semaphore
    clock: Clock
    ids: IdSource

    async def submit(self, request: DeleteRequest, principal: str) -> DeleteReceipt:
        """Write a delete, or count its effect where the request is a dry run.

        Raises:
            BadUsage: The request is malformed.
            DeleteIdTaken: The id belongs to another delete.
            OutcomeUnknown: It is unknown whether the record exists; send the same id again.
        """
        store = self.searcher.store
        if request.dry_run:
            record = await plan_delete(store, request, principal, self.ids)
            return DeleteReceipt(record=record, created=False, preview=await self.preview(record))
        backoff = Backoff.seeded_by(self.clock)
        written = await submit_delete(store, request, principal, backoff, self.ids)
        return DeleteReceipt(record=written.record, created=written.created)

    async def preview(self, record: DeleteRecord) -> DeletePreview:
        """Count what a delete would hide; nothing is written."""
        result = await self.run(query_of_delete(record))
        summary, table = result.summary, RECORD_TABLES[record.kind].name
        matches = result.matches
        if all(one.source != table for one in matches):  # no file can contain such a record
            matches = (MatchCount(source=table, records=0, batches=0), *matches)
        url = self.searcher.store_url
        rows = await self._count(lambda engine: count_in_rollups(engine, url, record))
        return DeletePreview(
            matches=(*matches, *rows),
            accepted_until=summary.accepted_until,
            held_by=summary.held_by,
            partial=summary.partial,
            reasons=summary.reasons,
        )

    async def list_page(
        self, after: str, limit: int
    ) -> tuple[tuple[DeleteRecord | UnreadableDelete, ...], str | None]:
        """Return the deletes after a key, by id, and the key after which the next page begins."""
        keys = await self._list_keys(after, limit + 1)
        limiter = asyncio.Semaphore(_READS)

        async def read(key: ObjectKey) -> DeleteRecord | UnreadableDelete | None:
            async with limiter:
                found = await self.searcher.store.get(key)
            try:
                return decode_delete(key, found.body) if isinstance(found, Found) else None
            except InvalidRecord as error:
                return UnreadableDelete(key=key, unreadable=str(error))

        read_all = await run_together(*map(read, keys[:limit]))
        items = tuple(one for one in read_all if one is not None)
        return items, keys[limit - 1] if len(keys) > limit else None

    async def _list_keys(self, after: str, count: int) -> Sequence[ObjectKey]:
        keys: list[ObjectKey] = []
        async for page in self.searcher.store.list(DELETES, start_after=after):
            keys += [one.key for one in page.objects]
            if len(keys) >= count:
                break
        return keys[:count]

    async def show(self, delete_id: str) -> DeleteView | None:
        """Return a delete with its state, or None where it does not exist."""
        key = delete_key(check_delete_id(delete_id))
        read = await self.searcher.store.get(key)
        if not isinstance(read, Found):
            return None
        record = decode_delete(key, read.body)
        active = await read_active_deletes(self.searcher.store, self.searcher.deletes)
        is_active = any(one.delete_id == delete_id for one in active)
        wider = next((one.delete_id for one in active if implies(one, record)), None)
        return DeleteView(
            record=record,
            active=is_active,
            implied_by=None if is_active else wider,
            tables=await self._read_tables(record),
        )

    async def _read_tables(self, record: DeleteRecord) -> tuple[TableState, ...]:
        url = self.searcher.store_url
        left = await self._count(lambda engine: count_in_table(engine, url, record))
        table = RECORD_TABLES[record.kind].name
        found = TableState(table=table, honoured=left == 0, records_left=left)
        if not applies_to_rollups(record):
            return (found,)
        return found, TableState(table=ROLLUPS.name, honoured=await self._in_rollups(record))

    async def _count(self, work: Callable[[QueryEngine], _Count]) -> _Count:
        settings = self.searcher.settings
        async with self.running:
            with open_engine(settings) as engine:
                return await engine.bounded(lambda: work(engine), settings.time_s_max)

    async def _in_rollups(self, record: DeleteRecord) -> bool:
        opened = await asyncio.to_thread(find_table, self.searcher.store_url, ROLLUPS)
        number = 0 if opened is None else read_transaction(opened, ROLLUP_APP) or 0
        if not number:
            return True  # rollups without a source range have no rows
        source = await read_source_range(self.searcher.store, number)
        if source is None:
            return False
        reader = DeleteIdsReader(store=self.searcher.store)
        return bool(await reader.read(source.deletes, {record.delete_id}))
