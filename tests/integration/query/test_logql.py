"""Questions of LogQL over a deployment: pending batches, and the lake after ingestion."""

import asyncio
from math import inf, nan
from pathlib import Path

import pytest
from support.query_lake import (
    DAY0_NS,
    QueryClient,
    bodies,
    deployment,
    log_batch,
    run_query,
    talk,
)
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_protocol.errors import BadUsage
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.following import select_lines
from sluice_query.logql import vectors
from sluice_query.parameters import parse_query
from sluice_query.request import Query
from sluice_query.result import QueryResult
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings
from sluice_store import open_store

LINES = (
    '{"status":500,"path":"/pay","took":"250ms","http":{"method":"GET"},"size":1.5}',
    '{"status":200,"path":"/pay","took":"20ms"}',
    'level=warn status=404 msg="not \\"found\\"" took=1s',
    "plain text",
    '10.0.0.1 - "GET /a" 200',
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    found = deployment(tmp_path_factory.mktemp("place"))
    found.deliver([log_batch(LINES[:3], attributes={"http.route": "/r", "level": "error"})])
    ingest_locally(found.url)
    found.deliver([log_batch(LINES[3:], start=3, from_ns=DAY0_NS + 3 * NS_PER_S)])
    return found


def ask(text: str, **given: str) -> Query:
    parameters = {"query": (text,), "from": (str(DAY0_NS),), "to": (str(DAY0_NS + 60 * NS_PER_S),)}
    return parse_query({**parameters, **{k: (v,) for k, v in given.items()}}, UnixNs(2**62))


def found(place: Deployment, text: str, **given: str) -> QueryResult:
    result = run_query(place, ask(text, **given))
    assert not result.summary.partial, result.summary.reasons
    return result


def places(place: Deployment, text: str) -> list[int]:
    return [LINES.index(str(one)) for one in bodies(found(place, text))]


@pytest.mark.daily(6)
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{}", [0, 1, 2, 3, 4]),
        ('{service_name="web"} |= ""', [0, 1, 2, 3, 4]),
        ('{service_name="other"}', []),
        ('{service_name=~"we"}', []),
        ('{service_name=~"we."} |~ "G.T"', [0, 4]),
        ('{level="error"}', [0, 1, 2]),
        ('{level!="error"}', [3, 4]),
        ('{http_route="/r"} != "pay"', [2]),
        ('{missing!="x"} |= "text"', [3]),
        ('{} |= "pay" or "text"', [0, 1, 3]),
        ('{} |> "plain <_>"', [3]),
        ('{} !> "<_>:<_>"', [2, 3, 4]),
        ("{} | json | status >= 500", [0, 2, 3, 4]),
        ('{} | json | status >= 500 | __error__=""', [0]),
        ('{} | json | took > 100ms | __error__=""', [0]),
        ('{} | json | http_method="GET"', [0]),
        ('{} | json | __error__="JSONParserErr"', [2, 3, 4]),
        ('{} | json m="http.method" | m="GET"', [0]),
        ('{} | logfmt | status="404" | msg="not \\"found\\""', [2]),
        ('{} | logfmt | level_extracted="warn"', [2]),
        ('{} | json | logfmt | drop __error__, __error_details__ | status=~"404|500"', [0, 2]),
        ('{} | pattern `<ip> - "<method> <path>" <code>` | code="200" and method="GET"', [4]),
        ('{} | regexp `(?P<ip>\\d+[.]\\d+[.]\\d+[.]\\d+)` | ip!=""', [4]),
        ('{} | line_format "{{.level}} x" |= "error"', [0, 1, 2]),
        ('{} | label_format lvl=level | lvl="error"', [0, 1, 2]),
    ],
)
def test_records(place: Deployment, text: str, wanted: list[int]) -> None:
    assert places(place, text) == wanted


def test_templates_that_double_a_line_again_and_again_are_refused(place: Deployment) -> None:
    """Forty of them would make a line of a terabyte."""
    double = ' | line_format "{{__line__}}{{__line__}}"'
    with pytest.raises(BadUsage, match=r"line_format or label_format makes a text of more than"):
        found(place, "{}" + double * 40)
    assert found(place, "{}" + double * 2).records


def test_a_record_is_shown_with_its_labels_and_its_line(place: Deployment) -> None:
    (record,) = found(place, '{} |= "250ms" | json | line_format "{{.path}}"').records
    assert record["line"] == "/pay"
    assert record["labels"] == {
        "service_name": "web",
        "level": "error",
        "http_route": "/r",
        "status": "500",
        "path": "/pay",
        "took": "250ms",
        "http_method": "GET",
        "size": "1.5",
    }


def test_a_label_of_a_field_is_found_by_its_text_and_by_a_pattern_alike(tmp_path: Path) -> None:
    place = deployment(tmp_path)
    place.deliver([log_batch(LINES[:1], attributes={"detected-level": "odd"})])
    by_text, by_pattern = (
        bodies(found(place, f'{{detected_level{one}"odd"}}')) for one in ("=", "=~")
    )
    assert by_text == by_pattern == []
    assert bodies(found(place, '{detected_level!="odd"}')) == [LINES[0]]


def test_a_question_that_is_no_logql_is_refused(place: Deployment) -> None:
    with pytest.raises(BadUsage, match="column="):
        ask("{level=error}")
    for text, shown in (
        ('{} |~ "(?i)a("', 'column=`7`, word=`"(?i)a("`: write `\\(\\?i\\)a\\(` for the text'),
        ('rate({} | level=~"[" [1m])', 'column=`18`, word=`"["`: write `\\[` for the text'),
    ):
        with pytest.raises(BadUsage, match="regex does not compile") as refused:
            run_query(place, ask(text))
        assert shown in str(refused.value)


SUM_BY = [
    ("sum(count_over_time({}[10s]))", {(): [1.0, 2.0, 3.0, 4.0, 5.0]}),
    ("sum(count_over_time({}[2s]))", {(): [1.0, 2.0, 2.0, 2.0, 2.0]}),
    ("sum(count_over_time({}[2s] offset 1s))", {(): [1.0, 2.0, 2.0, 2.0]}),
    (
        "sum by (level) (count_over_time({}[10s]))",
        {(): [1.0, 2.0], (("level", "error"),): [1.0, 2.0, 3.0, 3.0, 3.0]},
    ),
    ("sum(rate({}[4s])) * 4", {(): [1.0, 2.0, 3.0, 4.0, 4.0]}),
    ("sum(bytes_over_time({} |= `plain` [1s]))", {(): [10.0]}),
    (
        'max(max_over_time({} | json | unwrap duration(took) | __error__="" [10s]))',
        {(): [0.25] * 5},
    ),
    (
        'quantile_over_time(0.5, {} | json | unwrap status | __error__="" [10s]) by (path)',
        {(("path", "/pay"),): [500.0, 350.0, 350.0, 350.0, 350.0]},
    ),
    (
        "sum(count_over_time({} |= `status` [1s])) / sum(count_over_time({} [2s]))",
        {(): [1.0, 0.5, 0.5]},
    ),
    ("topk(1, sum by (level) (count_over_time({}[10s]))) > 2", {(("level", "error"),): [3.0] * 3}),
    # Counts of 1, 2, and 3 become -Inf, NaN, and +Inf.
    ("max((sum by (level) (count_over_time({}[10s])) - 2) / 0)", {(): [-inf, nan, inf, inf, inf]}),
    ("min((sum by (level) (count_over_time({}[10s])) - 2) / 0)", {(): [-inf, nan, inf, -inf, inf]}),
    (
        "topk(1, (sum by (level) (count_over_time({}[10s])) - 2) / 0)",
        {(("level", "error"),): [-inf, nan, inf, inf, inf]},
    ),
    (
        "bottomk(1, (sum by (level) (count_over_time({}[10s])) - 2) / 0)",
        {(): [-inf], (("level", "error"),): [-inf, nan, inf, inf]},
    ),
]


@pytest.mark.daily(7)
@pytest.mark.parametrize(("text", "wanted"), SUM_BY)
def test_series(
    place: Deployment, text: str, wanted: dict[tuple[tuple[str, str], ...], list[float]]
) -> None:
    result = found(place, text, step="1s", to=str(DAY0_NS + 4 * NS_PER_S))
    series = {
        tuple(one.labels.items()): [value for _, value in one.points] for one in result.series
    }
    assert repr(series) == repr(wanted)  # NaN does not equal itself


def test_a_label_of_logfmt_is_the_last_pair_outside_of_quotes(tmp_path: Path) -> None:
    place = deployment(tmp_path)
    have = ["a.b=1", 'x="y z" a_b=1', 'a_b="1"', "a_b=2 a.b=1", "a_b=1 a_b=", "a_b=3\ta_b=1"]
    have_not = ['x="y a_b=1 z"', 'x="\\" a_b=1"', "a_b=1 a_b=2", "a_b=1=1", 'a_b=1"', "xa_b=1", "é"]
    place.deliver([log_batch([*have, *have_not])])
    assert sorted(bodies(found(place, '{} | logfmt | a_b="1"'))) == sorted(have)
    counted = 'sum(count_over_time({} | logfmt | a_b="1" [1h]))'
    (series,) = found(place, counted, step="60s", to=str(DAY0_NS + 60 * NS_PER_S)).series
    assert series.points[-1][1] == len(have)


def test_too_many_series_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = deployment(tmp_path)
    place.deliver([log_batch([f'{{"n":"{one}"}}' for one in range(3)])])
    monkeypatch.setattr(vectors, "POINTS_MAX", 2)
    with pytest.raises(BadUsage, match=r"too many series.*series=`3`"):
        found(place, "count_over_time({} | json [10s])", step="10s")


def test_lines_of_a_reconciler_are_not_compared_with_a_wrong_pattern(tmp_path: Path) -> None:
    line = {"kind": "logs", "agent_id": "a", "boot_id": "b", "seq": 1, "body": "x"}
    line["accepted_at_unix_ns"] = DAY0_NS

    async def select(url: str) -> None:
        async with open_store(url) as store:
            clock = SystemClock()
            searcher = Searcher(store=store, store_url=url, settings=QuerySettings(), clock=clock)
            await select_lines(searcher, ask('{} |~ "("'), [line])

    with pytest.raises(BadUsage, match="regex does not compile"):
        asyncio.run(select(deployment(tmp_path).url))


def test_an_error_of_a_line_is_an_error_of_a_metric_query(place: Deployment) -> None:
    with pytest.raises(BadUsage, match="JSONParserErr"):
        found(place, "sum by (status) (count_over_time({} | json [10s]))")


def test_questions_over_http(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        around = {"from": DAY0_NS, "to": DAY0_NS + 4 * NS_PER_S}
        shown = {"query": '{} |= "250ms" | json | keep path'}
        for path in ("/v1/query", "/v1/query/stream"):
            lines = await client.lines(path, **shown, **around)
            assert lines[0]["labels"] == {"path": "/pay"}
        series, last = await client.lines(
            "/v1/query", query="sum(count_over_time({}[2s]))", step="2s", **around
        )
        assert series["labels"] == {}
        assert [one["value"] for one in series["points"]] == [1.0, 2.0, 2.0]
        assert last["summary"]["results"] == 1
        status, problem = await client.get("/v1/query", query="{level=error}", **around)
        assert (status, "column=" in str(problem)) == (400, True)
        status, _ = await client.get("/v1/query/stream", query="rate({}[1s])", **around)
        assert status == 400

    talk(place, story)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{levl="error"}', {"levl": (2, "write `level`")}),
        ('{sevice!="x"}', {"sevice": (2, "write `service`")}),
        ('{} | htp_route="/r"', {"htp_route": (6, "write `http_route`")}),
        (
            '{} | level="e" and (htp_route="/r" or level="x")',
            {"htp_route": (21, "write `http_route`")},
        ),
        ('{} | line_format "{{.htp_route}} {{.level}}"', {"htp_route": (22, "write `http_route`")}),
        ("{} | label_format to=htp_route", {"htp_route": (22, "write `http_route`")}),
        ("{} | json | statuss >= 500", {"statuss": (13, "write `status`")}),
        ('{} | json | logfmt | paht="/pay"', {"paht": (22, "write `path`")}),
        ("sum by (sevice) (count_over_time({} [1m]))", {"sevice": (9, "write `service`")}),
        (
            "sum(count_over_time({} [1m])) without (htp_route)",
            {"htp_route": (40, "write `http_route`")},
        ),
        (
            'sum_over_time({} | json | __error__="" | unwrap sice [1m])',
            {"sice": (49, "write `size`")},
        ),
        (
            "rate({} [1m]) / rate({xyz=``} [1m])",
            {"xyz": (23, "there are http_route, level, service, severity")},
        ),
        ("{} | json | body=`x`", {"body": (13, 'write a line filter such as `|= "text"`')}),
        ("{ts!=`x`}", {"ts": (2, "choose the time with")}),
    ],
)
def test_a_label_that_no_record_has_is_named_with_a_similar_one(
    place: Deployment, text: str, words: dict[str, tuple[int, str]]
) -> None:
    """The question is answered all the same, at one time or over time, sorted either way."""
    for given in ({}, {"newest_first": "true"}) if text.startswith("{") else ({"step": "60s"},):
        hints = found(place, text, **given).summary.hints
        assert len(hints) == len(words)
        for hint, (word, (column, meant)) in zip(hints, words.items(), strict=True):
            assert f"this label, column=`{column}`, word=`{word}`: " in hint
            assert hint.rpartition(": ")[2].startswith(meant)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{level="fatal"}',
        '{host!="x", service_name="unknown_service", agent="none"}',
        '{http_route!="/r"}',
        '{} | json | http_method!="GET" and path="/none"',
        '{} | json a="b" | a="c" | a_extracted=""',
        '{} | pattern "<x> <y>" | x="none" | label_format z=y | line_format "{{.z}}"',
        '{} | regexp "(?P<word>p.*)" | word!="x"',
        '{} | json | path_extracted="" | drop __error__, __error_details__',
        "sum by (path) (count_over_time({} | json | __error__=`` [1m]))",
        'sum by (word) (count_over_time({} | pattern "<word> <_>" [1m]))',
        '{http_route="/none"} | json | anything="x"',
    ],
)
def test_a_label_that_some_record_or_stage_has_is_not_named(place: Deployment, text: str) -> None:
    given = {} if text.startswith("{") else {"step": "60s"}
    assert found(place, text, **given).summary.hints == ()
    elsewhere = {"from": str(DAY0_NS - 10**12), "to": str(DAY0_NS - 10**11)}
    assert run_query(place, ask('{levl="x"}', **elsewhere)).summary.hints == ()
