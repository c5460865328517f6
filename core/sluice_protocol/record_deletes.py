"""Requests to delete records, as immutable records under `deletes/v1/`.

A delete immediately hides all matching records of every batch that was accepted at or before its
cut-off, whenever that batch arrives. Maintenance removes the rows later. Retention is a delete of
old times.

A reader must understand all of a delete: with an unknown condition ignored, it would hide more than
was requested. Unknown fields are therefore rejected here, unlike in other records.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import DELETES
from sluice_protocol.manifests import Kind, decode_record
from sluice_protocol.units import ObjectKey

_KEY: Final = re.compile(re.escape(DELETES) + r"([0-9A-HJKMNP-TV-Z]{26})\.json")


class DeleteRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One delete; it matches a record that meets every given condition.

    Attributes:
        delete_id: ULID, also in the key.
        kind: Kind of the records.
        accepted_until_unix_ns: The cut-off: only batches accepted at or before it.
        from_unix_ns: Only records whose time is at or after it.
        to_unix_ns: Only records whose time is before it.
        agent_id: Only records of this agent.
        contains: Only logs whose body contains this, or metrics of exactly this name.
        attributes: Only records that have all these attributes, including those of the resource.
        reason: Why, for readers.
        principal: The principal that requested it.
    """

    schema: Literal["sluice.delete.v1"] = "sluice.delete.v1"
    delete_id: str
    kind: Kind
    accepted_until_unix_ns: int
    from_unix_ns: int | None = None
    to_unix_ns: int | None = None
    agent_id: str | None = None
    contains: str | None = None
    attributes: dict[str, str] = {}
    reason: str = ""
    principal: str = ""

    def __post_init__(self) -> None:
        """Reject a delete without any condition, and one that no record can meet."""
        span = (self.from_unix_ns, self.to_unix_ns)
        if span == (None, None) and not (self.agent_id or self.contains or self.attributes):
            raise ValueError("a delete needs at least one condition")
        if self.from_unix_ns is not None and self.to_unix_ns is not None:
            _check_range(self.from_unix_ns, self.to_unix_ns)
        if self.kind == "entries" and (self.contains or self.attributes):
            raise ValueError("entries are opaque: delete them by agent and time")


def _check_range(start_ns: int, end_ns: int) -> None:
    if end_ns <= start_ns:
        raise ValueError("time range ends before it starts")


def delete_key(delete_id: str) -> ObjectKey:
    """Return the key of a delete."""
    return ObjectKey(f"{DELETES}{delete_id}.json")


def decode_delete(key: str, body: bytes) -> DeleteRecord:
    """Decode a delete and check that it agrees with its key.

    Raises:
        InvalidRecord: It is not of this schema, has a field that this build does not know, has no
            condition, or disagrees with its key.
    """
    found = decode_record(key, body, DeleteRecord)
    if _KEY.fullmatch(key) is None or delete_key(found.delete_id) != key:
        raise InvalidRecord(key, "delete belongs under another key")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The conditions of a `--where` text, named as in `DeleteRecord`."""

    agent_id: str | None = None
    contains: str | None = None
    attributes: tuple[tuple[str, str], ...] = ()


_STRING: Final = r"'(?:[^']|'')*'"
_CONDITION: Final = re.compile(
    rf"(?:agent\s*=\s*(?P<agent>{_STRING})"
    rf"|body\s+contains\s+(?P<body>{_STRING})"
    rf"|name\s*=\s*(?P<name>{_STRING})"
    rf"|attributes\[(?P<key>{_STRING})\]\s*=\s*(?P<value>{_STRING}))"
    r"(?:(?P<more>\s+and\s+)|\s*\Z)",
    re.IGNORECASE,
)
_SEARCHED: Final[dict[Kind, str]] = {"logs": "body", "metrics": "name"}


def parse_where(text: str, kind: Kind) -> Where:
    """Parse conditions joined by `and`; a quote inside a text is doubled.

    `agent = 'a'`, `attributes['k'] = 'v'`, `body contains 'x'` for logs, `name = 'm'` for metrics.

    Raises:
        BadUsage: A condition has another form, occurs twice, or does not exist for this kind; the
            error shows where.
    """
    plain: dict[str, str] = {}
    attributes: dict[str, str] = {}
    at, more = 0, True
    while more:
        found = _CONDITION.match(text, at)
        if found is None:
            raise _not_understood(text[at : at + 40])
        if found["key"] is not None:
            _take(attributes, _unquoted(found["key"]), found["value"], found[0])
        else:
            name = next(one for one in ("agent", "body", "name") if found[one] is not None)
            if name not in ("agent", _SEARCHED.get(kind)):
                raise BadUsage(f"{kind} have no {name}, near=`{found[0][:40]}`")
            _take(plain, name, found[name], found[0])
        at, more = found.end(), found["more"] is not None
    return Where(
        agent_id=plain.get("agent"),
        contains=plain.get(_SEARCHED.get(kind, "")),
        attributes=tuple(attributes.items()),
    )


def _take(taken: dict[str, str], name: str, quoted: str, near: str) -> None:
    if name in taken:
        raise BadUsage(f"condition occurs twice, near=`{near[:40]}`")
    taken[name] = _unquoted(quoted)


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


def _not_understood(near: str) -> BadUsage:
    return BadUsage(
        f"condition is not valid: use agent = '…', body contains '…', name = '…' or "
        f"attributes['…'] = '…', joined by and, near=`{near}`"
    )
