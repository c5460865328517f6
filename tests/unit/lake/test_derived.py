"""The derived fields: each key, their order, and golden results of rule 3."""

from typing import Any

import pytest

from sluice_lake.records import derived_arrays
from sluice_protocol.meaning import (
    BESIDE,
    DERIVED_KEYS,
    RULE,
    SEVERITY_KEYS,
    Scale,
    level_of,
    severity_of,
)
from sluice_protocol.meaning import LEVELS as LEVEL_NAMES
from sluice_protocol.records import (
    LogRecord,
    MetricPoint,
    logs_from_records,
    metrics_from_records,
)

Pairs = list[tuple[str, str]]


def derived(
    records: list[dict[str, str]], *resources: Pairs, severities: tuple[int, ...] = ()
) -> list[dict[str, Any]]:
    """Return the derived fields of records, one for each resource if there are several."""
    columns = logs_from_records(
        [
            LogRecord(
                ts_ns=1, body="x", severity=severities[at] if severities else 0, attributes=one
            )
            for at, one in enumerate(records)
        ]
    )
    counts = [1] * len(records) if len(resources) > 1 else [len(records)]
    arrays = derived_arrays([columns], list(resources) or [[]], counts)
    found = {name: array.to_pylist() for name, array in arrays.items()}
    return [
        {name: values[at] for name, values in found.items() if values[at] is not None}
        for at in range(len(records))
    ]


@pytest.mark.parametrize("field", DERIVED_KEYS)
def test_each_key_feeds_its_field_from_attributes_and_resource(field: str) -> None:
    for key in DERIVED_KEYS[field]:
        text = "00-" + "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        sent = text if key == "traceparent" else "abc"
        beside = dict.fromkeys(BESIDE.get(key, ()), "1")
        [one] = derived([{key: sent, **beside}])
        [other] = derived([beside], [(key, sent)])
        assert one[field] == other[field] == (sent if key != "traceparent" else one[field])
        assert not beside or derived([{key: sent}])[0].get(field) is None


@pytest.mark.parametrize("key", SEVERITY_KEYS, ids=lambda key: key.name)
def test_each_key_states_a_level_from_attributes_and_resource(key: Any) -> None:
    beside = dict.fromkeys(key.beside, "1")
    both = derived([{key.name: "Warning", **beside}]) + derived([beside], [(key.name, "Warning")])
    assert [(one["severity"], one["level"]) for one in both] == [(13, "warn")] * 2
    if beside and key.name in {"s", "v"}:
        assert derived([{key.name: "Warning"}]) == [{}]


def test_an_earlier_key_and_then_the_attribute_counts() -> None:
    resource = [("service.name", "of the batch"), ("level", "error"), ("app", "app of the batch")]
    of_batch = {"service": "of the batch", "severity": 17, "level": "error"}
    assert derived([{"service": "own", "lvl": "debug"}, {}], resource) == [of_batch] * 2
    [found] = derived([{"service.name": "own", "level": "debug"}], resource)
    assert (found["service"], found["level"]) == ("own", "debug")


@pytest.mark.parametrize("shared", [("level", "info"), ("lvl", "error"), ("app", "shop")])
def test_it_decides_nothing_which_pairs_a_batch_has_in_common(shared: tuple[str, str]) -> None:
    pairs = {"level": "info", "lvl": "error", "app": "shop"}
    own = dict(pair for pair in pairs.items() if pair != shared)
    assert derived([own], [shared]) == derived([pairs])


def test_a_long_text_of_a_batch_is_not_repeated_for_each_record() -> None:
    columns = logs_from_records([LogRecord(ts_ns=1, body="")] * 10_000)
    found = derived_arrays([columns], [[("service.name", "x" * 40_000)]], [10_000])
    assert found["service"].nbytes < 1_000_000
    assert found["service"].to_pylist()[-1] == "x" * 40_000


@pytest.mark.parametrize("key", ["trace_id", "span_id", "request_id"])
def test_a_long_id_does_not_count(key: str) -> None:
    """A resource of 60 KB and 100,000 records would be 6 GB of ids."""
    columns = logs_from_records([LogRecord(ts_ns=1, body="")] * 10_000)
    found = derived_arrays([columns], [[(key, "x" * 60_000)]], [10_000])
    assert sum(array.nbytes for array in found.values()) < 1_000_000
    long = [{key: "x" * 129}, {key: "x" * 128}, {key: "é" * 65}]
    assert [len(one) for one in derived(long)] == [0, 1, 0]
    both = {"trace_id": "x" * 129, "traceid": "a", "span_id": "x" * 129, "spanid": "a"}
    [one] = derived([{**both, "request_id": "x" * 129, "requestId": "a"}])
    assert one == {"trace_id": "a", "span_id": "a", "request": "a"}


def test_an_empty_text_is_not_a_value() -> None:
    [found] = derived([{"service.name": "", "app": "shop", "level": ""}], [("level", "info")])
    assert (found["service"], found["level"]) == ("shop", "info")


def test_each_batch_has_its_own_resource() -> None:
    found = derived([{}, {}, {}], [("host", "a")], [], [("host.name", "b")])
    assert [one.get("host") for one in found] == ["a", None, "b"]


def test_a_dictionary_has_each_text_once_and_no_null() -> None:
    records = [{"service": "a", "level": "odd"}, {"level": "ODD"}, {"level": "info"}, {}]
    columns = logs_from_records([LogRecord(ts_ns=1, body="x", attributes=one) for one in records])
    found = derived_arrays([columns], [[("service", "a")], [("host", "h")]], [2, 2])
    assert found["service"].to_pylist() == ["a", "a", None, None]
    assert found["level"].to_pylist() == ["odd", "odd", "info", None]
    for name in ("service", "level", "host"):
        texts = found[name].dictionary.to_pylist()
        assert None not in texts
        assert len(set(texts)) == len(texts)


def test_the_severity_of_the_protocol_counts_first() -> None:
    sent = [{"level": "info"}, {"level": "odd"}, {}]
    found = derived(sent, severities=(21, 0, 0))
    assert found == [{"severity": 21, "level": "fatal"}, {"level": "odd"}, {}]


def test_a_level_that_nobody_knows_is_shown_and_is_no_number() -> None:
    [found] = derived([{"level": " VIP" + "x" * 100}])
    assert found == {"level": "vip" + "x" * 61}


LEVELS = {
    "TRACE": 1, "verbose": 1, "Debug": 5, "FINE": 6, "info": 9, "Information": 9, "NOTICE": 10,
    "warn": 13, "[WARNING]": 13, "W": 13, "WARN:": 13, "ERROR": 17, "err": 17, "SEVERE": 17,
    "Fehler": 17, "FATAL": 21, "critical": 21, "emerg": 21, "crit": 18, "alert": 19,
    "ERROR2": 18, "INFO4": 12, "ERROR+2": 17, "DEBUG-4": 5, "30": 9, "60": 21, "3": 17, "6": 9,
    "dbug": 5, "trce": 1, "VRB": 1, "fatl": 21, "PNC": 21, "http": 8, "System": 9, "TRACE8": 1,
    "UYARI": 13, "uyar\u0131": 13, "BİLGİ": 9, "bilgi": 9, "PANIK": 21, "ПАНИКА": 21,
    "СООБЩЕНИЕ": 9,
    "Informationen": 9, "BŁĄD": 17, "bła\u0328d": 17, "致命错误": 21,
    "\x1b[32minfo\x1b[39m": 9, "\x1b[1;31mERROR\x1b[0m": 17,
    "100": 5, "250": 10, "300": 13, "550": 19, "600": 21, "350": 0, "70": 0,
    "警告": 13, "ОШИБКА": 17, "": 0, "odd": 0, "700": 0, "-4": 0, "9" * 30: 0, "info x": 0,
}  # fmt: skip


@pytest.mark.parametrize(("text", "number"), LEVELS.items())
def test_levels_by_name_and_number(text: str, number: int) -> None:
    assert severity_of(text) == number


@pytest.mark.parametrize(
    ("scale", "text", "number"),
    [
        (Scale.SYSLOG, "0", 21), (Scale.SYSLOG, "7", 5), (Scale.SYSLOG, "8", 0),
        (Scale.OTEL, "24", 24), (Scale.OTEL, "25", 0), (Scale.OTEL, "0", 0),
        (Scale.PYTHON, "10", 5), (Scale.PYTHON, "40", 17), (Scale.PYTHON, "50", 21),
        (Scale.PYTHON, "40000", 17), (Scale.PYTHON, "5000", 1), (Scale.PYTHON, "0", 0),
        (Scale.MIXED, "3", 17), (Scale.MIXED, "17", 17), (Scale.MIXED, "50", 17),
        (Scale.MIXED, "200", 9), (Scale.MIXED, "500", 17), (Scale.MIXED, "250", 0),
        (Scale.MIXED, "0", 21), (Scale.GOOGLE, "0", 9), (Scale.GOOGLE, "100", 5),
        (Scale.GOOGLE, "300", 10), (Scale.GOOGLE, "800", 21), (Scale.GOOGLE, "900", 0),
        (Scale.WINDOWS, "1", 21), (Scale.WINDOWS, "2", 17), (Scale.WINDOWS, "4", 9),
        (Scale.WINDOWS, "5", 1), (Scale.DOTNET, "0", 1), (Scale.DOTNET, "5", 21),
        (Scale.DOTNET, "6", 0), (Scale.INSIGHTS, "3", 17), (Scale.INSIGHTS, "0", 1),
        (Scale.VERBOSITY, "0", 9), (Scale.VERBOSITY, "4", 5), (Scale.SYSLOG, "100", 0),
        (Scale.PYTHON, "100", 0),
    ],
)  # fmt: skip
def test_numbers_count_by_the_scale_of_their_key(scale: Scale, text: str, number: int) -> None:
    assert severity_of(text, scale) == number


def test_each_number_has_a_level() -> None:
    names = [level_of(number) for number in range(1, 25)]
    assert sorted(set(names), key=names.index) == list(LEVEL_NAMES)
    assert level_of(0, "Odd") == level_of(25, "Odd") == "odd"


def test_ids_are_plain() -> None:
    [found] = derived(
        [{"trace_id": "4BF92F35-77B3-4DA6-A3CE-929D0E0E4736", "span_id": " 00F067AA0BA902B7"}]
    )
    assert found == {
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7",
    }  # fmt: skip
    assert derived([{"trace_id": " ", "span_id": "----"}]) == [{}]
    [found] = derived([{"logging.googleapis.com/trace": "projects/p/traces/06796866738c859f"}])
    assert found == {"trace_id": "06796866738c859f"}


def test_the_time_of_observation_is_a_number() -> None:
    now = 1_764_336_000_000_000_000
    sent = [{"observed_time_unix_nano": text} for text in ("5", str(now), "x", "9" * 30)]
    assert derived(sent) == [{"observed_ns": 5}, {"observed_ns": now}, {}, {}]


def test_points_have_a_source() -> None:
    columns = metrics_from_records(
        [MetricPoint(ts_ns=1, name="m", value=1.0, attributes={"instance": "i"})]
    )
    arrays = derived_arrays([columns], [[("job", "node"), ("host", "h")]], [1])
    found = {name: array.to_pylist() for name, array in arrays.items()}
    assert found == {"service": ["node"], "host": ["h"], "instance": ["i"]}


GOLDEN: list[tuple[dict[str, str], Pairs, dict[str, Any]]] = [
    (
        {"level": "30", "pid": "1", "hostname": "web-1", "reqId": "r-7"}, [],
        {"severity": 9, "level": "info", "host": "web-1", "request": "r-7"},
    ),
    (
        {"severity_text": "WARN", "trace_id": "0AF7651916CD43DD8448EB211C80319C"},
        [("service.name", "shop"), ("service.instance.id", "shop-1"), ("host.name", "n1")],
        {
            "severity": 13, "level": "warn", "service": "shop", "host": "n1",
            "instance": "shop-1", "trace_id": "0af7651916cd43dd8448eb211c80319c",
        },
    ),
    (
        {"log.level": "error", "log.file.path": "/var/log/a.log", "span.id": "b7ad6b7169203331"},
        [],
        {"severity": 17, "level": "error", "file": "/var/log/a.log",
         "span_id": "b7ad6b7169203331"},
    ),
    (
        {"PRIORITY": "3", "SYSLOG_IDENTIFIER": "sshd", "_HOSTNAME": "db"}, [],
        {"severity": 17, "level": "error", "service": "sshd", "host": "db"},
    ),
    (
        {}, [("app", "cart"), ("pod", "cart-0"), ("level", "debug"), ("filename", "/x")],
        {"severity": 5, "level": "debug", "service": "cart", "instance": "cart-0", "file": "/x"},
    ),
    ({"s": "W", "c": "NETWORK", "ctx": "conn1", "id": "1"}, [], {"severity": 13, "level": "warn"}),
    (
        {"@t": "2025-11-28T08:00:00Z", "network.peer.address": "192.0.2.1"}, [("host.name", "n1")],
        {"severity": 9, "level": "info", "host": "n1"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("attributes", "resource", "service"),
    [
        ({"name": "shop", "hostname": "web-1", "pid": "1"}, [], "shop"),
        ({"name": "shop"}, [("hostname", "web-1"), ("pid", "1")], "shop"),
        ({"pid": "1"}, [("hostname", "web-1"), ("name", "shop")], "shop"),
        ({"name": "shop", "hostname": "web-1", "pid": "1", "app": "cart"}, [], "cart"),
        ({"name": "Alice", "hostname": "web-1"}, [], None),
        ({"name": "Alice"}, [], None),
    ],
)
def test_the_name_of_a_logger_is_the_service_where_bunyan_wrote_it(
    attributes: dict[str, str], resource: Pairs, service: str | None
) -> None:
    """Alone, `name` is anything: a user, a file, an object."""
    [one, other] = derived([attributes, {}], resource)
    assert one.get("service") == service
    assert other.get("service") is None or "name" in dict(resource) or service == "cart"


@pytest.mark.parametrize(("attributes", "resource", "expected"), GOLDEN)
def test_records_of_rule_3_keep_their_fields(
    attributes: dict[str, str], resource: Pairs, expected: dict[str, Any]
) -> None:
    """A change of these results needs a new rule."""
    assert RULE == 3
    assert derived([attributes], resource) == [expected]
