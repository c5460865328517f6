"""What of a LogQL question narrows the files to read, and what is refused."""

import pytest

from sluice_protocol.errors import BadUsage
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.logql.expressions import LogQuery
from sluice_query.logql.grammar import parse_logql
from sluice_query.logql.planning import narrowed
from sluice_query.parameters import parse_query
from sluice_query.request import FilterOperator, Query, RecordField, RecordFilter, TextCondition

FROM_NS = 1_790_000_000 * NS_PER_S
NOW_NS = UnixNs(FROM_NS + 3600 * NS_PER_S)


def query_of(text: str, **given: str) -> Query:
    known = {"query": (text,), "from": (str(FROM_NS),), "to": (str(NOW_NS),)}
    return parse_query({**known, **{name: (value,) for name, value in given.items()}}, NOW_NS)


def filters_of(*texts: str) -> tuple[RecordFilter, ...]:
    pairs = [text.split("=") for text in texts]
    return tuple(
        RecordFilter(RecordField(name), FilterOperator.EQUAL, value) for name, value in pairs
    )


@pytest.mark.parametrize(
    ("text", "filters"),
    [
        ('{service_name="web", level="error"}', ("service=web", "level=error")),
        ('{service="web"} | detected_level="warn"', ("service=web", "level=warn")),
        ('{service_name=~"web"}', ()),
        ('{level=""}', ()),
        ('{level!="error"}', ()),
        ('{level="a", level="b"}', ("level=a",)),
        ('{} | json | level="error"', ()),
        ('{app="x"}', ()),
    ],
)
def test_equal_fields_become_filters(text: str, filters: tuple[str, ...]) -> None:
    assert query_of(text).filters == filters_of(*filters)


def test_an_equal_label_of_an_attribute_is_searched_in_the_index() -> None:
    question = '{app="x", host="y", level="z", pod!="a", ns=""} | request_id="b" | json | c="d"'
    assert query_of(question).labels == (("app", "x"), ("request_id", "b"))
    one = 'rate({app="x"}[1m])'
    assert query_of(f"{one} + {one}").labels == (("app", "x"),)
    assert query_of(f"{one} + rate({{}}[1m])").labels == ()


def test_the_label_agent_selects_the_agents() -> None:
    assert query_of('{agent="host-1"}').agents == ("host-1",)


@pytest.mark.parametrize(
    ("text", "searched"),
    [
        ('{} |= "a" |= "longer" != "the longest"', (("a",), ("longer",))),
        ('{} | json |= "after"', (("after",),)),
        ('{} |= "a" or "b"', (("a", "b"),)),
        ('{} |= ""', ()),
        ('{} | line_format "x" |= "after"', ()),
        ('{} |~ "a|(?:b|c)d"', (("a", "bd", "cd"),)),
    ],
)
def test_texts_of_filters_of_lines_are_searched_in_the_index(
    text: str, searched: tuple[tuple[str, ...], ...]
) -> None:
    found = (one.alternatives for one in query_of(text).required)
    assert tuple(tuple(text for (text,) in some) for some in found) == searched


def test_the_range_of_a_metric_query_reaches_back_by_its_window_and_offset() -> None:
    query = query_of("rate({} [5m] offset 1h) / sum(rate({} [1m]))", step="60s")
    minute_ns = 60 * NS_PER_S
    first_ns = FROM_NS // minute_ns * minute_ns
    assert query.from_ns == first_ns - 3600 * NS_PER_S - 300 * NS_PER_S + 1
    assert query.to_ns == NOW_NS // minute_ns * minute_ns + 1


@pytest.mark.parametrize(
    ("from_s", "to_s", "first_s"), [(61, 200, 60), (60, 200, 60), (61, 61, 61)]
)
def test_steps_are_multiples_of_their_width(from_s: int, to_s: int, first_s: int) -> None:
    hour_s = 1_800_000_000
    times = {"from": str((hour_s + from_s) * NS_PER_S), "to": str((hour_s + to_s) * NS_PER_S)}
    evaluation = query_of("rate({} [1m])", step="60s", **times).evaluation
    assert evaluation is not None
    assert evaluation.start_ns == (hour_s + first_s) * NS_PER_S


def test_parts_of_a_ratio_narrow_the_files_only_if_they_agree() -> None:
    both = 'sum(rate({level="error"} [1m])) / sum(rate({level="error"} |= "x" [1m]))'
    assert query_of(both).filters == ()
    assert query_of(both).required == ()
    same = 'sum(rate({level="error"} [1m])) / sum(bytes_rate({level="error"} [1m]))'
    assert query_of(same).filters == filters_of("level=error")


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("{", {}, "column="),
        ("{}", {"step": "1m"}, "step applies to a metric query only"),
        ("rate({}[1m])", {"step": "1ms"}, "at most 11000 steps"),
        ("rate({}[1m])", {"stats_only": "true"}, "stats_only applies to records only"),
        ('{} |= "x"', {"kind": "entries"}, "entries are opaque bytes"),
        ("{} | json", {"kind": "entries"}, "entries are opaque bytes"),
        ("rate({}[1m])", {"from": "-9223372036854775808"}, "time"),
        (
            "rate({}[400w])",
            {"from": "-9223372036854775808", "to": "0", "step": "999999999s"},
            "2262",
        ),
    ],
)
def test_what_does_not_fit_is_refused(text: str, given: dict[str, str], message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        query_of(text, **given)


def test_kinds_with_fields_are_selected_by_them() -> None:
    question = parse_logql('{service_name="web", name="GET /"} |= "GET"')
    assert isinstance(question, LogQuery)
    query = narrowed(Query(from_ns=UnixNs(0), to_ns=NOW_NS, kind="spans"), question)
    assert query.required == (TextCondition((("GET",),)),)
    assert [one.field.name for one in query.filters] == ["service", "name"]
