"""Decode the bulk requests of Elasticsearch: pairs of lines, an action and a document."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

import msgspec

from sluice_doors.any_values import json_text
from sluice_doors.decoded import (
    REASON_CHARACTERS_MAX,
    BodyUnreadable,
    DecodedRecords,
    check_lines,
)
from sluice_doors.json_records import RecordFields, raw_record, record_of
from sluice_doors.row_pieces import log_pieces
from sluice_doors.tally import Tally
from sluice_protocol.json_errors import UNREADABLE_JSON
from sluice_protocol.records import LogRecord

Action = Literal["index", "create", "update", "delete"]
TIME_FIELD: Final = "@timestamp"
MESSAGE_FIELD: Final = "message"
PREFIX: Final = "elasticsearch."
"""The prefix of attributes with what an action line states about its document."""
_ACTIONS: Final = get_args(Action)
_JSON: Final = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkItem:
    """What the answer of one action needs.

    Attributes:
        action: The action.
        index: The index that it names, or that of the path; empty if neither does.
        id: The id of the document; empty if the client leaves it to the server.
    """

    action: Action
    index: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRequest:
    """A bulk request: its records, and one item for each action in their order."""

    records: tuple[DecodedRecords, ...]
    items: tuple[BulkItem, ...]


def decode_bulk(body: bytes, *, index: str = "", received_ns: int) -> BulkRequest:
    """Return the records and items of a bulk request; both empty if it has no line.

    A document that is not a JSON object, and a deletion, are kept as text.

    Args:
        body: The body after decompression.
        index: The index of the path, for actions that name none.
        received_ns: The time of documents that contain none.

    Raises:
        BodyUnreadable: No line is an action.
        BodyTooLarge: There are too many actions, or their records expand to more than the limits.
    """
    check_lines(body, per_record=2)
    reader = _Bulk(body, index, received_ns)
    rows = log_pieces(reader.tally)
    rows.extend(reader.rows())
    if not rows:
        return BulkRequest(records=(), items=())
    if not reader.actions:
        raise BodyUnreadable("cannot read body as a bulk request: no line is an action")
    decoded = reader.tally.decoded(rows.columns())
    return BulkRequest(records=(decoded,), items=tuple(reader.items))


class _Bulk:
    """Reads the lines of one request."""

    def __init__(self, body: bytes, index: str, received_ns: int) -> None:
        self.tally = Tally()
        self.items: list[BulkItem] = []
        self.actions = 0
        self._index = index
        self._lines = iter([line for line in body.split(b"\n") if line.strip()])
        self._fields = RecordFields(time=TIME_FIELD, message=MESSAGE_FIELD, received_ns=received_ns)

    def rows(self) -> Iterator[LogRecord]:
        """Yield a record for each action.

        Raises:
            BodyTooLarge: They expand to more than the limits.
        """
        for row in self._rows():
            self.tally.add(row.attributes, str(row.body))
            yield row

    def _rows(self) -> Iterator[LogRecord]:
        for line in self._lines:
            found = _action(line)
            if found is None:
                self._add("create", {})
                yield self._raw(line, "line is not an action of a bulk request", {})
                continue
            self.actions += 1
            action, stated = found
            extra = self._add(action, stated)
            yield (
                self._delete(line, extra)
                if action == "delete"
                else self._document(action, line, extra)
            )

    def _add(self, action: Action, stated: dict[str, object]) -> dict[str, str]:
        """Add an item, and return what its line states as attributes."""
        named = {"_index": self._index, **stated} if self._index else stated
        texts = {
            key.removeprefix("_"): one if isinstance(one, str) else json_text(one)
            for key, one in named.items()
        }
        self.items.append(
            BulkItem(action=action, index=texts.get("index", ""), id=texts.get("id", ""))
        )
        return {PREFIX + key: text for key, text in texts.items()}

    def _document(self, action: Action, line: bytes, extra: dict[str, str]) -> LogRecord:
        document = next(self._lines, None)
        if document is None:
            return self._raw(line, "action has no document", extra)
        try:
            found = _JSON.decode(document)
        except UNREADABLE_JSON as error:
            return self._raw(document, str(error), extra)
        if not isinstance(found, dict):
            return self._raw(document, "document is not a JSON object", extra)
        if action == "update":
            extra = {**extra, PREFIX + "action": action}
            found = found["doc"] if isinstance(found.get("doc"), dict) else found
        return record_of(found, self._fields, self.tally, extra)

    def _delete(self, line: bytes, extra: dict[str, str]) -> LogRecord:
        return self._raw(line, "documents cannot be deleted here", extra)

    def _raw(self, line: bytes, reason: str, extra: dict[str, str]) -> LogRecord:
        text = line.rstrip(b"\r").decode(errors="surrogateescape")
        return raw_record(text, reason[:REASON_CHARACTERS_MAX], self._fields, self.tally, extra)


def _action(line: bytes) -> tuple[Action, dict[str, object]] | None:
    """Return an action and what its line states; None if the line is none."""
    try:
        found = _JSON.decode(line)
    except UNREADABLE_JSON:
        return None
    if not isinstance(found, dict) or len(found) != 1:
        return None
    ((name, stated),) = found.items()
    if name not in _ACTIONS or not isinstance(stated, dict):
        return None
    return cast("Action", name), stated
