"""The routes of Loki, with the requests of Grafana's Explore and Drilldown and of scripts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.query_lake import (
    DAY0_NS,
    FILES,
    LINES,
    QueryClient,
    overlapping_ingestions,
    sent,
    talk,
)
from support.spark_lake import Deployment

from sluice_protocol.records import LogRecord, logs_from_records
from sluice_protocol.units import NS_PER_S

PREFIX = "/loki/api/v1"
HOUR = {"start": str(DAY0_NS), "end": str(DAY0_NS + 3600 * NS_PER_S)}
WEB = (FILES + 1) * LINES * 2
ERRORS = (FILES + 1) * 2 * len(range(0, LINES, 7))
LEVELS = ("info", "error", "error")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Two agents of a service in the lake and pending, and JSON and logfmt lines of another."""
    made = overlapping_ingestions(Path(tmp_path_factory.mktemp("loki")))
    lines = [
        '{"status": 500, "user": {"name": "Ann"}, "took": "12ms"}',
        'status=200 path="/cart" ok=true',
        "a line without pairs 17",
    ]
    shop = [
        LogRecord(
            ts_ns=DAY0_NS + place * NS_PER_S,
            body=line,
            severity=9 if level == "info" else 17,
            attributes={"k8s.pod": f"pod-{place}"},
        )
        for place, (line, level) in enumerate(zip(lines, LEVELS, strict=True))
    ]
    resource = (("host.name", "h1"), ("region", "north"), ("service.name", "shop"))
    made.deliver([sent(logs_from_records(shop), agent="host-3", resource=resource)])
    return made


async def ask(client: QueryClient, path: str, **given: str) -> tuple[int, Any]:
    """Return the status and the JSON of an answer, or its text if it is an error."""
    return await ask_with(client, path, HOUR | given)


async def ask_with(
    client: QueryClient,
    path: str,
    given: Mapping[str, str],
    *,
    post: bool = False,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Any]:
    url = f"{client.url}{PREFIX}/{path}"
    sending = (
        client.session.post(url, data=given, headers=headers)
        if post
        else client.session.get(url, params=given, headers=headers)
    )
    async with sending as response:
        text = await response.text()
        return response.status, json.loads(text) if response.status == 200 else text


def test_explore_gets_records_and_their_volume(place: Deployment) -> None:
    """The builder sends an empty filter first, and the volume wants every level."""

    async def story(client: QueryClient) -> None:
        status, found = await ask(
            client, "query_range", query='{service_name="web"} |= ``', limit="50"
        )
        assert status == 200
        assert found["data"]["resultType"] == "streams"
        values = [one for stream in found["data"]["result"] for one in stream["values"]]
        assert len(values) == 50
        for stream in found["data"]["result"]:
            assert stream["stream"]["service_name"] == "web"
            times = [int(at) for at, _ in stream["values"]]
            assert times == sorted(times, reverse=True)
        text = 'sum by (level, detected_level) (count_over_time({service_name="shop"}'
        _, found = await ask(
            client, "query_range", query=f"{text} | drop __error__[1h]))", step="1h"
        )
        series = {one["metric"]["level"]: one["values"][-1][1] for one in found["data"]["result"]}
        assert series == {"info": "1", "error": "2"}

    talk(place, story)


def test_labels_are_apart_for_a_client_that_wants_it(place: Deployment) -> None:
    """Labels of the stream, of the record, and those that the query's parsers made."""

    async def story(client: QueryClient) -> None:
        query = '{service_name="shop"} | json | logfmt | drop __error__, __error_details__'
        flags = {"X-Loki-Response-Encoding-Flags": "categorize-labels"}
        _, found = await ask_with(client, "query_range", HOUR | {"query": query}, headers=flags)
        assert found["data"]["encodingFlags"] == ["categorize-labels"]
        records = [
            (stream["stream"], *value)
            for stream in found["data"]["result"]
            for value in stream["values"]
        ]
        stream, at, line, kinds = min(records, key=lambda one: int(one[1]))
        assert at == str(DAY0_NS)
        assert json.loads(line)["status"] == 500
        shared = {"service_name": "shop", "host": "h1", "host_name": "h1", "region": "north"}
        assert stream.items() >= (shared | {"level": "info"}).items()
        assert kinds["structuredMetadata"] == {"k8s_pod": "pod-0"}
        assert kinds["parsed"].items() >= {"status": "500", "user_name": "Ann"}.items()
        _, plain = await ask(client, "query_range", query=query, direction="forward")
        first = plain["data"]["result"][0]
        assert "encodingFlags" not in plain["data"]
        assert first["stream"].items() >= {"k8s_pod": "pod-0", "user_name": "Ann"}.items()
        assert len(first["values"][0]) == 2

    talk(place, story)


def test_labels_values_and_series(place: Deployment) -> None:
    """Times in ns, in seconds and as RFC 3339 select the same records, by GET and by POST."""
    start_s = DAY0_NS // NS_PER_S
    ranges: list[Mapping[str, str]] = [
        HOUR,
        {"start": str(start_s), "end": str(start_s + 3600)},
        {"start": f"{start_s}.0", "end": f"{start_s + 3600}.000"},
        {"start": "2026-09-21T14:13:20.000Z", "end": "2026-09-21T15:13:20.000Z"},
    ]

    async def story(client: QueryClient) -> None:
        for one in ranges:
            for post in (False, True):
                status, found = await ask_with(client, "labels", one, post=post)
                assert status == 200
                expected = ["agent", "host", "host_name", "level", "region", "service_name"]
                assert [name for name in found["data"] if name in expected] == expected
                _, found = await ask_with(client, "label/service_name/values", one, post=post)
                assert found == {"status": "success", "data": ["shop", "web"]}
        _, found = await ask(client, "label/k8s_pod/values", query='{region="north"}')
        assert found["data"] == ["pod-0", "pod-1", "pod-2"]
        _, found = await ask(client, "label/absent/values")
        assert found["data"] == []
        _, found = await ask_with(client, "series", HOUR | {"match[]": '{service_name="web"}'})
        agents = [{"agent": one, "service_name": "web"} for one in ("host-1", "host-2")]
        assert found["data"] == agents
        # Grafana 12.3 repeats the prefix.
        assert (await ask(client, f"{PREFIX[1:]}/labels"))[0] == 200

    talk(place, story)


def test_numbers_of_records_and_bytes(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        _, found = await ask(client, "index/stats", query='{service_name="web"}')
        assert found["entries"] == WEB
        assert found["streams"] == 2
        assert found["bytes"] > 0
        _, found = await ask(
            client, "index/volume", query='{service_name=~".+"}', targetLabels="service_name"
        )
        sizes = {
            one["metric"]["service_name"]: int(one["value"][1]) for one in found["data"]["result"]
        }
        assert list(sizes) == ["web", "shop"]
        assert sizes["shop"] == 56 + 31 + 23
        _, found = await ask(
            client, "index/volume_range", query='{service_name="shop"}', step="1800", limit="1"
        )
        (one,) = found["data"]["result"]
        assert one["metric"] == {"service_name": "shop"}
        assert sum(int(size) for _, size in one["values"]) == sizes["shop"]
        # The last step is not over at the end of the range.
        _, found = await ask(
            client,
            "index/volume_range",
            query='{service_name="shop"}',
            step="1800",
            end=str(DAY0_NS + 3 * NS_PER_S),
        )
        assert found["data"]["result"][0]["values"][0][1] == str(sizes["shop"])
        _, found = await ask(
            client,
            "query",
            query='sum by (agent) (count_over_time({service_name="web"} |= "error" [1h]))',
            time=HOUR["end"],
        )
        counts = {one["metric"]["agent"]: int(one["value"][1]) for one in found["data"]["result"]}
        assert sum(counts.values()) in (ERRORS, ERRORS - 2)  # a range does not have its start

    talk(place, story)


@pytest.mark.long
def test_drilldown_finds_labels_fields_and_forms_of_lines(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        _, found = await ask(client, "detected_labels", query='{service_name="shop"}')
        listed = {one["label"]: one["cardinality"] for one in found["detectedLabels"]}
        assert listed.items() >= {"service_name": 1, "level": 2, "region": 1}.items()
        query = '{service_name="shop"} | json | logfmt | drop __error__, __error_details__'
        _, found = await ask(client, "detected_fields", query=query)
        fields = {one["label"]: one for one in found["fields"]}
        assert fields["user_name"]["jsonPath"] == ["user", "name"]
        assert fields["user_name"]["parsers"] == ["json"]
        assert fields["took"]["type"] == "duration"
        assert fields["status"] == {
            "label": "status",
            "type": "int",
            "cardinality": 2,
            "parsers": ["json", "logfmt"],
            "jsonPath": ["status"],
        }
        assert fields["ok"]["type"] == "boolean"
        assert fields["k8s_pod"]["parsers"] is None
        assert fields["detected_level"]["cardinality"] == 2
        _, found = await ask(client, "detected_field/path/values", query=query)
        assert found["values"] == ["/cart"]
        _, found = await ask(client, "patterns", query='{service_name="web"}', step="1h")
        forms = {one["pattern"]: sum(n for _, n in one["samples"]) for one in found["data"]}
        assert forms == {
            "line <_> <_> of <_>": WEB - ERRORS,
            "line <_> <_> of <_> error": ERRORS,
        }
        _, found = await ask(
            client,
            "query_range",
            query='{service_name="web"} |> "line <_> of <_> error"',
            limit="999",
        )
        assert sum(len(one["values"]) for one in found["data"]["result"]) == ERRORS
        for path in ("drilldown-limits", "config"):
            _, found = await ask(client, path)
            assert found["limits"]["volume_enabled"] is True
        _, found = await ask(client, "status/buildinfo")
        assert tuple(map(int, found["version"].split("."))) >= (3, 2)

    talk(place, story)


def test_a_saved_source_is_checked_and_a_question_formatted(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        _, found = await ask(client, "query", query="vector(1)+vector(1)")
        assert found["data"]["result"][0]["value"][1] == "2"
        _, found = await ask(client, "format_query", query='{a="b"}|="x"')
        assert found["data"] == '{a="b"} |= "x"'

    talk(place, story)


@pytest.mark.parametrize(
    ("path", "given", "said"),
    [
        ("query_range", {}, "query must be given once"),
        ("query_range", {"query": "{a=b}"}, 'write the value as `"b"`'),
        ("query_range", {"query": "{} | decolorize"}, "decolorize"),
        ("query_range", {"query": "{}", "limit": "0"}, "limit must be 1 to"),
        ("query_range", {"query": "{}", "start": "yesterday"}, "start: must be RFC 3339"),
        ("query_range", {"query": "{}", "direction": "up"}, "direction must be"),
        ("query_range", {"query": "{}", "interval": "10s"}, "interval is not supported"),
        ("query_range", {"query": "rate({}[1m])", "step": "-1"}, "step: must be more than 0"),
        ("query", {"query": "{}"}, "use query_range"),
        ("label/a-b/values", {}, "label must be letters"),
        ("index/volume", {"query": "{}", "aggregateBy": "labels"}, "aggregateBy"),
        ("query_range", {"query": "{}", "start": HOUR["end"], "end": HOUR["start"]}, "time range"),
    ],
)
def test_what_is_not_supported_is_400_with_the_word(
    place: Deployment, path: str, given: Mapping[str, str], said: str
) -> None:
    """The reason is text, as Grafana shows it."""

    async def story(client: QueryClient) -> None:
        status, text = await ask_with(client, path, HOUR | given)
        assert status == 400
        assert said in text
        assert not text.startswith("{")

    talk(place, story)


def test_a_tail_sends_new_records(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        url = f"{client.url}{PREFIX}/tail"
        given = {"query": '{service_name="shop"} | json', "start": HOUR["start"], "limit": "9"}
        async with client.session.ws_connect(url, params=given) as socket:
            message = await socket.receive_json(timeout=20)
        lines = [line for one in message["streams"] for _, line in one["values"]]
        assert len(lines) == 3
        assert message["dropped_entries"] == []

    talk(place, story)


def test_the_routes_need_the_token(place: Deployment) -> None:
    async def story(client: QueryClient) -> None:
        assert (await ask(client, "labels"))[0] == 401
        headers = {"Authorization": "Bearer secret"}
        status, _ = await ask_with(client, "labels", HOUR, headers=headers)
        assert status == 200

    talk(place, story, api_token="secret")
