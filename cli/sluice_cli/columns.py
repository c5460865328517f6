"""`sluice columns`: promote attributes to columns of the record tables, and list the promotions."""

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec
from cyclopts import App

from sluice_cli.shell.operator import operator_name
from sluice_cli.shell.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit, print_columns
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.fields import Kind
from sluice_protocol.promotions import (
    PromotedType,
    Promotion,
    column_of,
    decide_promotion,
    parse_promoted,
)
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_store import StoreMode, open_deployment
from sluice_store.retry import Backoff
from sluice_store.stored_promotions import StoredPromotions, read_promotions, submit_promotion

if TYPE_CHECKING:
    from rich.console import Console

app = App(name="columns", help="Promote attributes to columns of the lake.")

SAMPLE_RECORDS: Final = 10_000
"""Newest records that a check reads; with 1 KiB of attributes each, 10 MiB."""
SAMPLE_DAYS: Final = 7


class ColumnSample(msgspec.Struct, frozen=True, kw_only=True):
    """What a promotion would do to recent records.

    Attributes:
        records: The newest records of the last days that were read, at most `SAMPLE_RECORDS`.
        present: Records that have the attribute.
        converted: Of these, records whose value converts to the type of the column.
        example: A value that does not convert; null if all do.
    """

    promotion: Promotion
    records: int
    present: int
    converted: int
    example: str | None


class ColumnList(msgspec.Struct, frozen=True, kw_only=True):
    """The promotions of a store, and what is wrong with each that cannot be read."""

    columns: tuple[Promotion, ...]
    unreadable: tuple[str, ...]


@app.command
def add(
    kind: Kind,
    field: str,
    value_type: PromotedType,
    column: str | None = None,
    /,
    *,
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """Promote an attribute: new data files have a column for it. It also stays an attribute.

    The running ingest job adds the column to the table within a minute, and compaction fills it
    in the files that it rewrites. Queries give the same answers as before. A promotion is
    permanent, and a kind may have 64.

    Args:
        kind: Kind of the records.
        field: `attributes.KEY` or `resource.KEY`.
        value_type: `text`, `integer`, `float` or `boolean`; other values are null in the column.
        column: Name of the column, which begins with `attr_` or `res_`; by default it follows from
            the attribute.
        store: The store.
        json: Print JSON for programs.
    """
    written = asyncio.run(_add(store, _wanted(kind, field, value_type, column)))

    def human(console: "Console") -> None:
        console.print(f"{written.field} is promoted: {kind} have the column {written.column}")

    emit(written, as_json=json, human=human)
    return ExitCode.DONE.value


@app.command
def check(
    kind: Kind,
    field: str,
    value_type: PromotedType,
    column: str | None = None,
    /,
    *,
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """Show how many recent records have an attribute and convert; the arguments are those of `add`.

    Nothing is written. Exit 1 if a value does not convert.
    """
    sample = asyncio.run(_sample(store, _wanted(kind, field, value_type, column)))
    emit(sample, as_json=json, human=lambda console: _draw_sample(console, sample))
    return int(sample.example is not None)


@app.command(name="list")
def list_command(*, store: StoreUrl = STORE_DEFAULT, json: Json = False) -> int:
    """List the promoted attributes; exit 1 if a promotion cannot be read."""
    found = asyncio.run(_list(store))
    shown = ColumnList(columns=found.records, unreadable=tuple(map(str, found.unreadable)))
    emit(shown, as_json=json, human=lambda console: _draw(console, shown))
    return int(bool(shown.unreadable))


def _wanted(kind: Kind, field: str, value_type: PromotedType, column: str | None) -> Promotion:
    named = parse_promoted(field)
    if named is None:
        raise BadUsage(
            f"no attribute: name it attributes.KEY or resource.KEY, attribute=`{field[:80]}`"
        )
    source, key = named
    try:
        return Promotion(
            kind=kind,
            source=source,
            key=key,
            column=column or column_of(source, key),
            type=value_type,
            decided_by=operator_name(),
            decided_at_unix_ns=0,
        )
    except ValueError as error:
        raise BadUsage(str(error)) from error


async def _add(url: str, wanted: Promotion) -> Promotion:
    async with open_deployment(url) as store:
        existing = await read_promotions(store)
        return await submit_promotion(store, wanted, existing, Backoff.seeded_by(SystemClock()))


async def _list(url: str) -> StoredPromotions:
    async with open_deployment(url, StoreMode.READ) as store:
        return await read_promotions(store)


async def _sample(url: str, wanted: Promotion) -> ColumnSample:
    from sluice_lake.promoted import COLUMN_TYPES, converted_text  # noqa: PLC0415 - slow imports
    from sluice_query.request import Query  # noqa: PLC0415
    from sluice_query.search import Searcher  # noqa: PLC0415
    from sluice_query.settings import QuerySettings  # noqa: PLC0415

    clock = SystemClock()
    async with open_deployment(url, StoreMode.READ) as store:
        decide_promotion(wanted, (await read_promotions(store)).records)
        searcher = Searcher(store=store, store_url=url, settings=QuerySettings(), clock=clock)
        now_ns = clock.now_ns()
        query = Query(
            kind=wanted.kind,
            from_ns=UnixNs(now_ns - SAMPLE_DAYS * 86_400 * NS_PER_S),
            to_ns=now_ns,
            limit=SAMPLE_RECORDS,
            newest_first=True,
        )
        result = await searcher.search(query)
    maps = [row[wanted.source] for row in result.records]
    texts = [str(one[wanted.key]) for one in maps if isinstance(one, dict) and wanted.key in one]
    kind = COLUMN_TYPES[wanted.type]
    odd = [text for text in texts if converted_text(text, kind) is None]
    return ColumnSample(
        promotion=wanted,
        records=len(maps),
        present=len(texts),
        converted=len(texts) - len(odd),
        example=odd[0] if odd else None,
    )


def _draw_sample(console: "Console", sample: ColumnSample) -> None:
    wanted = sample.promotion
    console.print(f"{wanted.field} would be the column {wanted.column}, type {wanted.type}")
    console.print(
        f"  {sample.present} of the {sample.records} newest records of {SAMPLE_DAYS} days have it"
        f"{_share(sample.present, sample.records)}"
    )
    console.print(
        f"  {sample.converted} of these convert{_share(sample.converted, sample.present)}"
    )
    if sample.example is not None:
        console.print(f"  does not convert: {sample.example[:80]!r}", markup=False)


def _share(part: int, whole: int) -> str:
    return f", {part / whole:.0%}" if whole else ""


def _draw(console: "Console", found: ColumnList) -> None:
    if not found.columns and not found.unreadable:
        console.print("no attribute is promoted")
        return
    rows = [("kind", "column", "type", "attribute", "since", "by")]
    rows += [
        (
            one.kind,
            one.column,
            one.type.value,
            one.field,
            format_rfc3339(one.decided_at_unix_ns),
            one.decided_by,
        )
        for one in found.columns
    ]
    print_columns(console, rows)
    for reason in found.unreadable:
        console.print(f"unreadable: {reason}", markup=False)
