"""Records of other forms than text: objects of JSON, pairs of logfmt, messages of syslog.

An object is read by the mapping of the door `json`, pairs are one, and a message is read as those
that the agent receives.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sluice_agent.inputs.columns import (
    CONTINUES_ATTRIBUTE,
)
from sluice_agent.inputs.containers import STREAM_ATTRIBUTE, WrappedGroup
from sluice_agent.inputs.timestamps import parse_timestamps
from sluice_agent.settings import Format, Zone
from sluice_doors.attributes import free_name
from sluice_doors.decoded import ERROR_ATTRIBUTE, BodyUnreadable, Tally, take_texts
from sluice_doors.json.records import RecordFields, columns_of, flat_fields, names_size
from sluice_doors.json.values import read_json
from sluice_doors.otlp.logs import logs_from_rows
from sluice_doors.syslog import SyslogPiece, SyslogReading, syslog_records
from sluice_protocol.columns import AttributeColumns, LogColumns, join_columns, take_pairs
from sluice_protocol.errors import UNREADABLE_JSON
from sluice_protocol.meaning import BESIDE, BODY_KEYS, TIME_KEYS
from sluice_protocol.records import attribute_columns, readable_bodies
from sluice_protocol.units import UnixNs

_SYSLOG: Final = re.compile(
    rb"<[0-9]{1,3}>(?=[1-9] |[12][0-9]{3}-|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) )"
)
_KEY: Final = rb"[A-Za-z_@][0-9A-Za-z_@./-]{0,255}"
_VALUE: Final = rb'"(?:[^"\\]++|\\.)*+"|[^\s"=]*+(?=\s|\Z)'
_PAIR: Final = re.compile(rb"(" + _KEY + rb")(?:=(" + _VALUE + rb"))?(?: +|\Z)", re.DOTALL)
_PAIRS_START: Final = re.compile(_KEY + rb"=")
_PAIRS_MIN: Final = 2
_MEANT: Final = frozenset((*TIME_KEYS, *BODY_KEYS))
"""Keys of an object with a meaning, which labels of a container do not have."""


NAMES_SHARE_MAX: Final = 4
"""An object whose dotted names are this many times its text stays text, so that the names of all
objects of a batch fit into a frame.
"""


def read_object(text: bytes) -> dict[str, Any] | None:
    """Return the object of JSON that a text is; None if it is none."""
    if not text.startswith(b"{"):
        return None
    try:
        found = read_json(text)
    except UNREADABLE_JSON:
        return None
    if type(found) is not dict or names_size(found) > NAMES_SHARE_MAX * len(text):
        return None
    return found


def read_pairs(text: bytes) -> dict[str, Any] | None:
    """Return the pairs of a line of logfmt; None unless all of the line is pairs.

    A key without a value is an empty text, and a repeated one gets a number. A line with more bare
    words than half of its keys is a sentence.
    """
    text = text.strip()
    if not _PAIRS_START.match(text):
        return None
    found: dict[str, Any] = {}
    after: dict[str, int] = {}
    at, bare = 0, 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:
            return None
        bare += pair[2] is None
        value = _unquoted(pair[2] or b"")
        found[free_name(pair[1].decode(), found, after)] = value
        at = pair.end()
    return found if 2 * bare <= len(found) else None


def _unquoted(value: bytes) -> str:
    if not value.startswith(b'"'):
        return value.decode(errors="surrogateescape")
    try:
        text = read_json(value)
    except UNREADABLE_JSON:
        text = None
    return text if type(text) is str else value[1:-1].decode(errors="surrogateescape")


def _is_logfmt(text: bytes) -> bool:
    """Return True for pairs with a time or a message: other lines may have pairs by chance."""
    found = read_pairs(text)
    known = found is not None and not found.keys().isdisjoint(_MEANT.difference(BESIDE))
    return known and found is not None and len(found) >= _PAIRS_MIN


def form_of_record(line: bytes) -> Format | None:
    """Return the form of a line without a wrapper; None if it is text."""
    if read_object(line) is not None:
        return Format.JSON
    if _SYSLOG.match(line):
        return Format.SYSLOG
    return Format.LOGFMT if _is_logfmt(line) else None


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """What the records of one block have in common.

    Attributes:
        stated: The format that was stated; None where it was recognized, or is text.
    """

    shared: Mapping[str, str]
    arrived_ns: UnixNs
    zone: Zone
    stated: Format | None

    def of(self, groups: Sequence[WrappedGroup], inner: Format, form_from: int) -> LogColumns:
        """Return the columns of groups of lines, of which those from a line on may have a form."""
        read = {Format.JSON: read_object, Format.LOGFMT: read_pairs}.get(inner)
        values: dict[int, dict[str, Any]] = {}
        messages: list[int] = []
        plain: list[int] = []
        for place, group in enumerate(groups):
            has_form = group.first >= form_from and not group.continues
            value = read(group.text) if read is not None and has_form else None
            if value is not None:
                values[place] = value
            elif inner is Format.SYSLOG and has_form and self._is_message(group.text):
                messages.append(place)
            else:
                plain.append(place)
        parts: list[tuple[list[int], LogColumns]] = []
        if values:
            parts += self._objects(list(values), groups, values)
        if messages:
            parts.append((messages, self._messages([groups[place] for place in messages])))
        if plain:
            parts.append((plain, self._plain([groups[place] for place in plain])))
        return _in_order(parts)

    def _is_message(self, text: bytes) -> bool:
        return self.stated is Format.SYSLOG or _SYSLOG.match(text) is not None

    def _pairs(self, groups: Sequence[WrappedGroup]) -> list[dict[str, str]]:
        """Return the attributes of each group; groups with the same ones share an object."""
        known: dict[object, dict[str, str]] = {}
        rows: list[dict[str, str]] = []
        for one in groups:
            key = (one.line.stream, one.line.attributes, one.continues)
            found = known.get(key)
            if found is None:
                found = known[key] = self._pairs_of(one)
            rows.append(found)
        return rows

    def _pairs_of(self, group: WrappedGroup) -> dict[str, str]:
        found = dict(self.shared)
        if group.line.stream:
            found[STREAM_ATTRIBUTE] = group.line.stream
        for key, value in group.line.attributes:
            found.setdefault(f"docker.{key}" if key in _MEANT else key, value)
        if group.continues:
            found[CONTINUES_ATTRIBUTE] = "true"
        return found

    def _plain(self, groups: Sequence[WrappedGroup]) -> LogColumns:
        rows: list[Mapping[str, str]] = [*self._pairs(groups)]
        times = [one.line.ts_ns for one in groups]
        if self.stated is not None and None in times:
            # In a wrapper that was stated, any text is expected.
            wrong = {ERROR_ATTRIBUTE: f"line is not {self.stated}"}
            rows = [
                {**row, **wrong} if at is None else row for row, at in zip(rows, times, strict=True)
            ]
        body, rows = readable_bodies([one.text for one in groups], rows)
        if None in times:
            own = parse_timestamps(body, arrived_ns=self.arrived_ns, zone=self.zone).tolist()
            times = [two if one is None else one for one, two in zip(times, own, strict=True)]
        return LogColumns(
            ts=np.array(times, np.int64), body=body, attributes=attribute_columns(rows)
        )

    def _messages(self, groups: Sequence[WrappedGroup]) -> LogColumns:
        tally, rows = Tally(), []
        for one, pairs in zip(groups, self._pairs(groups), strict=True):
            received_ns = one.line.ts_ns or self.arrived_ns
            reading = SyslogReading(received_ns, self.zone, needs_priority=False)
            rows += syslog_records([SyslogPiece(one.text, pairs)], reading, tally)
        return logs_from_rows(rows, tally)

    def _objects(
        self,
        places: list[int],
        groups: Sequence[WrappedGroup],
        values: Mapping[int, dict[str, Any]],
    ) -> Iterator[tuple[list[int], LogColumns]]:
        """Yield the columns of objects."""
        try:
            yield places, self._object_columns(places, groups, values)
        except BodyUnreadable:
            if len(places) == 1:
                yield places, self._plain([groups[places[0]]])
                return
            half = len(places) // 2
            yield from self._objects(places[:half], groups, values)
            yield from self._objects(places[half:], groups, values)

    def _object_columns(
        self,
        places: list[int],
        groups: Sequence[WrappedGroup],
        values: Mapping[int, dict[str, Any]],
    ) -> LogColumns:
        fields = RecordFields(received_ns=self.arrived_ns)
        pairs = self._pairs([groups[place] for place in places])
        rows = [_with(values[place], own) for place, own in zip(places, pairs, strict=True)]
        tally = Tally()
        columns = columns_of(rows, fields, tally)
        if tally.timed:
            return columns
        # Objects without a time have that of their wrapper.
        flat = [flat_fields(values[place], fields.undivided) for place in places]
        own = [fields.time_of(one, self.arrived_ns)[1] for one in flat]
        ts = [
            groups[place].line.ts_ns or self.arrived_ns if at is None else at
            for place, at in zip(places, own, strict=True)
        ]
        return replace(columns, ts=np.array(ts, np.int64))


def _with(value: dict[str, Any], pairs: Mapping[str, str]) -> dict[str, Any]:
    """Return an object with further pairs; a key that it has already gets a number."""
    if value.keys().isdisjoint(pairs):
        return {**value, **pairs}
    found = {**value}
    after: dict[str, int] = {}
    for key, text in pairs.items():
        found[free_name(key, found, after)] = text
    return found


def _in_order(parts: list[tuple[list[int], LogColumns]]) -> LogColumns:
    """Return the records of all parts, each with the places that its records have."""
    if len(parts) == 1:
        return parts[0][1]
    places = np.concatenate([np.array(one, np.int64) for one, _ in parts])
    order = np.argsort(places)
    columns = join_columns([one for _, one in parts])
    return LogColumns(
        ts=columns.ts[order],
        body=take_texts(columns.body, order),
        severity=None if columns.severity is None else columns.severity[order],
        attributes=_attributes_in_order(columns.attributes, order),
    )


def _attributes_in_order(
    columns: AttributeColumns | None, order: npt.NDArray[np.int64]
) -> AttributeColumns | None:
    if columns is None:
        return None
    counts = np.diff(columns.offsets)[order]
    offsets = np.zeros(len(order) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    shifts = columns.offsets[:-1][order].astype(np.int64) - offsets[:-1]
    pairs = np.arange(int(offsets[-1]), dtype=np.int64) + np.repeat(shifts, counts)
    return take_pairs(columns, offsets, pairs, take_texts(columns.values, pairs))
