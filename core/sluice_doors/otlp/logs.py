"""Map OTLP log messages to columns, record by record.

This is the mapping that `docs/doors.md` describes. It serves JSON, and protobuf where
`arrow_logs.py` does not; a property test compares the two.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from sluice_doors.attributes import (
    FIELD,
    OWN,
    RawRecord,
    ScopeGroup,
    Sources,
    choose_time,
    count_text,
    merged,
    outer_pairs,
    outer_sources,
    pairs_of,
    value_text,
)
from sluice_doors.decoded import ERROR_ATTRIBUTE, DecodedRecords, Tally
from sluice_doors.otlp.messages import AnyValue, OtlpLog, PartlyReadLog
from sluice_doors.rows import built_or_repaired, log_pieces, repaired_log
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
    filled = [each for each in groups if each.records]
    shared, outer = outer_sources(filled)
    tally.check_repeated(
        (len(group.records), outer_pairs(sources))
        for group, sources in zip(filled, outer, strict=True)
    )
    rows = log_pieces(tally)
    for group, sources in zip(filled, outer, strict=True):
        rows.extend(_group_rows(group, sources, received_ns, tally))
    return tally.decoded(rows.columns(), shared) if rows else None


def logs_from_rows(rows: list[LogRecord], tally: Tally) -> LogColumns:
    """Return columns of records, and repair those with text that is not UTF-8."""
    return built_or_repaired(rows, logs_from_records, repaired_log, tally)


def _group_rows(
    group: LogGroup, outer: Sources, received_ns: int, tally: Tally
) -> Iterator[LogRecord]:
    for record in group.records:
        if isinstance(record, RawRecord):
            row = raw_log(record, outer, received_ns=received_ns)
            tally.timed = False
            tally.unreadable += 1
            tally.foreign += record.is_foreign
        else:
            row = _log(record, outer, received_ns, tally)
        tally.add(row.attributes, str(row.body))
        yield row


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


def _log(log: OtlpLog, outer: Sources, received_ns: int, tally: Tally) -> LogRecord:
    time = choose_time(log.time_unix_nano, log.observed_time_unix_nano, received_ns=received_ns)
    tally.timed = tally.timed and time.timed
    partly = (log.source, log.reason) if isinstance(log, PartlyReadLog) else ("", "")
    tally.unreadable += bool(time.error or partly[1])
    severity = severity_of(log.severity_number)
    stated = (
        ("severity_number", "" if severity is not None else str(log.severity_number)),
        ("severity_text", log.severity_text),
        ("trace_id", log.trace_id.lower()),
        ("span_id", log.span_id.lower()),
        ("trace_flags", count_text(log.flags)),
        ("event_name", log.event_name),
        ("dropped_attributes_count", count_text(log.dropped_attributes_count)),
        *time.fields,
        (ERROR_ATTRIBUTE, "; ".join(filter(None, (time.error, partly[1])))),
        (RAW_ATTRIBUTE, partly[0]),
    )
    fields = [pair for pair in stated if pair[1]]
    return LogRecord(
        ts_ns=time.ts_ns,
        body="" if log.body == _NO_VALUE else str(value_text(log.body)),
        severity=severity or 0,
        attributes=merged([(OWN, pairs_of(log.attributes)), (FIELD, fields), *outer]),
    )


def severity_of(number: int | str) -> int | None:
    """Return a severity number, 0 if it is not set; None if it is not one of OpenTelemetry's."""
    if isinstance(number, str):
        return _SEVERITY_NAMES.get(number) if number else 0
    return number if 0 <= number <= SEVERITY_MAX else None
