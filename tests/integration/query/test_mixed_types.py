"""One attribute with several types, from a real door to filters, quantiles and the table."""

import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from support.commands import sluice
from support.door_fleet import fleet
from support.query_lake import DAY0_NS, QueryClient, talk
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_protocol.units import NS_PER_S

LARGE = 2**53 + 1
STATUSES: list[dict[str, Any]] = [
    {"intValue": "404"},
    {"intValue": "500"},
    {"stringValue": "500"},
    {"stringValue": "5e2"},
    {"doubleValue": 500.0},
    {"stringValue": "+500"},
    {"stringValue": "n/a"},
    {"boolValue": True},
    {"intValue": str(LARGE)},
    {},
]
"""The values of the attribute `status` in records with increasing times; the last has none."""
FOUND: dict[str, list[int]] = {
    '{status="500"}': [1, 2],
    '{status!="500"}': [0, 3, 4, 5, 6, 7, 8, 9],
    '{status="500.0"}': [4],
    '{status="5e2"}': [3],
    '{status="true"}': [7],
    '{} | status >= 500 | __error__=""': [1, 2, 3, 4, 5, 8],
    '{} | status > 500 | __error__=""': [8],
    '{} | status <= 500 | __error__=""': [0, 1, 2, 3, 4, 5],
    '{} | status < 500 | __error__=""': [0],
    f'{{status="{LARGE}"}}': [8],
    '{status=~"5.*"}': [1, 2, 3, 4],
    '{status=""}': [9],
}
"""The records that each question finds, by their places."""


@pytest.fixture(scope="module")
def pending(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A log record with each status, and a sum with an integer that no double has."""
    folder = tmp_path_factory.mktemp("sent")
    records = [
        {
            "timeUnixNano": str(DAY0_NS + n * NS_PER_S),
            "body": {"stringValue": f"{n}"},
            "attributes": [{"key": "status", "value": value}] if value else [],
        }
        for n, value in enumerate(STATUSES)
    ]
    point = {"timeUnixNano": str(DAY0_NS), "asInt": str(LARGE)}
    total = {"name": "total", "sum": {"dataPoints": [point], "aggregationTemporality": 2}}
    with fleet(folder, "otlp", count=1) as gateways:
        for signal, body in (
            ("logs", {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}),
            ("metrics", {"resourceMetrics": [{"scopeMetrics": [{"metrics": [total]}]}]}),
        ):
            url = f"{gateways.url}/v1/{signal}"
            request = urllib.request.Request(url, data=json.dumps(body).encode())
            request.add_header("Content-Type", "application/json")
            request.add_header("Authorization", f"Bearer {gateways.token}")
            with urllib.request.urlopen(request, timeout=60) as response:
                assert response.status == 200
        gateways.enqueue()
    return Deployment(folder / "store")


async def check_answers(client: QueryClient) -> None:
    for condition, places in FOUND.items():
        *found, last = await client.lines("/v1/query", query=condition)
        assert [int(one["body"]) for one in found] == places, condition
        assert not last["summary"]["partial"]
    *found, _ = await client.lines("/v1/query")
    shown = [one.get("attributes", {}).get("status") for one in found]
    assert shown == [404, 500, "500", "5e2", 500.0, "+500", "n/a", True, LARGE, None]
    assert [type(one) for one in shown[:5]] == [int, int, str, str, float]
    _, values = await client.get("/v1/fields/values", field="attributes.status")
    assert (values["values"][0]["value"], values["values"][0]["count"]) == ("500", 2)
    for function, value in (
        ("sum_over_time", 404 + 5 * 500 + LARGE - 1), ("min_over_time", 404),
        ("quantile_over_time", 500), ("max_over_time", LARGE - 1),
    ):  # fmt: skip
        quantile = "0.5, " * function.startswith("quantile")
        asked = f'{function}({quantile}{{}} | unwrap status | __error__="" [1h])'
        at_ns = DAY0_NS + 3_000 * NS_PER_S
        series, _ = await client.lines("/v1/query", query=asked, from_=at_ns, to=at_ns)
        assert float(series["points"][0]["value"]) == value, function
    *points, _ = await client.lines("/v1/query", kind="metrics")
    parts = {one["name"]: one["value"] for one in points if one["name"].startswith("total")}
    assert int(parts["total"]) + int(parts["total_remainder"]) == LARGE


def test_a_pending_status_that_is_a_number_and_a_text_is_found(pending: Deployment) -> None:
    """`=` compares texts, so it finds the number 500 and the text 500, but no other spelling.

    An order and the aggregates count every text that is a number.
    """
    talk(pending, check_answers)


@pytest.mark.daily(1)
@pytest.mark.parametrize("promoted", ["", "integer", "float", "text", "boolean"])
def test_a_status_in_the_table_has_the_answers_of_a_pending_one(
    pending: Deployment, tmp_path: Path, promoted: str
) -> None:
    """Whatever type its promoted column has."""
    place = Deployment(shutil.copytree(pending.root, tmp_path / "store"))
    if promoted:
        words = ("add", "logs", "attributes.status", promoted)
        done = sluice("columns", *words, "--store", place.url)
        assert done.returncode == 0, done.stderr
    ingest_locally(place.url)
    talk(place, check_answers)
    rows = sorted(place.rows("logs"), key=lambda row: int(row["body"]))
    texts = [dict(row["attributes"] or []).get("status") for row in rows]
    numbers = ["404", "500", "500", "5e2", "500.0", "+500"]
    assert texts == [*numbers, "n/a", "true", f"{LARGE}", None]
    assert [row.get("attr_status") for row in rows] == {
        "": [None] * 10,
        "integer": [404, 500, 500, *[None] * 5, LARGE, None],
        "float": [404.0, 500.0, 500.0, 500.0, 500.0, None, None, None, float(LARGE), None],
        "text": texts,
        "boolean": [*[None] * 7, True, None, None],
    }[promoted]
