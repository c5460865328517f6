"""The parameters of histogram, fields, values and context, from HTTP and the command line."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.manifests import Kind
from sluice_protocol.units import UnixNs
from sluice_query.context import NEIGHBOURS_DEFAULT, NEIGHBOURS_MAX
from sluice_query.field_values import VALUES_DEFAULT, VALUES_MAX
from sluice_query.fields import RecordField, check_encodable, parse_field
from sluice_query.histogram import (
    BUCKETS_DEFAULT,
    BUCKETS_MAX,
    BUCKETS_MIN,
    TOP_DEFAULT,
    TOP_MAX,
    bucket_starts,
    choose_width,
)
from sluice_query.parameters import (
    CONDITIONS,
    FILTER_CHARS_MAX,
    ParameterReader,
    check_given,
    parse_duration,
    parse_query,
)
from sluice_query.request import END_NS, FIRST_NS, ParameterName, Query, check_query, plain_name
from sluice_query.views import FieldList, Histogram, Neighbourhood, TopValues
from sluice_web.parameters import (
    FlagParameter,
    IntegerParameter,
    Parameter,
    TextParameter,
)

_BUCKETS: Final = IntegerParameter(
    name="buckets", default=BUCKETS_DEFAULT, minimum=BUCKETS_MIN, maximum=BUCKETS_MAX
)
_STEP: Final = TextParameter(name="step")
_BY: Final = TextParameter(name="by", chars_max=FILTER_CHARS_MAX)
_TOP: Final = IntegerParameter(name="top", default=TOP_DEFAULT, maximum=TOP_MAX)
_FIELD: Final = TextParameter(name="field", chars_max=FILTER_CHARS_MAX)
_LIMIT: Final = IntegerParameter(name="limit", default=VALUES_DEFAULT, maximum=VALUES_MAX)
_BOOT: Final = TextParameter(name="boot")
_SEQ: Final = IntegerParameter(name="seq", default=0, minimum=0, maximum=10**18 - 1)
_BEFORE: Final = IntegerParameter(
    name="before", default=NEIGHBOURS_DEFAULT, minimum=0, maximum=NEIGHBOURS_MAX
)
_AFTER: Final = IntegerParameter(
    name="after", default=NEIGHBOURS_DEFAULT, minimum=0, maximum=NEIGHBOURS_MAX
)
_HIGHLIGHT: Final = FlagParameter(name="highlight")
HISTOGRAM: Final[tuple[Parameter, ...]] = (*CONDITIONS, _BUCKETS, _STEP, _BY, _TOP)
FIELDS: Final[tuple[Parameter, ...]] = CONDITIONS
VALUES: Final[tuple[Parameter, ...]] = (*CONDITIONS, _FIELD, _LIMIT)
_POSITION: Final[tuple[Parameter, ...]] = (_BOOT, _SEQ, _BEFORE, _AFTER)
CONTEXT: Final[tuple[Parameter, ...]] = (*CONDITIONS, *_POSITION, _HIGHLIGHT)

Given = Mapping[str, Sequence[str]]
"""Each parameter's values."""


def parse_histogram(given: Given, now_ns: UnixNs, name: ParameterName = plain_name) -> Query:
    """Return the query for a histogram.

    Raises:
        BadUsage: As `parse_query`; or the field is unknown.
    """
    query, read = _parse(given, now_ns, name, HISTOGRAM)
    width_ns = _read_width(given, query, name, read)
    by = None if _BY.name not in given else _read_field(read, _BY, query.kind)
    return replace(query, view=Histogram(step_ns=width_ns, by=by, top=read.integer(_TOP)))


def _read_width(given: Given, query: Query, name: ParameterName, read: ParameterReader) -> int:
    """Return the width of a bar: the given step, or one that makes few enough bars."""
    if _STEP.name not in given:
        return choose_width(query.from_ns, query.to_ns, read.integer(_BUCKETS))
    if _BUCKETS.name in given:
        raise BadUsage(f"choose one of {name(_STEP.name)} and {name(_BUCKETS.name)}")
    width_ns = read.value(_STEP, "", parse_duration)
    bars = len(bucket_starts(query.from_ns, query.to_ns, width_ns))
    if bars > BUCKETS_MAX:
        raise BadUsage(
            f"{name(_STEP.name)} is too short for the time range, bars=`{bars}`,"
            f" most=`{BUCKETS_MAX}`"
        )
    return width_ns


def parse_fields(given: Given, now_ns: UnixNs, name: ParameterName = plain_name) -> Query:
    """Return the query for the fields of records.

    Raises:
        BadUsage: As `parse_query`.
    """
    query, _ = _parse(given, now_ns, name, FIELDS)
    return replace(query, view=FieldList())


def parse_values(given: Given, now_ns: UnixNs, name: ParameterName = plain_name) -> Query:
    """Return the query for the values of a field.

    Raises:
        BadUsage: As `parse_query`; or the field is missing or unknown.
    """
    query, read = _parse(given, now_ns, name, VALUES)
    _require(given, (_FIELD,), name)
    field = _read_field(read, _FIELD, query.kind)
    return replace(query, view=TopValues(field=field, limit=read.integer(_LIMIT)))


def parse_context(given: Given, now_ns: UnixNs, name: ParameterName = plain_name) -> Query:
    """Return the query for the neighbours of a record.

    Raises:
        BadUsage: As `parse_query`; or the position is incomplete.
    """
    everything = {"from": (str(FIRST_NS),), "to": (str(END_NS),)}
    query, read = _parse({**everything, **given}, now_ns, name, CONTEXT)
    _require(given, (_BOOT, _SEQ), name)
    if len(query.agents) != 1:
        raise BadUsage(f"one agent is required: add {name('agent')}, agents=`{len(query.agents)}`")
    around = Neighbourhood(
        boot_id=given[_BOOT.name][0],
        seq=read.integer(_SEQ),
        before=read.integer(_BEFORE),
        after=read.integer(_AFTER),
    )
    query = replace(query, view=around, highlight=read.flag(_HIGHLIGHT))
    return check_query(query, name)


def _parse(
    given: Given, now_ns: UnixNs, name: ParameterName, known: Sequence[Parameter]
) -> tuple[Query, ParameterReader]:
    check_given(given, known, name)
    conditions = {one.name for one in CONDITIONS}
    selecting = {key: values for key, values in given.items() if key in conditions}
    query = parse_query(selecting, now_ns, name, known=CONDITIONS)
    return query, ParameterReader(given, name)


def _require(given: Given, parameters: Sequence[Parameter], name: ParameterName) -> None:
    for one in parameters:
        if one.name not in given:
            raise BadUsage(f"parameter is missing: add {name(one.name)}")


def _read_field(read: ParameterReader, parameter: TextParameter, kind: Kind) -> RecordField:
    def parse(text: str) -> RecordField:
        check_encodable(text)
        return parse_field(text, kind)

    return read.value(parameter, "", parse)
