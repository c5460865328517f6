"""Fields of records: columns, and keys of attributes and resources, by the names of the API."""

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from sluice_protocol.errors import BadUsage
from sluice_protocol.json_errors import UNREADABLE_JSON
from sluice_protocol.manifests import Kind

COLUMN_FIELDS: Final[dict[Kind, tuple[str, ...]]] = {
    "logs": ("agent_id", "boot_id", "severity", "body"),
    "metrics": ("agent_id", "boot_id", "name", "type", "value"),
    "entries": ("agent_id", "boot_id"),
}
MAPS: Final = ("attributes", "resource")
NUMBERS: Final = frozenset({"severity", "value"})
"""Fields whose values are numbers."""
FIELD_PATTERN: Final = (
    r'(?P<column>[a-z_]+)(?:\.(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<plain>[^=!<>~"]+)))?'
)
_FIELD: Final = re.compile(FIELD_PATTERN, re.DOTALL)
_PLAIN_KEY: Final = re.compile(r'[^=!<>~"]+', re.DOTALL)
_SHOWN_CHARS_MAX: Final = 80


@dataclass(frozen=True, slots=True)
class RecordField:
    """One field.

    Attributes:
        column: The column.
        key: The key, where the column is a map; otherwise None.
    """

    column: str
    key: str | None = None

    @property
    def name(self) -> str:
        """The name under which clients refer to the field."""
        if self.key is None:
            return self.column
        if _PLAIN_KEY.fullmatch(self.key):
            return f"{self.column}.{self.key}"
        return f"{self.column}.{msgspec.json.encode(self.key).decode()}"

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers."""
        return self.column in NUMBERS


def parse_field(text: str, kind: Kind) -> RecordField:
    """Return the field of a name.

    Raises:
        BadUsage: Records of the kind have no such field.
    """
    found = _FIELD.fullmatch(text)
    if found is None:
        raise unknown_field(text, kind)
    return field_of_match(found, text, kind)


def field_of_match(found: re.Match[str], text: str, kind: Kind) -> RecordField:
    """Return the field that `FIELD_PATTERN` found in a text.

    Raises:
        BadUsage: Records of the kind have no such field.
    """
    column, quoted, plain = found["column"], found["quoted"], found["plain"]
    key = plain
    if quoted is not None:
        try:
            key = msgspec.json.decode(quoted, type=str)
        except (*UNREADABLE_JSON, UnicodeError) as error:
            raise BadUsage(f"key is not a JSON string, key=`{_shown(quoted)}`") from error
    known = MAPS if key is not None else COLUMN_FIELDS[kind]
    if column not in known:
        raise unknown_field(text, kind)
    return RecordField(column, key)


def unknown_field(text: str, kind: Kind) -> BadUsage:
    """Return the error for a text that names no field of a kind."""
    columns = ", ".join(COLUMN_FIELDS[kind])
    maps = " or ".join(f"{one}.KEY" for one in MAPS)
    return BadUsage(f"unknown field: use one of {columns}, {maps}, field=`{_shown(text)}`")


def check_encodable(text: str) -> None:
    """Check that a text can be encoded as UTF-8.

    Raises:
        BadUsage: It contains half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadUsage("text is not valid UTF-8") from error


def _shown(text: str) -> str:
    return text[:_SHOWN_CHARS_MAX].encode(errors="replace").decode()
