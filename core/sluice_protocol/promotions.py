"""Promotions: decisions of operators that an attribute has a separate column in a record table.

A query finds an attribute in a map, which is read as a whole. A column that contains one attribute
is read alone, other programs know its type, and data files record its minimum and maximum. What was
sent stays in the map, so a column is derived: a question has the same answer in a file without it.

A promotion is created once and is permanent. Its key is its kind and its column, so two operators
cannot give one column two meanings. Writers of the lake add the columns of new promotions to a
table; from then on the schema of the table is what every writer and reader goes by (ADR 46).
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Literal, get_args

import msgspec

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.keys import PROMOTIONS
from sluice_protocol.manifests import decode_record
from sluice_protocol.units import ObjectKey

PROMOTIONS_MAX: Final = 64
"""Promotions of one kind. Each adds to the footer of every data file and to the log of its table.

Two operators who decide at the same moment may exceed it by one.
"""
KEY_CHARS_MAX: Final = 500
COLUMN_CHARS_MAX: Final = 60

Source = Literal["attributes", "resource"]
"""The map that contains the value: that of the record, or that of its batch."""
PREFIXES: Final[dict[Source, str]] = {"attributes": "attr_", "resource": "res_"}
"""How the column of a promotion begins. No other column of a table does, in any version."""
_COLUMN: Final = re.compile(r"(?:attr|res)_[a-z0-9][a-z0-9_]*", re.ASCII)
_OTHER_CHARACTERS: Final = re.compile(r"[^a-z0-9]+", re.ASCII)


class PromotedType(StrEnum):
    """The type of a promoted column, and which texts convert; it is null for any other text."""

    TEXT = "text"
    """Every text, unchanged."""
    INTEGER = "integer"
    """Digits without a leading zero or a plus sign, from -2^63 to 2^63 - 1."""
    FLOAT = "float"
    """A decimal number, with or without an exponent, that is finite as 64 bits."""
    BOOLEAN = "boolean"
    """`true` and `false`."""


class Promotion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The decision that one attribute of a kind has a column.

    Attributes:
        key: The attribute's name in the map `source`.
        decided_at_unix_ns: By the store's clock.
    """

    schema: Literal["sluice.promotion.v1"] = "sluice.promotion.v1"
    kind: Kind
    source: Source
    key: str
    column: str
    type: PromotedType
    decided_by: str
    decided_at_unix_ns: int

    def __post_init__(self) -> None:
        """Reject a kind without attributes, and names that no column or attribute can have."""
        if not KINDS[self.kind].has_attributes:
            raise ValueError(f"{self.kind} have no attributes")
        if not 1 <= len(self.key) <= KEY_CHARS_MAX:
            raise ValueError(f"the name of an attribute has 1 to {KEY_CHARS_MAX} characters")
        if not is_promoted_name(self.column) or not self.column.startswith(PREFIXES[self.source]):
            raise ValueError(
                f"a column of `{self.source}` is named {PREFIXES[self.source]} and then a-z, 0-9"
                f" and _, at most {COLUMN_CHARS_MAX} characters in all"
            )

    @property
    def field(self) -> str:
        """The attribute's name with its map, `attributes.KEY`."""
        return f"{self.source}.{self.key}"

    @property
    def meaning(self) -> tuple[str, str, str, str]:
        """What was decided, without by whom and when."""
        return (self.kind, self.field, self.column, self.type)


def is_promoted_name(column: str) -> bool:
    """Return True if a column can be that of a promotion, by its name."""
    return len(column) <= COLUMN_CHARS_MAX and _COLUMN.fullmatch(column) is not None


def parse_promoted(field: str) -> tuple[Source, str] | None:
    """Return map and key of `attributes.KEY` or `resource.KEY`; None for any other text."""
    found, _, key = field.partition(".")
    for source in get_args(Source):
        if source == found and key:
            return source, key
    return None


def promotion_key(kind: str, column: str) -> ObjectKey:
    """Return the key of a promotion."""
    return ObjectKey(f"{PROMOTIONS}{kind}/{column}.json")


def decode_promotion(key: str, body: bytes) -> Promotion:
    """Decode a promotion and check that it agrees with its key."""
    found = decode_record(key, body, Promotion)
    if promotion_key(found.kind, found.column) != key:
        raise InvalidRecord(key, "promotion belongs under another key")
    return found


def column_of(source: Source, key: str) -> str:
    """Return the column that an attribute gets unless the operator names another one.

    `attributes.http.status` becomes `attr_http_status`.
    """
    plain = _OTHER_CHARACTERS.sub("_", key.lower()).strip("_")
    column = f"{PREFIXES[source]}{plain}"
    if not is_promoted_name(column):
        raise BadUsage(
            f"no column can be named after this attribute: name the column after the type,"
            f" attribute=`{source}.{key[:COLUMN_CHARS_MAX]}`"
        )
    return column


def decide_promotion(wanted: Promotion, existing: Sequence[Promotion]) -> Promotion:
    """Return the promotion to create, or the one that exists and means the same.

    `existing` are the promotions of all kinds.

    Raises:
        BadUsage: The attribute has another column or type, the column has another attribute, or the
            kind has as many promotions as it may have.
    """
    others = [one for one in existing if one.kind == wanted.kind]
    for one in others:
        if one.meaning == wanted.meaning:
            return one
        if one.field == wanted.field:
            raise BadUsage(
                f"this attribute is promoted already, and a promotion is permanent:"
                f" attribute=`{one.field}`, column=`{one.column}`, type=`{one.type}`"
            )
        if one.column == wanted.column:
            raise taken(one)
    if len(others) >= PROMOTIONS_MAX:
        raise BadUsage(
            f"{wanted.kind} have {len(others)} promoted columns, and may have at most"
            f" {PROMOTIONS_MAX}: query this attribute in its map"
        )
    return wanted


def taken(existing: Promotion) -> BadUsage:
    """Return the error for a column that another promotion has."""
    return BadUsage(
        f"another attribute has this column: choose another name,"
        f" column=`{existing.column}`, attribute=`{existing.field}`, type=`{existing.type}`"
    )
