"""`sluice fields`: the fields that records have, and the most frequent values of one."""

import shutil
import sys
from functools import partial
from typing import Annotated

import msgspec
from cyclopts import Parameter

from sluice_cli.shell.asking import Ask, RangeOptions, SpoolUrl, asking
from sluice_cli.shell.field_names import find_field
from sluice_cli.shell.options import STORE_DEFAULT, FoundStoreUrl, Json
from sluice_cli.shell.output import fail, print_summary, print_table
from sluice_protocol.fields import Kind
from sluice_query.settings import VALUES_DEFAULT, QuerySettings

_RANGE = RangeOptions()


def fields(
    field: Annotated[
        str | None, Parameter(help="The field, such as `level`; without it all are listed.")
    ] = None,
    /,
    *,
    kind: Annotated[Kind, Parameter(help="Kind of the records.")] = "logs",
    limit: Annotated[int, Parameter(help="Most values to print.")] = VALUES_DEFAULT,
    span: Annotated[RangeOptions, Parameter(name="*")] = _RANGE,
    store: FoundStoreUrl = STORE_DEFAULT,
    spool: SpoolUrl = None,
    json: Json = False,
) -> int:
    """List the fields of the records of a time range, or the most frequent values of one.

    Returns:
        0, or 1 if no record of the range has the field.
    """
    if field is None:
        run = partial(_list, kind=kind, span=span, as_json=json)
    else:
        run = partial(_count, field=field, kind=kind, limit=limit, span=span, as_json=json)
    with asking(store, spool, QuerySettings()) as ask:
        return run(ask)


def _list(ask: Ask, *, kind: Kind, span: RangeOptions, as_json: bool) -> int:
    lines = ask("fields", {**span.parameters(), "kind": [kind]})
    if as_json:
        sys.stdout.write(lines[-1].decode())
        return 0
    found = msgspec.json.decode(lines[-1])
    rows = [
        (one["field"], str(one["count"]), "" if one["distinct"] is None else str(one["distinct"]))
        for one in found["fields"]
    ]
    print_table([("field", "records", "values"), *rows])
    print_summary(found["summary"], f"{len(rows)} fields of {found['records']} records")
    return 0


def _count(
    ask: Ask, *, field: str, kind: Kind, limit: int, span: RangeOptions, as_json: bool
) -> int:
    given: dict[str, list[str]] = {**span.parameters(), "kind": [kind]}
    name = find_field(ask, field, kind, given)
    wanted = {**given, "field": [name], "limit": [str(limit)]}
    lines = ask("fields/values", wanted)
    if as_json:
        sys.stdout.write(lines[-1].decode())
        return 0 if msgspec.json.decode(lines[-1])["values"] else 1
    from sluice_query.plot import draw_values  # noqa: PLC0415 - not for programs
    from sluice_query.views import TopValuesResult  # noqa: PLC0415 - the same

    found = msgspec.json.decode(lines[-1], type=TopValuesResult)
    if not found.values:
        fail(
            "no record has this field in the time range: try an earlier --since,"
            f" records=`{found.records}`, field=`{name}`"
        )
        return 1
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    sys.stdout.write(draw_values(found, width))
    sys.stdout.flush()
    if found.sampled:
        sys.stderr.write(f"of the first {found.records} records: choose a shorter time range\n")
    print_summary(msgspec.to_builtins(found.summary), f"{found.distinct} values")
    return 0
