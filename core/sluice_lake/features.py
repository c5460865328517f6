"""The features of the Delta format that a table may have.

delta-rs writes only to tables whose features it supports, and sluice adds and reads data files by
itself. A feature is accepted only if both are correct with it. A feature that a table supports and
does not use is harmless for some features; these are recognized by their property or column.

Source: https://github.com/delta-io/delta/blob/master/PROTOCOL.md, "Valid feature names".
"""

from collections.abc import Mapping
from typing import Final

from deltalake import DeltaTable

_ACCEPTED: Final = frozenset(
    {"appendOnly", "changeDataFeed", "checkConstraints", "generatedColumns", "invariants"}
)
"""Harmless unless the table uses them; a change feed is correct without files of changes."""
_BY_PROPERTY: Final = {
    "delta.appendOnly": "appendOnly",
    "delta.enableDeletionVectors": "deletionVectors",
    "delta.enableRowTracking": "rowTracking",
    "delta.enableInCommitTimestamps": "inCommitTimestamp",
    "delta.enableTypeWidening": "typeWidening",
}
_COLUMN_MAPPING: Final = "delta.columnMapping.mode"
_CONSTRAINT: Final = "delta.constraints."
_BY_COLUMN: Final = {
    "delta.generationExpression": "generatedColumns",
    "delta.identity.start": "identityColumns",
    "delta.invariants": "invariants",
}


def unsupported_features(opened: DeltaTable) -> list[str]:
    """Return the names of the features because of which a table cannot be used, sorted."""
    protocol = opened.protocol()
    listed = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    columns = {name for field in opened.schema().fields for name in field.metadata}
    used = _used_by_properties(opened.metadata().configuration)
    used |= {feature for name, feature in _BY_COLUMN.items() if name in columns}
    return sorted((listed - _ACCEPTED) | used)


def _used_by_properties(properties: Mapping[str, str | None]) -> set[str]:
    """Return the features that are on; a table of an old version does not list them."""
    used = {
        feature
        for name, feature in _BY_PROPERTY.items()
        if (properties.get(name) or "").lower() == "true"
    }
    if (properties.get(_COLUMN_MAPPING) or "none").lower() != "none":
        used.add("columnMapping")
    if any(name.startswith(_CONSTRAINT) for name in properties):
        used.add("checkConstraints")
    return used
