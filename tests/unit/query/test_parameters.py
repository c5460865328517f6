from dataclasses import replace

import pytest
from support.query_lake import DAY0_NS, make_query

from sluice_cli.shell.asking import flag_of
from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import Kind
from sluice_protocol.units import UnixNs
from sluice_query.parameters import parse_duration, parse_histogram, parse_instant, parse_query
from sluice_query.request import (
    Aggregate,
    FilterOperator,
    Histogram,
    Query,
    RecordField,
    RecordFilter,
    Series,
    TextCondition,
    check_query,
    parse_field,
)

NOW = UnixNs(1_790_000_000_000_000_000)
HOUR_NS = 3600 * 10**9


def test_no_parameters_mean_the_logs_of_the_last_hour() -> None:
    assert parse_query({}, NOW) == Query(from_ns=UnixNs(NOW - HOUR_NS), to_ns=NOW)


def test_every_parameter_reaches_the_query() -> None:
    given = {
        "from": ["2h"],
        "to": ["2026-09-21T14:13:20Z"],
        "query": ['{agent="a", name="n"} |= "x"'],
        "kind": ["metrics"],
        "stats_only": ["1"],
        "limit": ["7"],
        "newest_first": ["0"],
    }
    assert replace(parse_query(given, NOW), pipeline=None, logql="", names_labels=False) == Query(
        from_ns=UnixNs(NOW - 2 * HOUR_NS),
        to_ns=NOW,
        required=(TextCondition((("x",),)),),
        kind="metrics",
        agents=("a",),
        filters=(RecordFilter(RecordField("name"), FilterOperator.EQUAL, "n"),),
        stats_only=True,
        limit=7,
    )


def test_a_metric_makes_a_series_of_metrics() -> None:
    given = {
        "metric": ["cpu"],
        "step": ["5m"],
        "agg": ["max"],
        "by": ["agent_id", "attributes.k"],
        "raw": ["true"],
    }
    query = parse_query(given, NOW)
    assert query.kind == "metrics"
    assert query.series == Series(
        metric="cpu",
        step_ns=300 * 10**9,
        aggregate=Aggregate.MAX,
        by=(RecordField("agent_id"), RecordField("attributes", "k")),
        raw=True,
    )
    plain = parse_query({"metric": ["cpu"]}, NOW).series
    assert plain == Series(metric="cpu", step_ns=60 * 10**9)


@pytest.mark.parametrize(
    ("parameter", "values", "message"),
    [
        ("limit", ["many"], "limit must be a number from 1 to 100000"),
        ("limit", ["-5"], "limit must be a number"),
        ("limit", ["9" * 30], "limit must be a number"),
        ("limit", ["1", "2"], "parameter is repeated, parameter=`limit`"),
        ("colour", ["red"], "unknown parameter, parameter=`colour`"),
        ("kind", ["traces"], "kind must be one of logs, metrics, entries"),
        ("stats_only", ["maybe"], "stats_only must be true or false"),
        ("from", ["noon"], "from: time must be RFC 3339"),
        ("to", ["1w"], "to: time must be RFC 3339.*or a duration like 15m"),
        ("q", ["x"], 'parameter is replaced by LogQL: write query={} |= "TEXT", parameter=`q`'),
        ("regex", ["true"], r'replaced by LogQL: write query={} \|~ "PATTERN"'),
        ("filter", ["level=error"], 'replaced by LogQL: write query={LABEL="VALUE"}'),
        ("agent", ["a"], 'replaced by LogQL: write query={agent="AGENT"}'),
        ("of", ["value"], r"replaced by LogQL: write query=avg_over_time"),
        ("from", ["now"], "from is in the future, and to is now: add a later to"),
    ],
)
def test_a_bad_parameter_is_named(parameter: str, values: list[str], message: str) -> None:
    with pytest.raises(BadUsage, match=message) as refused:
        parse_query({parameter: values}, NOW)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("parameter", "value"), [("step", "1w"), ("agg", "median")])
def test_a_bad_parameter_of_a_series_is_named(parameter: str, value: str) -> None:
    with pytest.raises(BadUsage, match=f"^{parameter}[: ]"):
        parse_query({"metric": ["cpu"], parameter: [value]}, NOW)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"from": "noon"}, "^--from: time must be"),
        ({"from": "now"}, "^--from is in the future, and --to is now: add a later --to"),
        ({"from": "1h", "to": "2h"}, "swap --from and --to"),
        ({"metric": "m", "by": "severity"}, "^--by: unknown field: use one of agent_id"),
        ({"raw": "true"}, "^--raw applies to a metric only: add --metric, or omit it"),
        ({"metric": "m", "query": '{} |= "x"'}, "^the query of a metric is a selector"),
        ({"metric": "m", "query": "rate({}[1m])"}, "^the query of a metric is a selector"),
        ({"metric": "m", "by": "name", "each": "true"}, "^choose one of --each and --by"),
        ({"agg": "p99"}, "^--agg applies to a metric only: add --metric"),
        ({"limit": "0"}, "^--limit must be a number"),
        ({"metric": "m", "step": "1w"}, "^--step: duration must be"),
    ],
)
def test_errors_of_the_command_line_name_the_option(given: dict[str, str], message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        parse_query({name: [value] for name, value in given.items()}, NOW, flag_of)


def test_instants_and_durations_have_plain_forms() -> None:
    """RFC 3339, Unix ns, now, and how long ago; anything else is refused."""
    assert parse_instant("1790000000000000000", UnixNs(0)) == NOW
    assert parse_instant("now", NOW) == NOW
    assert parse_instant("15m", NOW) == parse_instant("-15m", NOW) == NOW - 900 * 10**9
    assert parse_instant("2026-09-21T14:13:20Z", NOW) == NOW
    assert parse_duration("250ms") == 250_000_000
    for text in ("", "yesterday", "1w", "0s", "1.5h", "15 m"):
        with pytest.raises(BadUsage):
            parse_instant(text, NOW)
        with pytest.raises(BadUsage, match="duration"):
            parse_duration(text)


@pytest.mark.parametrize(
    "text", ["999999999d", "9999999999999999999", "-9999999999999999999", "9999-12-31T00:00:00Z"]
)
def test_an_instant_is_a_64_bit_number(text: str) -> None:
    with pytest.raises(BadUsage, match=r"between 1677 and 2262|year"):
        parse_instant(text, NOW)


@pytest.mark.parametrize("unit_ns", [10**9, 10**6, 10**3, 1])
@pytest.mark.parametrize("seconds", [1_000_000_000, 1_764_252_000, 9_000_000_000])
def test_the_unit_of_a_unix_time_follows_from_its_size(seconds: int, unit_ns: int) -> None:
    assert parse_instant(str(seconds * 10**9 // unit_ns), NOW) == seconds * 10**9


def test_a_step_is_the_width_of_the_bars_of_a_histogram() -> None:
    query = parse_histogram({"step": ["7m"]}, NOW)
    assert isinstance(query.view, Histogram)
    assert query.view.step_ns == 7 * 60 * 10**9
    with pytest.raises(BadUsage, match="too short for the time range, bars="):
        parse_histogram({"step": ["1ms"]}, NOW, flag_of)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("5 min", "5m"),
        ("5min", "5m"),
        ("2 hours ago", "2h"),
        ("300msec", "300ms"),
        ("1w", "7d"),
        ("yesterday", "1d"),
        ("2026-11-27", "2026-11-27T00:00:00Z"),
        ("2026-11-27T20:27:15", "2026-11-27T20:27:15Z"),
        ("2026-11-27 20:27:15.5", "2026-11-27 20:27:15.5Z"),
    ],
)
def test_a_time_in_another_form_is_answered_by_the_form_that_is_meant(
    text: str, meant: str
) -> None:
    with pytest.raises(BadUsage) as refused:
        parse_instant(text, NOW)
    assert str(refused.value).endswith(f"; did you mean {meant}?")
    parse_instant(meant, NOW)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"to_ns": DAY0_NS}, "ends before it starts: swap from and to"),
        ({"to_ns": DAY0_NS - 1}, "ends before it starts"),
        ({"limit": 0}, "limit must be 1"),
        ({"limit": 100_001}, "limit must be 1"),
        ({"series": Series(metric="m", step_ns=1), "kind": "metrics"}, "step is too short"),
        (
            {"series": Series(metric="m", step_ns=10**15), "kind": "metrics", "stats_only": True},
            "a series has no counts",
        ),
    ],
)
def test_a_query_that_cannot_be_answered_is_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BadUsage, match=message) as refused:
        check_query(make_query(**changes))
    assert "\n" not in str(refused.value)


def test_a_query_within_all_bounds_is_returned_unchanged() -> None:
    assert check_query(make_query()) == make_query()
    series = Series(metric="m", step_ns=10**12, aggregate=Aggregate.LAST)
    assert isinstance(check_query(make_query(kind="metrics", series=series)), Query)


def test_errors_use_the_names_of_the_caller() -> None:
    def flag(name: str) -> str:
        return f"--{name}"

    with pytest.raises(BadUsage, match="swap --from and --to"):
        check_query(make_query(to_ns=DAY0_NS), flag)


@pytest.mark.parametrize(
    "key", ["a", "a.b", "a=b", 'a"b', "", "ä !", "a\\b", "<>", "~", " a", "a ", " "]
)
def test_the_name_of_a_field_means_the_field(key: str) -> None:
    field = RecordField("attributes", key)
    assert parse_field(field.name, "logs") == field


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("", "logs", "unknown field"),
        ("colour", "logs", "use one of agent_id, boot_id, level, service, host, instance"),
        ("value", "logs", "unknown field"),
        ("body", "entries", "unknown field"),
        ("attributes", "logs", "unknown field"),
        ("attributes.", "logs", "unknown field"),
        ("agent_id.x", "logs", "unknown field"),
        ('attributes."a\\x"', "logs", "key is not a JSON string"),
        ("body\ud800", "logs", "not valid UTF-8"),
    ],
)
def test_another_name_is_refused(text: str, kind: Kind, message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        parse_field(text, kind)


@pytest.mark.parametrize(
    ("selector", "attributes", "agents"),
    [
        ('{path="/a"}', (("path", "/a"),), ()),
        ('{path="/a", agent="h"}', (("path", "/a"),), ("h",)),
        ('{http_path="/a"}', (), ()),
        ('{path=~"/a"}', (), ()),
        ('{service_name="a"}', (), ()),
    ],
)
def test_a_selector_of_a_metric_is_known_to_rollups_by_its_attributes(
    selector: str, attributes: tuple[tuple[str, str], ...], agents: tuple[str, ...]
) -> None:
    query = parse_query({"metric": ["m"], "query": [selector]}, NOW)
    assert (query.attributes, query.agents) == (attributes, agents)
