"""The names of labels: which field, attribute or key of a resource a label is.

A label is the first of these that has a value:

1. the field of the record that has its name, or another name by `FIELD_LABELS`;
2. the attribute with its name, or else the first whose key becomes the name by `label_of`;
3. the same among the attributes of the resource.

The fields of `ONLY_FIELDS` are read from every attribute that states them when a record is stored,
so such a label is its field alone: `=`, which reads only files that may have the field, then finds
the same records as `=~`.

A label without a value is the empty text, so `!=` is true for it. Only `service_name` always has a
value.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from sluice_protocol.fields import Kind, label_of
from sluice_query.request import COLUMN_FIELDS, MAPS, RecordField
from sluice_query.statements import Promoted, SqlStatement, compose, field_sql

FIELD_LABELS: Final = {
    "service_name": "service",
    "detected_level": "level",
    "agent": "agent_id",
    "boot": "boot_id",
    "__name__": "name",
}
"""Labels that have another name than their field; every other field is a label under its name."""
UNKNOWN_SERVICE: Final = "unknown_service"
"""The `service_name` of records whose sender states none, as in Loki and for spans in Jaeger."""
ONLY_FIELDS: Final = frozenset({"service", "level", "name", "boot_id"})
"""Fields whose label is no attribute, also in a record without the field."""
_NOT_LABELS: Final = frozenset({"body", "events", "links"})
"""Fields with what a record contains rather than where it is from."""
SHOWN_LABELS: Final = (
    *("service_name", "level", "host", "instance", "name", "span_kind", "status"),
    *("trace_id", "span_id", "file", "request"),
)
"""The labels of fields that a record is shown with, next to those of its attributes."""
_NONE: Final[Promoted] = {}
_LABEL: Final = "regexp_replace({0}, '^([0-9])|[^A-Za-z0-9_]', '_\\1', 'g')"
_IS_LABEL: Final = "regexp_full_match({0}, '[A-Za-z_][A-Za-z0-9_]*')"


def sanitized(key: str) -> str:
    """Return the SQL of the label of a key, as `label_of` computes it."""
    return _LABEL.replace("{0}", key)


def field_of(name: str, kind: Kind) -> RecordField | None:
    """Return the field that a label is; None if it is an attribute."""
    column = FIELD_LABELS.get(name, name)
    if column not in COLUMN_FIELDS[kind] or column in _NOT_LABELS:
        return None
    return RecordField(column)


def label_of_field(field: RecordField, kind: Kind) -> str | None:
    """Return the label that a field is, by its name alone; None if no label reads it."""
    if field.key is None:
        return None if field.column in _NOT_LABELS else field.column
    label = label_of(field.key)
    known = field_of(label, kind)
    return None if known is not None and known.column in ONLY_FIELDS else label


def label_sql(name: str, kind: Kind, promoted: Promoted = _NONE) -> SqlStatement:
    """Return the expression for the value of a label of a record; NULL without one.

    A column of texts that was promoted is read instead of the key of its map.
    """
    parts = []
    if (field := field_of(name, kind)) is not None:
        parts.append(compose("nullif(CAST({0} AS VARCHAR), '')", field_sql(field)))
        if name == "service_name":
            return compose(f"coalesce({{0}}, '{UNKNOWN_SERVICE}')", parts[0])
        if field.column in ONLY_FIELDS:
            return parts[0]
    parts += attribute_label_sql(name, promoted)
    return first_sql(parts)


def attribute_label_sql(name: str, promoted: Promoted = _NONE) -> list[SqlStatement]:
    """Return the expressions for a label among attributes and resource, the first of them counts.

    Each is NULL without a value.
    """
    parts = []
    for place in MAPS:
        parts.append(compose("nullif({0}, '')", field_sql(RecordField(place, name), promoted)))
        if "_" in name:
            keys = f"list_filter(map_keys({place}), lambda one: regexp_full_match(one, ?))"
            parts.append(SqlStatement(f"nullif({place}[{keys}[1]], '')", (_keys_of(name),)))
    return parts


def first_sql(parts: Sequence[SqlStatement]) -> SqlStatement:
    """Return the expression for the first of some values that is not NULL."""
    values = tuple(value for part in parts for value in part.values)
    return SqlStatement(f"coalesce({', '.join(part.text for part in parts)})", values)


def _keys_of(name: str) -> str:
    """Return the pattern of the keys whose label is a name."""
    # A key that begins with a digit has a label with `_` before it.
    first = re.match("_(?=[0-9])", name)
    start = "[^A-Za-z0-9]?" if first else ""
    return start + name[len(start[:1]) :].replace("_", "[^A-Za-z0-9]")


def hidden_fields(names: Iterable[str], kind: Kind) -> list[str]:
    """Return the names that are fields, and no labels that a record is shown with."""
    return [one for one in names if one not in SHOWN_LABELS and field_of(one, kind) is not None]


def labels_sql(kind: Kind, hidden: Sequence[str] = ()) -> SqlStatement:
    """Return the expression for the labels that a record is shown with, the first of a name counts.

    It is a list of names and values, `k` and `v`; `hidden` fields are added to it.
    """
    fields = [*(name for name in SHOWN_LABELS if field_of(name, kind) is not None), *hidden]
    named = [*FIELD_LABELS, *COLUMN_FIELDS[kind]]
    own = ", ".join(f"'{one}'" for one in named if field_of(one, kind) is not None)
    parts = [
        compose(f"[struct_pack(k := '{name}', v := {{0}})]", label_sql(name, kind))
        for name in fields
    ]
    parts += attribute_labels_sql()
    text = " || ".join(part.text for part in parts)
    return SqlStatement(
        f"list_filter({text}, lambda one, nr: one.v <> '' AND (nr <= {len(fields)}"
        f" OR one.k NOT IN ({own})))",
        tuple(value for part in parts for value in part.values),
    )


def attribute_labels_sql() -> list[SqlStatement]:
    """Return lists of the labels of attributes and resource, `k` and `v`, in their precedence."""
    parts = []
    for place in MAPS:
        entries = f"coalesce(map_entries({place}), [])"
        entry = f"struct_pack(k := {sanitized('one.key')}, v := one.value)"
        for chosen in ("", "NOT "):
            is_label = _IS_LABEL.replace("{0}", "one.key")
            filtered = f"list_filter({entries}, lambda one: {chosen}{is_label})"
            parts.append(SqlStatement(f"list_transform({filtered}, lambda one: {entry})"))
    return parts
