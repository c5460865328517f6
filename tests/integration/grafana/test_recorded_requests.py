"""The requests of Grafana's data sources and of Logs Drilldown, replayed over stored records.

`tests/golden/grafana/requests.json` has them, written down from the sources that it names. None has
an empty success, because there are records for each.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any

import pytest
from support.golden import GOLDEN
from support.query_lake import QueryClient, deployment, sent, served_queries
from support.remote_read import Series, bits_of, labels, written_columns
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_protocol.records import (
    LogRecord,
    SpanRecord,
    logs_from_records,
    spans_from_records,
)
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
NOW_NS = SystemClock().now_ns() // NS_PER_S * NS_PER_S
FROM_NS = NOW_NS - 600 * NS_PER_S
TIMES = {
    "start_ns": NOW_NS - 3600 * NS_PER_S,
    "end_ns": NOW_NS,
    "start_us": (NOW_NS - 3600 * NS_PER_S) // 1000,
    "end_us": NOW_NS // 1000,
    "start_s": NOW_NS // NS_PER_S - 3600,
    "end_s": NOW_NS // NS_PER_S,
    "start_iso": format_rfc3339(NOW_NS - 3600 * NS_PER_S),
    "end_iso": format_rfc3339(NOW_NS),
}
LINES = (
    '{"status": 500, "took": "12ms", "size": "3KB", "user": {"name": "Ann"}}',
    "level=warn status=200 path=/cart took=7ms size=1KB",
    "a line without pairs 17",
)


def recorded() -> Iterator[Any]:
    for client in json.loads((GOLDEN / "grafana/requests.json").read_text(encoding="utf-8")):
        for one in client["requests"]:
            yield pytest.param(one, id=f"{client['client']}: {one['name']}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Logs of a service and of none, a trace and a counter; half of the logs are pending."""
    made = deployment(Path(tmp_path_factory.mktemp("grafana")))
    shop = (("region", "north"), ("service.name", "shop"))
    for part in range(2):
        logs = [
            LogRecord(
                ts_ns=FROM_NS + (part * 300 + place) * NS_PER_S,
                body=line,
                severity=(17, 13, 9)[place],
                attributes={"k8s.pod": f"pod-{place}"},
            )
            for place, line in enumerate(LINES)
        ]
        columns = logs_from_records(logs)
        made.deliver([sent(columns, start=part * 10, at_ns=NOW_NS, resource=shop)])
        made.deliver([sent(columns, start=100 + part * 10, at_ns=NOW_NS, resource=())])
        if not part:
            ingest_locally(made.url)
    span = SpanRecord(
        ts_ns=FROM_NS,
        name="GET /cart",
        trace_id=TRACE,
        span_id="01" * 8,
        duration_ns=5_000_000,
        attributes={"http.method": "GET"},
    )
    made.deliver([sent(spans_from_records([span]), start=200, at_ns=NOW_NS, resource=shop)])
    now_ms = NOW_NS // 1_000_000
    counter: Series = {
        labels("requests_total", job="api"): [
            (now_ms - age_s * 1000, bits_of(600.0 - age_s)) for age_s in range(600, 0, -15)
        ]
    }
    columns = written_columns(counter, received_ns=NOW_NS)
    made.deliver([sent(columns, start=300, agent="door:prometheus:1", at_ns=NOW_NS, resource=())])
    return made


def filled_in(given: Mapping[str, str]) -> dict[str, str]:
    return {name: Template(one).safe_substitute(TIMES) for name, one in given.items()}


def member(found: Any, path: str) -> Any:
    for name in path.split("."):
        found = found[name]
    return found


async def replay(client: QueryClient, one: Mapping[str, Any]) -> tuple[int, str]:
    given, headers = filled_in(one["given"]), one.get("headers")
    url = client.url + one["path"]
    sending = (
        client.session.post(url, data=given, headers=headers)
        if one["method"] == "POST"
        else client.session.get(url, params=given, headers=headers)
    )
    async with sending as response:
        return response.status, await response.text()


@pytest.mark.daily(6)
@pytest.mark.parametrize("one", [*recorded()])
def test_a_request_has_no_empty_success(place: Deployment, one: Mapping[str, Any]) -> None:
    async def run() -> None:
        async with served_queries(place) as client:
            status, text = await replay(client, one)
            assert status == one.get("status", 200), text
            if status == 200:
                assert member(json.loads(text), one["filled"])
            assert one.get("word", "") in text

    asyncio.run(run())
