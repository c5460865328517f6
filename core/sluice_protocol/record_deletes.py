"""Deletes of records: requests for them, their records under `deletes/v1/`, and those in effect.

A delete immediately hides all matching records of every batch that was accepted at or before its
cut-off, whenever that batch arrives. Maintenance removes the rows later. Retention is a delete of
old times.

A reader must understand all of a delete: with an unknown condition ignored, it would hide more than
was requested. Unknown fields are therefore rejected here, unlike in other records.

Delete records are decisions of operators and permanent: a rebuild of the lake applies all of them
again. A reader needs only those that no other one implies (`ActiveDeletes`). One delete implies
another if it hides every record that the other hides, of every batch, whenever that batch arrives.
Dropping an implied delete is therefore sound for late batches too, which no rule about finished
maintenance is: a batch of a spool, or one that was held back, may arrive years after the tables
honoured a delete.

The id of a delete is also the client's key: a request that is sent again with the same id has no
further effect. The stored record decides what the id means. A request is the same as the stored
one if it leads to the same record with the cut-off of the stored record.
"""

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Final, Literal

import msgspec

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.keys import ACTIVE_DELETES, DELETES
from sluice_protocol.manifests import decode_record
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs

_KEY: Final = re.compile(re.escape(DELETES) + r"([0-9A-HJKMNP-TV-Z]{26})\.json")


class DeleteRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One delete; it matches a record that meets every given condition.

    Attributes:
        delete_id: ULID, also in the key.
        accepted_until_unix_ns: The cut-off: only batches accepted at or before it.
        from_unix_ns: Only records whose time is at or after it.
        to_unix_ns: Only records whose time is before it.
        contains: Only logs whose body contains this, or metrics or spans of exactly this name.
        attributes: Only records that have all these attributes, including those of the resource.
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
        if KINDS[self.kind].searched is None and (self.contains or self.attributes):
            raise ValueError(f"{self.kind} are opaque: delete them by agent and time")


def _check_range(start_ns: int, end_ns: int) -> None:
    if end_ns <= start_ns:
        raise ValueError("time range ends before it starts")


def delete_key(delete_id: str) -> ObjectKey:
    """Return the key of a delete."""
    return ObjectKey(f"{DELETES}{delete_id}.json")


def decode_delete(key: str, body: bytes) -> DeleteRecord:
    """Decode a delete and check that it agrees with its key."""
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


def parse_where(text: str, kind: Kind) -> Where:
    """Parse conditions joined by `and`; a quote inside a text is doubled.

    `agent = 'a'`, `attributes['k'] = 'v'`, `body contains 'x'` for logs, `name = 'm'` for metrics
    and spans.
    The error shows which condition is wrong, occurs twice, or does not exist for this kind.
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
            if name not in ("agent", KINDS[kind].searched):
                raise BadUsage(f"{kind} have no {name}, near=`{found[0][:40]}`")
            _take(plain, name, found[name], found[0])
        at, more = found.end(), found["more"] is not None
    return Where(
        agent_id=plain.get("agent"),
        contains=plain.get(KINDS[kind].searched or ""),
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


_BASE32: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_DIGITS: Final = 10
_NS_PER_MS: Final = 1_000_000
_SKEW_NS: Final = 3600 * 10**9


class ActiveDeletes(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False
):
    """The register of deletes at `reconciler/v1/active-deletes.json`.

    Attributes:
        nonce: New with each write, so that bytes never repeat.
        through_id: Every delete with an id up to this one is considered here, except one whose
            writer's clock was ahead; a reader lists what came after it.
        known: How many delete records were considered; for operators.
    """

    schema: Literal["sluice.active_deletes.v1"] = "sluice.active_deletes.v1"
    revision: int
    nonce: str
    through_id: str
    known: int
    records: tuple[DeleteRecord, ...]


def decode_active_deletes(body: bytes) -> ActiveDeletes:
    """Decode the register."""
    return decode_record(ACTIVE_DELETES, body, ActiveDeletes)


def is_retention(record: DeleteRecord) -> bool:
    """Return True if a delete removes everything before some time, without any other condition."""
    narrower = record.agent_id or record.contains or record.attributes
    return not narrower and record.from_unix_ns is None and record.to_unix_ns is not None


def rollup_deletes(records: Iterable[DeleteRecord]) -> list[DeleteRecord]:
    """Return the deletes that apply to rollups: those of metrics, except retention."""
    return [record for record in records if record.kind == "metrics" and not is_retention(record)]


def retention_cut_ns(records: Iterable[DeleteRecord]) -> UnixNs | None:
    """Return the time before which retention may have removed points; None without retention."""
    cuts = [one.to_unix_ns for one in records if one.kind == "metrics" and is_retention(one)]
    return max((UnixNs(cut) for cut in cuts if cut is not None), default=None)


def implies(wide: DeleteRecord, narrow: DeleteRecord) -> bool:
    """Return True if every record that `narrow` hides is also hidden by `wide`."""
    return (
        wide.kind == narrow.kind
        and wide.accepted_until_unix_ns >= narrow.accepted_until_unix_ns
        and _starts_earlier(wide.from_unix_ns, narrow.from_unix_ns)
        and _ends_later(wide.to_unix_ns, narrow.to_unix_ns)
        and wide.agent_id in (None, narrow.agent_id)
        and _contains_less(wide, narrow)
        and wide.attributes.items() <= narrow.attributes.items()
    )


def _starts_earlier(wide: int | None, narrow: int | None) -> bool:
    return wide is None or (narrow is not None and wide <= narrow)


def _ends_later(wide: int | None, narrow: int | None) -> bool:
    return wide is None or (narrow is not None and wide >= narrow)


def _contains_less(wide: DeleteRecord, narrow: DeleteRecord) -> bool:
    if wide.contains is None:
        return True
    if narrow.contains is None:
        return False
    if KINDS[wide.kind].is_named:
        return wide.contains == narrow.contains
    return wide.contains in narrow.contains


def needed_deletes(
    records: Iterable[DeleteRecord], honoured: Collection[str] = ()
) -> tuple[DeleteRecord, ...]:
    """Return the deletes that no other one implies, by id.

    A delete of metrics also applies to rollups, which retention does not. If only retention implies
    it, it stays until every rollup honours it. Of several deletes with the same effect, one is
    returned. `honoured` has the ids that every rollup honours.
    """
    ordered = sorted({one.delete_id: one for one in records}.values(), key=_narrower_last)
    needed: list[DeleteRecord] = []
    others, retention = WiderDeletes(), WiderDeletes()
    for record in ordered:
        on_rollups = record.kind == "metrics" and not is_retention(record)
        pinned = on_rollups and record.delete_id not in honoured
        if others.imply(record) or (not pinned and retention.imply(record)):
            continue
        needed.append(record)
        (retention if is_retention(record) else others).add(record)
    return tuple(sorted(needed, key=lambda one: one.delete_id))


def _narrower_last(record: DeleteRecord) -> tuple[int, ...]:
    """Order deletes so that one that implies another comes first."""
    start, end = record.from_unix_ns, record.to_unix_ns
    return (
        -record.accepted_until_unix_ns,
        0 if start is None else 1,
        start or 0,
        0 if end is None else 1,
        -(end or 0),
        0 if record.agent_id is None else 1,
        -1 if record.contains is None else len(record.contains),
        len(record.attributes),
    )


def through_id(records: Iterable[DeleteRecord], before: str = "") -> str:
    """Return the highest id, without ids whose time is later than the store's clock at the cut-off.

    A reader lists the records after it. An id of a clock that is ahead would hide all later ones.
    """
    sane = (
        one.delete_id
        for one in records
        if delete_id_time_ns(one.delete_id) <= one.accepted_until_unix_ns + _SKEW_NS
    )
    return max([before, *sane])


def delete_id_time_ns(delete_id: str) -> UnixNs:
    """Return the time in the id of a delete, in whole milliseconds."""
    number = 0
    for digit in delete_id[:_TIME_DIGITS]:
        number = number * len(_BASE32) + _BASE32.index(digit)
    return UnixNs(number * _NS_PER_MS)


def with_delete(
    register: ActiveDeletes, record: DeleteRecord, *, nonce: str
) -> ActiveDeletes | None:
    """Return the register with one more delete; None if it already considers it, or its effect."""
    if any(one.delete_id == record.delete_id for one in register.records):
        return None
    needed = needed_deletes([*register.records, record])
    if record.delete_id <= register.through_id and record not in needed:
        return None
    return ActiveDeletes(
        revision=register.revision + 1,
        nonce=nonce,
        through_id=through_id([record], register.through_id),
        known=register.known + 1,
        records=needed,
    )


_SUBSETS_MAX: Final = 6
"""Up to this number of attributes, every subset of them is looked up."""
_EARLIEST: Final = float("-inf")
_LATEST: Final = float("inf")

_Conditions = tuple[str, str | None, str | None, frozenset[tuple[str, str]]]
"""Kind, agent, name of a metric or span and attributes of a delete."""


@dataclass(slots=True)
class TimeRanges:
    """Time ranges, without those that another one contains; sorted by start and by end."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def contain(self, start: float, end: float) -> bool:
        """Return True if one of the ranges contains a range."""
        place = bisect_right(self.starts, start)
        return place > 0 and self.ends[place - 1] >= end

    def add(self, start: float, end: float) -> None:
        """Add a range that no other one contains."""
        first, last = bisect_left(self.starts, start), bisect_right(self.ends, end)
        self.starts[first:last] = [start]
        self.ends[first:last] = [end]


@dataclass(slots=True)
class _Group:
    """The deletes of the same conditions of equality, by the text that a log must contain."""

    any_text: TimeRanges = field(default_factory=TimeRanges)
    by_text: dict[str, TimeRanges] = field(default_factory=dict)
    lengths: set[int] = field(default_factory=set)

    def ranges_of(self, text: str | None) -> TimeRanges:
        if text is None:
            return self.any_text
        self.lengths.add(len(text))
        return self.by_text.setdefault(text, TimeRanges())

    def wider_ranges(self, text: str | None) -> Iterator[TimeRanges]:
        yield self.any_text
        if text is None:
            return
        places = sum(len(text) - length + 1 for length in self.lengths if length <= len(text))
        if places > len(self.by_text):
            yield from (found for one, found in self.by_text.items() if one in text)
            return
        for length in self.lengths:
            for start in range(len(text) - length + 1):
                found = self.by_text.get(text[start : start + length])
                if found is not None:
                    yield found


@dataclass(slots=True)
class WiderDeletes:
    """Deletes, added by descending cut-off; equal ones with those that imply others first."""

    _groups: dict[_Conditions, _Group] = field(default_factory=dict)

    def add(self, record: DeleteRecord) -> None:
        """Add a delete that none of the others implies."""
        start, end = _time_range(record)
        group = self._groups.setdefault(_conditions_of(record), _Group())
        group.ranges_of(_text_of(record)).add(start, end)

    def imply(self, record: DeleteRecord) -> bool:
        """Return True if an added delete implies one with the same or an earlier cut-off."""
        start, end = _time_range(record)
        text = _text_of(record)
        return any(
            ranges.contain(start, end)
            for group in self._wider_groups(record)
            for ranges in group.wider_ranges(text)
        )

    def _wider_groups(self, record: DeleteRecord) -> Iterator[_Group]:
        kind, agent, name, attributes = _conditions_of(record)
        if len(attributes) > _SUBSETS_MAX:
            parts = (one for one in self._attributes() if one <= attributes)
        else:
            parts = (frozenset(one) for one in _subsets(attributes))
        for part in parts:
            for one_agent, one_name in product({agent, None}, {name, None}):
                found = self._groups.get((kind, one_agent, one_name, part))
                if found is not None:
                    yield found

    def _attributes(self) -> set[frozenset[tuple[str, str]]]:
        return {key[3] for key in self._groups}


def _subsets(pairs: Collection[tuple[str, str]]) -> Iterator[tuple[tuple[str, str], ...]]:
    for size in range(len(pairs) + 1):
        yield from combinations(pairs, size)


def _conditions_of(record: DeleteRecord) -> _Conditions:
    name = record.contains if KINDS[record.kind].is_named else None
    return record.kind, record.agent_id, name, frozenset(record.attributes.items())


def _text_of(record: DeleteRecord) -> str | None:
    return None if KINDS[record.kind].is_named else record.contains


def _time_range(record: DeleteRecord) -> tuple[float, float]:
    start, end = record.from_unix_ns, record.to_unix_ns
    return _EARLIEST if start is None else start, _LATEST if end is None else end


WHERE_CHARS_MAX: Final = 4_000
REASON_CHARS_MAX: Final = 1_000
DAYS_MAX: Final = 36_500
ID_AGE_MAX_NS: Final = 24 * 3600 * NS_PER_S
"""An older id is refused for a new delete, because readers list the newest ids only."""
ID_AHEAD_MAX_NS: Final = 3600 * NS_PER_S
_ID: Final = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_DAY_NS: Final = 24 * 3600 * NS_PER_S
_SHOWN_CHARS_MAX: Final = 40


class DeleteRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for one delete.

    Attributes:
        delete_id: The client's key, a ULID; a new one is chosen if it is absent.
        where: Conditions as `parse_where` reads them.
        from_: Only records at or after this time, RFC 3339.
        to: Only records before this time, RFC 3339.
        older_than_days: Only records older than this many days; excludes `to`.
        dry_run: Count what would be hidden, and write nothing.
    """

    delete_id: str | None = None
    kind: Kind = "logs"
    where: str | None = None
    from_: str | None = msgspec.field(default=None, name="from")
    to: str | None = None
    older_than_days: float | None = None
    reason: str = ""
    dry_run: bool = False


def decide_delete(
    request: DeleteRequest, *, delete_id: str, now_ns: int, principal: str
) -> DeleteRecord:
    """Return the record that a request leads to; `now_ns` of the store becomes the cut-off."""
    _check_length("where", request.where or "", WHERE_CHARS_MAX)
    _check_length("reason", request.reason, REASON_CHARS_MAX)
    where = Where() if request.where is None else parse_where(request.where, request.kind)
    if request.older_than_days is not None and request.to is not None:
        raise BadUsage("a delete has one end: omit `to` or `older_than_days`")
    to_ns: int | None = None if request.to is None else parse_rfc3339(request.to)
    if request.older_than_days is not None:
        to_ns = now_ns - _age_ns(request.older_than_days)
    try:
        return DeleteRecord(
            delete_id=delete_id,
            kind=request.kind,
            accepted_until_unix_ns=now_ns,
            from_unix_ns=None if request.from_ is None else parse_rfc3339(request.from_),
            to_unix_ns=to_ns,
            agent_id=where.agent_id,
            contains=where.contains,
            attributes=dict(where.attributes),
            reason=request.reason,
            principal=principal,
        )
    except ValueError as error:
        raise BadUsage(str(error)) from error


def check_new_id(delete_id: str, now_ns: int) -> None:
    """Check that the time in an id is at most a day before and an hour after `now_ns`."""
    age_ns = now_ns - delete_id_time_ns(delete_id)
    if not -ID_AHEAD_MAX_NS <= age_ns <= ID_AGE_MAX_NS:
        raise BadUsage(
            "delete_id is too old or in the future for a new delete: use a new ULID, and check"
            f" the clock, delete_id=`{delete_id}`"
        )


def check_delete_id(text: str) -> str:
    """Return the text if it is a ULID in upper case."""
    if _ID.fullmatch(text) is None:
        raise BadUsage(
            "delete_id must be a ULID: 26 characters, upper case,"
            f" delete_id=`{text[:_SHOWN_CHARS_MAX]}`"
        )
    return text


def is_same_request(request: DeleteRequest, stored: DeleteRecord, principal: str) -> bool:
    """Return True if a stored delete is the result of this request."""
    again = decide_delete(
        request,
        delete_id=stored.delete_id,
        now_ns=stored.accepted_until_unix_ns,
        principal=principal,
    )
    return again == stored


def _age_ns(days: float) -> int:
    if not math.isfinite(days) or not 0 <= days <= DAYS_MAX:
        raise BadUsage(f"older_than_days must be 0 to {DAYS_MAX}, older_than_days=`{days}`")
    return round(days * _DAY_NS)


def _check_length(name: str, text: str, chars_max: int) -> None:
    if len(text) > chars_max:
        raise BadUsage(f"{name} must have at most {chars_max} characters, characters=`{len(text)}`")
