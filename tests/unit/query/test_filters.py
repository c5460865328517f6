"""Names of fields and conditions on them."""

import pytest

from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import Kind
from sluice_query.request import (
    FilterOperator,
    RecordField,
    RecordFilter,
    agents_of,
    parse_field,
    parse_filter,
)


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        ("body=x", "logs", RecordFilter(RecordField("body"), FilterOperator.EQUAL, "x")),
        ("body==", "logs", RecordFilter(RecordField("body"), FilterOperator.EQUAL, "=")),
        ("body=", "logs", RecordFilter(RecordField("body"), FilterOperator.EQUAL, "")),
        ("body!=a\nb", "logs", RecordFilter(RecordField("body"), FilterOperator.UNEQUAL, "a\nb")),
        ("body=~ x$", "logs", RecordFilter(RecordField("body"), FilterOperator.MATCHES, " x$")),
        (
            "name!~^a",
            "metrics",
            RecordFilter(RecordField("name"), FilterOperator.MATCHES_NOT, "^a"),
        ),
        (
            "severity>=17",
            "logs",
            RecordFilter(RecordField("severity"), FilterOperator.AT_LEAST, 17),
        ),
        ("value<-1.5e3", "metrics", RecordFilter(RecordField("value"), FilterOperator.LESS, -1500)),
        ("severity", "logs", RecordFilter(RecordField("severity"), FilterOperator.EXISTS)),
        (
            "!attributes.a.b c",
            "logs",
            RecordFilter(RecordField("attributes", "a.b c"), FilterOperator.ABSENT),
        ),
        (
            'resource."a=\\"b"=x=y',
            "entries",
            RecordFilter(RecordField("resource", 'a="b'), FilterOperator.EQUAL, "x=y"),
        ),
    ],
)
def test_a_filter_is_a_field_an_operator_and_a_value(
    text: str, kind: Kind, wanted: RecordFilter
) -> None:
    assert parse_filter(text, kind) == wanted


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("", "logs", "unknown field"),
        ("=x", "logs", "unknown field"),
        ("colour=red", "logs", "use one of agent_id, boot_id, severity, body, attributes.KEY or"),
        ("value=1", "logs", "unknown field"),
        ("body=x", "entries", "unknown field"),
        ("attributes=x", "logs", "unknown field"),
        ("attributes.=x", "logs", "unknown field"),
        ("agent_id.x=1", "logs", "unknown field"),
        ('attributes."a\\x"=1', "logs", "key is not a JSON string"),
        ("severity=high", "logs", "must be a number"),
        ("severity=1_0", "logs", "must be a number"),
        ("severity=\u0661", "logs", "must be a number"),
        ("severity=~1", "logs", "a number does not match a pattern"),
        ("value>=NaN", "metrics", "NaN has no order"),
        ("body<x", "logs", "only severity and value have an order"),
        ("!body=x", "logs", "a filter with `!` has no value"),
        ("body=\ud800", "logs", "not valid UTF-8"),
    ],
)
def test_another_text_is_refused(text: str, kind: Kind, message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        parse_filter(text, kind)


@pytest.mark.parametrize("key", ["a", "a.b", "a=b", 'a"b', "", "ä !", "a\\b", "<>", "~"])
def test_the_name_of_a_field_means_the_field(key: str) -> None:
    field = RecordField("attributes", key)
    assert parse_field(field.name, "logs") == field
    assert parse_filter(f"{field.name}=x", "logs").field == field


def test_filters_of_agents_select_files() -> None:
    filters = [parse_filter(text, "logs") for text in ("agent_id=a", "agent_id!=b", "agent_id=c")]
    assert agents_of(filters) == ("a", "c")
