"""The field that a short name means: a column, or a key of an attribute or of the resource."""

import msgspec

from sluice_cli.shell.asking import Ask, Given
from sluice_cli.shell.settings import near_names
from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import Kind
from sluice_query.logql.names import field_of
from sluice_query.request import COLUMN_FIELDS, parse_field


def find_field(ask: Ask, name: str, kind: Kind, given: Given) -> str:
    """Return the name of a field in queries; ask for those that the records have if necessary.

    A key is also found by its label: `http_status` is `attributes.http.status`.
    """
    if name in COLUMN_FIELDS[kind] or name.startswith(("attributes.", "resource.")):
        return parse_field(name, kind).name
    own = field_of(name, kind)
    if own is not None:
        return own.name
    lines = ask("fields", {**given, "kind": [kind]})
    known = msgspec.json.decode(lines[-1])["fields"]
    labels = {one["label"]: str(one["field"]) for one in known if one["label"]}
    keys = [(str(one["field"]), parse_field(one["field"], kind).key) for one in known]
    # Attributes are listed before the resource, the most frequent key first.
    labels = {key: one for one, key in reversed(keys) if key} | labels
    if name not in labels:
        similar = near_names(name, [*labels, *COLUMN_FIELDS[kind]])
        raise BadUsage(f"no record has this field in the time range{similar}, field=`{name}`")
    return labels[name]
