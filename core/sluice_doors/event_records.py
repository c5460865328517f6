"""Map objects to log records where the protocol states the time outside of the object.

Fluent's records, the events of Splunk, and the JSON inside records of Firehose. The body is the
first of the fields in which the usual senders put the line; all others become attributes.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from sluice_doors.any_values import json_text
from sluice_doors.json_records import flat_fields
from sluice_doors.json_values import Unread
from sluice_doors.otlp_attributes import OWN, Pairs, merged
from sluice_protocol.records import LogRecord

MESSAGE_FIELDS: Final = ("message", "log", "MESSAGE", "line")
"""Fluentd and syslog, Fluent Bit and Kubernetes, systemd, and Docker's driver for Splunk."""


def event_record(
    found: Mapping[str, object], *, ts_ns: int, sources: Sequence[tuple[str, Pairs]] = ()
) -> LogRecord:
    """Return the record of an object.

    Args:
        found: The object, with texts as keys.
        ts_ns: Its time.
        sources: What the protocol states next to the object: pairs of names and texts, and the
            prefix of those names that the object has too.
    """
    field = _message_field(found)
    nested = dict in set(map(type, found.values()))
    flat = flat_fields(found, field) if nested else {**found}
    message = flat.pop(field) if field else ""
    attributes = {
        key: value if type(value) is str else value_as_text(value) for key, value in flat.items()
    }
    if "" in attributes or any(pairs for _, pairs in sources):
        attributes = merged([(OWN, list(attributes.items())), *sources])
    return LogRecord(ts_ns=ts_ns, body=value_as_text(message), attributes=attributes)


def _message_field(found: Mapping[str, object]) -> str:
    for name in MESSAGE_FIELDS:
        if found.get(name) is not None:
            return name
    return ""


def value_as_text(value: object) -> str:
    """Return a text as it is, and any other value as canonical JSON text."""
    if isinstance(value, Unread):
        return value.text
    return value if type(value) is str else json_text(value)
