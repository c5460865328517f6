"""The field that a short name means: a column, or a key of an attribute or of the resource."""

import re
from typing import Final

import msgspec

from sluice_cli.shell.asking import Ask, Given
from sluice_cli.shell.settings import near_names
from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import Kind
from sluice_query.logql.names import field_of
from sluice_query.request import COLUMN_FIELDS, parse_field

_NOT_OF_LABELS: Final = re.compile(r"\W", re.ASCII)


async def find_field(ask: Ask, name: str, kind: Kind, given: Given) -> str:
    """Return the name of a field in queries; ask for those that the records have if necessary.

    A key is also found by its label: `http_status` is `attributes.http.status`.
    """
    if name in COLUMN_FIELDS[kind] or name.startswith(("attributes.", "resource.")):
        return parse_field(name, kind).name
    own = field_of(name, kind)
    if own is not None:
        return own.name
    lines = await ask("fields", {**given, "kind": [kind]})
    known: list[str] = [one["field"] for one in msgspec.json.decode(lines[-1])["fields"]]
    # Attributes are listed before the resource, the most frequent key first.
    keys = [(one, parse_field(one, kind).key) for one in known]
    labels = {_NOT_OF_LABELS.sub("_", key): one for one, key in reversed(keys) if key}
    labels |= {key: one for one, key in reversed(keys) if key}
    if name not in labels:
        columns = [one for one in known if one in COLUMN_FIELDS[kind]]
        similar = near_names(name, [*labels, *columns])
        raise BadUsage(f"no record has this field in the time range{similar}, field=`{name}`")
    return labels[name]
