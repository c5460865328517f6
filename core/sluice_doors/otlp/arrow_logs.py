"""Read OTLP logs in protobuf through Arrow, without a Python loop over records.

numpy maps the Arrow arrays to columns. The result is the same as that of `protobuf` and `logs`,
which also decode the requests that this module cannot map: a request with text that is not UTF-8,
or with a time that is out of range.
"""

from functools import partial
from itertools import compress
from typing import Final

import numpy as np
import numpy.typing as npt

from sluice_doors.arrow.pairs import (
    Names,
    field_source,
    joined_attributes,
    numbers_within,
    optional_sources,
    values_where,
)
from sluice_doors.arrow.pieces import CUT_BYTES, PIECE_BYTES
from sluice_doors.arrow.requests import (
    MappedRecords,
    ScopedRecords,
    decode_pieces,
    own_pairs,
    parse_list,
    pieces_of,
)
from sluice_doors.arrow.texts import (
    ArrowArray,
    NotPlain,
    check_text,
    decimal_texts,
    hex_texts,
    integers,
    text_of,
    value_texts,
)
from sluice_doors.attributes import OBSERVED_KEY
from sluice_doors.decoded import DecodedRecords, Tally
from sluice_doors.otlp.protobuf import LOGS_REQUEST, log_records, message_type
from sluice_doors.protobuf import is_foreign
from sluice_protocol.columns import I64, LogColumns
from sluice_protocol.fields import SEVERITY_MAX
from sluice_protocol.frame import Resource
from sluice_protocol.times import TS_END

_FIELDS: Final = (
    ("severity_text", "severity_text", None),
    ("trace_id", "trace_id", hex_texts),
    ("span_id", "span_id", hex_texts),
    ("flags", "trace_flags", decimal_texts),
    ("event_name", "event_name", None),
    ("dropped_attributes_count", "dropped_attributes_count", decimal_texts),
)


def decode_logs(
    body: bytes, *, received_ns: int, cut_bytes: int = CUT_BYTES, piece_bytes: int = PIECE_BYTES
) -> DecodedRecords | None:
    """Return the records of a logs request; None if it has none."""
    pieces = pieces_of(body, cut_bytes=cut_bytes, piece_bytes=piece_bytes)
    return decode_pieces(pieces, partial(_mapped, received_ns=received_ns))


def _mapped(
    body: bytes, shared: Resource | None, tally: Tally, *, received_ns: int
) -> MappedRecords | None:
    """Return the records of a request or a piece of one; None if there are none."""
    resources = parse_list(message_type(LOGS_REQUEST), body)
    scoped = ScopedRecords(resources, "scope_logs", "log_records")
    records = scoped.records
    if not len(records):
        return None
    # A record of another kind, for example a span, has no time where this one has it.
    untimed = integers(records.field("time_unix_nano")) == 0
    if untimed.any() and any(map(is_foreign, compress(log_records(body), untimed.tolist()))):
        raise NotPlain
    names = Names()
    ts, observed, stated = _times(records, received_ns)
    tally.timed = tally.timed and bool(stated.all())
    severity, severity_source = numbers_within(
        records.field("severity_number"), SEVERITY_MAX, "severity_number", names
    )
    outer = scoped.outer(shared)
    outer_sources = outer.sources(names)
    body_text = text_of(value_texts(records.field("body"), unset=b""))
    check_text(body_text)
    tally.add_sizes(0, len(body_text.data))
    fields = [*severity_source, *optional_sources(records, _FIELDS, names)]
    if observed.any():
        seen = records.field("observed_time_unix_nano")
        fields.append(
            field_source(
                names.number(OBSERVED_KEY), observed, decimal_texts(values_where(seen, observed))
            )
        )
    sources = [own_pairs(records.field("attributes"), names), *fields, *outer_sources]
    columns = LogColumns(
        ts=ts,
        body=body_text,
        severity=severity if severity.any() else None,
        attributes=joined_attributes(sources, names, tally),
    )
    return MappedRecords(columns, outer.shared)


def _times(
    records: ArrowArray, received_ns: int
) -> tuple[I64, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return the times, and two masks: the observed time is an attribute, and a time is set."""
    time = integers(records.field("time_unix_nano"))
    observed = integers(records.field("observed_time_unix_nano"))
    if int(time.max()) >= TS_END or int(observed.max()) >= TS_END:
        raise NotPlain
    ts = np.where(time != 0, time, observed)
    stated = ts != 0
    ts = np.where(stated, ts, np.uint64(received_ns)).astype(np.int64)
    return ts, (observed != 0) & (observed != ts.view(np.uint64)), stated
