"""Render `docs/fields.md` from the tables of `sluice_protocol.meaning`."""

import re
from collections.abc import Iterator
from typing import Final

from deploy.page_sections import markdown_table
from sluice_protocol.fields import KINDS, LOGS, Kind
from sluice_protocol.meaning import (
    BESIDE,
    BODY_KEYS,
    CONTEXTS,
    DERIVED_KEYS,
    IMPLIED_SEVERITIES,
    NAMES,
    OBSERVED_KEY,
    RULE,
    SEVERITY_KEYS,
    TIME_KEYS,
    Scale,
    level_of,
    severity_of,
)
from sluice_protocol.values import ValueType
from sluice_query.logql.names import FIELD_LABELS, ONLY_FIELDS, field_of
from sluice_query.request import COLUMN_FIELDS

_CONTEXT: Final = re.compile(
    rf"^(?:{'|'.join(map(re.escape, CONTEXTS))})\.(?=(?:trace|span|request)_?id$)", re.IGNORECASE
)
_SENDERS: Final = (
    (
        "agent, text of files",
        "the time at the start of the line; else when it was read",
        "the line",
    ),
    ("OTLP logs", "`time_unix_nano`, else `observed_time_unix_nano`", "`body`"),
    ("OTLP traces", "`start_time_unix_nano`", ""),
    ("JSON, logfmt, Elasticsearch, JSON in Firehose", "{time}", "{body}"),
    (
        "Splunk",
        "`time` next to the event, else inside it: {time}",
        "`event`; if that is an object, inside it: {body}",
    ),
    ("Fluent forward", "the time of the entry", "{body}"),
    ("Loki", "the timestamp of the entry", "the line of the entry"),
    ("CloudWatch in Firehose", "`timestamp` of the log event", "`message` of the log event"),
    ("Prometheus", "the timestamp of the sample", ""),
    ("syslog", "`TIMESTAMP`", "`MSG`"),
)
"""Each sender, its time and its body; `{time}` and `{body}` are the lists of keys."""
_HEAD: Final = """\
# Fields: what a record means

This page is generated from the code by `make docs`. It is rule {rule}
([ADR 45](adr/0045-meaning.md)).

Every record has the same few fields, whatever its sender called them, in queries and in the
[tables](reference/tables.md). What was sent stays in `attributes` and `resource` as it was sent,
with two exceptions: the value that became the body, and a time that the field shows completely.
The `value` of a metric is a 64-bit float. [OTLP metrics](doors.md#otlp-metrics) states how an
integer above 2^53 stays exact, and which are rounded.

| field | is |
| --- | --- |
| `ts` | the time of the record, exact to the nanosecond |
| `body` | the line or message |
| `severity`, `level` | [the level](#levels) as a number of OpenTelemetry and as a word |
"""
_FIRST: Final = """
## Time and body

A sender states both in its protocol, or under keys of an object. The first key with a time counts,
and the first with a text.

"""
_TIMES: Final = """
A time is text in one of the [forms of times](doors.md#forms-of-times), or a number: below 10^11 in
seconds, below 10^14 in milliseconds, below 10^17 in microseconds, else in nanoseconds. Digits are
read exactly. Under `ts` and the keys after it, a number below 10^8 is no time: it would be before
1973.
A time with another zone than UTC, or in another form than RFC 3339, also stays an attribute. If no
key has a time, the time of receipt counts; a value under `@timestamp`, `timestamp` or `time` that
cannot be read adds `sluice.error`. `?time=KEY` and `?message=KEY` of the door `json` name others.
"""
_DERIVED: Final = """
## Derived fields

The first key with a text counts, in the attributes of the record and then in the resource of its
batch. Ids of traces and spans are shown in lower case without dashes. As an id of a trace, a span
or a request, a text of more than 128 bytes does not count. Spans contain their ids themselves, so a
log is found with the spans of its trace by `trace_id`.

"""
_AFTER: Final = """
A few keys may be anything unless others are next to them, so they count only with these, also as a
time:

{beside}
A key inside `CONTEXT` counts inside any of the objects {contexts}.
"""
_LEVELS: Final = """
## Levels

The first of these keys with a text counts, in the attributes of the record and then in the resource
of its batch; a severity number of the protocol (OTLP, syslog) counts before them. `level` is
`trace`, `debug`, `info`, `warn`, `error` or `fatal`. An unknown level is shown as it was sent, in
lower case, and its severity is empty.

"""
_IMPLIED: Final = """
A record with none of these keys has a level if it has all of:

"""
_NUMBERS: Final = """
Names count in any case, in brackets, in the colors of a terminal, and with a number behind them
(`ERROR2`, `WARN+1`):

"""
_SCALES: Final = """
Numbers count by the scale of their key:

"""


_LABELS: Final = """
## Labels

A [label](logql.md) is the first of these that has a value: the field of this table, the attribute
with its name or whose key becomes the name when each character other than A-Z, a-z, 0-9 and `_` is
replaced by `_`, the same among the attributes of the resource. The last column states labels that
are their field alone, because the field is read from every attribute that states it.

"""
_TYPED: Final = """
## Types of attributes

Each value is a text, and keeps the type that its sender gave it
([ADR 47](adr/0047-types-of-attributes.md)). Values of a resource are text for every sender.

"""
_PLAIN: Final = (ValueType.TEXT,)
_OF_JSON: Final = (
    ValueType.TEXT,
    ValueType.INTEGER,
    ValueType.FLOAT,
    ValueType.BOOLEAN,
    ValueType.JSON,
)
_DOTTED: Final = "dotted keys"
_ONE_VALUE: Final = "one value of JSON"
TYPES_BY_SENDER: Final[dict[str, tuple[tuple[ValueType, ...], str]]] = {
    "OTLP logs, metrics and traces": (tuple(ValueType), _ONE_VALUE),
    "JSON, Elasticsearch, Splunk, Firehose": (_OF_JSON, _DOTTED),
    "Fluent forward": (tuple(ValueType), _DOTTED),
    "agent, lines of JSON": (_OF_JSON, _DOTTED),
    "agent, logfmt and syslog": (_PLAIN, ""),
    "Loki labels and structured metadata": (_PLAIN, ""),
    "Prometheus labels": (_PLAIN, ""),
}
"""The types of attributes that each sender can state, and what becomes of an object inside."""


def render_fields() -> str:
    """Return the page of fields."""
    parts = [
        _HEAD.format(rule=RULE),
        _sender_rows(),
        _FIRST,
        markdown_table(("sender", "time", "body"), _sent()),
    ]
    parts += [_TIMES, _DERIVED, markdown_table(("field", "keys", "kinds"), _derived())]
    beside = ((f"`{key}`", _keys(others)) for key, others in BESIDE.items())
    table = markdown_table(("key", "only with"), beside)
    parts += [_AFTER.format(beside=table, contexts=_keys(CONTEXTS))]
    heads = ("key", "only with", "numbers", "sent by")
    parts += [_LEVELS, markdown_table(heads, _severity_keys()), _IMPLIED]
    parts += [markdown_table(("keys", "level", "sent by"), _implied())]
    parts += [_NUMBERS, markdown_table(("severity", "level", "names"), _names())]
    parts += [_SCALES, markdown_table(("scale", "numbers"), _scales())]
    columns = ("sender", "types that it keeps", "an object inside")
    parts += [_TYPED, markdown_table(columns, _types())]
    labels = markdown_table(("label", "field", "kinds", "field alone"), _labels())
    return "".join([*parts, _LABELS, labels])


def _labels() -> Iterator[tuple[str, ...]]:
    names = [
        *FIELD_LABELS,
        *dict.fromkeys(one for fields in COLUMN_FIELDS.values() for one in fields),
    ]
    for name in names:
        kinds: list[Kind] = [kind for kind in KINDS if field_of(name, kind) is not None]
        if kinds:
            column = FIELD_LABELS.get(name, name)
            alone = "yes" if column in ONLY_FIELDS else ""
            yield f"`{name}`", f"`{column}`", ", ".join(kinds), alone


def _types() -> Iterator[tuple[str, ...]]:
    for sender, (types, nested) in TYPES_BY_SENDER.items():
        yield sender, ", ".join(one.label for one in types), nested


def _sender_rows() -> str:
    rows = [f"| `{one.name}` | {one.meaning} |" for one in LOGS.derived if one.name != "level"]
    return "\n".join(rows) + "\n"


def _keys(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _sent() -> Iterator[tuple[str, ...]]:
    lists = {"time": _keys(TIME_KEYS), "body": _keys(BODY_KEYS)}
    for row in _SENDERS:
        yield tuple(cell.format(**lists) for cell in row)


def _derived() -> Iterator[tuple[str, ...]]:
    for name, keys in DERIVED_KEYS.items():
        shown = tuple(dict.fromkeys(_CONTEXT.sub("CONTEXT.", one) for one in keys))
        yield f"`{name}`", _keys(shown), _kinds_with(name)
    yield "`observed_ns`", f"`{OBSERVED_KEY}`", "logs"


def _kinds_with(name: str) -> str:
    return ", ".join(
        kind.name for kind in KINDS.values() if name in {one.name for one in kind.derived}
    )


def _severity_keys() -> Iterator[tuple[str, ...]]:
    for one in SEVERITY_KEYS:
        yield f"`{one.name}`", _keys(one.beside), one.scale.value, one.sender


def _implied() -> Iterator[tuple[str, ...]]:
    for one in IMPLIED_SEVERITIES:
        yield _keys(one.keys), level_of(one.severity), one.sender


def _names() -> Iterator[tuple[str, ...]]:
    for number, words in NAMES.items():
        yield str(number), level_of(number), ", ".join(words.split())


_NUMBERS_SHOWN: Final = {
    Scale.LOGGER: (
        *(10, 20, 30, 40, 50, 60),
        *(100, 200, 250, 300, 400, 550, 500, 600),
        *(7, 6, 5, 4, 3, 2, 1, 0),
    ),
    Scale.SYSLOG: (7, 6, 5, 4, 3, 2, 1, 0),
    Scale.OTEL: (1, 5, 9, 13, 17, 21),
    Scale.PYTHON: (5, 10, 20, 30, 40, 50),
    Scale.MIXED: (7, 6, 4, 3, 0, 9, 13, 17, 21, 100, 200, 300, 400, 500, 600, 700, 800),
    Scale.GOOGLE: (0, 100, 200, 300, 400, 500, 600, 700, 800),
    Scale.WINDOWS: (5, 4, 3, 2, 1, 0),
    Scale.DOTNET: (0, 1, 2, 3, 4, 5),
    Scale.INSIGHTS: (0, 1, 2, 3, 4),
    Scale.VERBOSITY: (0, 3, 4, 10),
}


def _scales() -> Iterator[tuple[str, ...]]:
    for scale, numbers in _NUMBERS_SHOWN.items():
        shown = (f"{one} {level_of(severity_of(str(one), scale))}" for one in numbers)
        yield scale.value, ", ".join(shown)
