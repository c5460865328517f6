"""Map OTLP log messages to columns, record by record.

This is the mapping that `docs/doors.md` describes. It serves JSON, and protobuf where
`arrow_logs.py` does not; a property test compares the two.
"""

from collections.abc import Iterable
from typing import Final

from sluice_doors.attributes import (
    FIELD,
    OWN,
    SPAN_ID_BYTES,
    TRACE_ID_BYTES,
    RawRecord,
    ScopeGroup,
    Sources,
    choose_time,
    count_text,
    id_text,
    merged,
    pairs_of,
    value_text,
)
from sluice_doors.decoded import ERROR_ATTRIBUTE, DecodedRecords, Tally
from sluice_doors.otlp.messages import AnyValue, OtlpLog, PartlyReadLog
from sluice_doors.rows import built_or_repaired, log_pieces, records_of_groups, repaired_log
from sluice_protocol.columns import LogColumns
from sluice_protocol.fields import SEVERITY_MAX
from sluice_protocol.records import RAW_ATTRIBUTE, LogRecord, logs_from_records

_NO_VALUE: Final = AnyValue()
_SEVERITY_PREFIX: Final = "SEVERITY_NUMBER_"
_SEVERITY_NAMES: Final = {
    f"{_SEVERITY_PREFIX}{name}{step if step > 1 else ''}": 4 * place + step
    for place, name in enumerate(("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"))
    for step in (1, 2, 3, 4)
} | {f"{_SEVERITY_PREFIX}UNSPECIFIED": 0}


LogGroup = ScopeGroup[OtlpLog | RawRecord]


def logs_from_groups(groups: Iterable[LogGroup], *, received_ns: int) -> DecodedRecords | None:
    """Return the records of all groups; None if there are none."""
    tally = Tally()
    return records_of_groups(
        groups, log_pieces(tally), lambda log, outer: _log(log, outer, received_ns, tally), tally
    )


def logs_from_rows(rows: list[LogRecord], tally: Tally) -> LogColumns:
    """Return columns of records, and repair those with text that is not UTF-8."""
    return built_or_repaired(rows, logs_from_records, repaired_log, tally)


def raw_log(record: RawRecord, outer: Sources = (), *, received_ns: int) -> LogRecord:
    """Return a record that cannot be read, as its text."""
    stated = [(ERROR_ATTRIBUTE, record.reason)]
    if record.raw:
        stated.append((RAW_ATTRIBUTE, record.raw))
    return LogRecord(
        ts_ns=received_ns,
        body=record.text,
        attributes=merged([(OWN, stated), *outer]),
    )


def _log(log: OtlpLog | RawRecord, outer: Sources, received_ns: int, tally: Tally) -> LogRecord:
    if isinstance(log, RawRecord):
        row = raw_log(log, outer, received_ns=received_ns)
        tally.timed = False
        tally.unreadable += 1
        tally.foreign += log.is_foreign
        tally.add(row.attributes, str(row.body))
        return row
    time = choose_time(log.time_unix_nano, log.observed_time_unix_nano, received_ns=received_ns)
    tally.timed = tally.timed and time.timed
    partly = (log.source, log.reason) if isinstance(log, PartlyReadLog) else ("", "")
    tally.unreadable += bool(time.error or partly[1])
    severity = otlp_severity(log.severity_number)
    stated = (
        ("severity_number", "" if severity is not None else str(log.severity_number)),
        ("severity_text", log.severity_text),
        ("trace_id", id_text(log.trace_id, TRACE_ID_BYTES)),
        ("span_id", id_text(log.span_id, SPAN_ID_BYTES)),
        ("trace_flags", count_text(log.flags)),
        ("event_name", log.event_name),
        ("dropped_attributes_count", count_text(log.dropped_attributes_count)),
        *time.fields,
        (ERROR_ATTRIBUTE, "; ".join(filter(None, (time.error, partly[1])))),
        (RAW_ATTRIBUTE, partly[0]),
    )
    fields = [pair for pair in stated if pair[1]]
    body = "" if log.body == _NO_VALUE else str(value_text(log.body))
    attributes = merged([(OWN, pairs_of(log.attributes)), (FIELD, fields), *outer])
    tally.add(attributes, body)
    return LogRecord(ts_ns=time.ts_ns, body=body, severity=severity or 0, attributes=attributes)


def otlp_severity(number: int | str) -> int | None:
    """Return a severity number, 0 if it is not set; None if it is not one of OpenTelemetry's."""
    if isinstance(number, str):
        return _SEVERITY_NAMES.get(number) if number else 0
    return number if 0 <= number <= SEVERITY_MAX else None
