"""Dashboard and alert rules of `deploy/` over the data of sluice in sluice.

Metrics are evaluated by a stock Prometheus over remote read, logs by the routes of Loki.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.prometheus_engines import PROGRAMS, TwoEngines, deliver_written, same, talk_to_engines
from support.query_lake import DAY0_NS, QueryClient, deployment, sent, talk
from support.remote_read import Series, bits_of, labels
from support.spark_lake import Deployment

from sluice_protocol.records import LogRecord, logs_from_records
from sluice_protocol.units import NS_PER_S

MONITORING = Path(__file__).parents[3] / "deploy/monitoring"
START_MS = DAY0_NS // 1_000_000
MINUTES = 90
END_S = START_MS // 1000 + MINUTES * 60
SILENT = {"SluiceNoGateway"}
"""Rules that no value of their metrics fires."""
LABELS = {
    "outcome": ("new", "refused"),
    "door": ("otlp", "loki"),
    "op": ("get", "list"),
    "result": ("applied", "allowed"),
    "stage": ("discovery", "enqueue"),
    "task": ("ingest", "audit"),
    "state": ("held", "free"),
    "part": ("queue", "journals"),
    "figure": ("erasures_late", "files"),
}
BOUNDS = {"0.5": 1, "5": 2, "10": 5, "+Inf": 100}


def panels(kind: str) -> list[tuple[str, str]]:
    """Return the titles and expressions of the panels of a data source."""
    listed = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    return [
        (panel["title"], target["expr"])
        for panel in listed
        if panel["datasource"]["type"] == kind
        for target in panel["targets"]
    ]


def rules() -> list[tuple[str, str]]:
    loaded = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))
    return [(one["alert"], one["expr"]) for group in loaded["groups"] for one in group["rules"]]


def used_metrics() -> dict[str, set[str]]:
    """Return the metrics of all expressions, each with the labels that one of them reads."""
    found: dict[str, set[str]] = {}
    for _, text in [*panels("prometheus"), *rules()]:
        named = {name for name in LABELS if re.search(rf"\b{name}\b", text)}
        for metric in re.findall(r"\bsluice_[a-z_]+", text):
            found.setdefault(metric, set()).update(named)
    return found


def written_series() -> Series:
    """Return samples for every metric: counters that grow, and gauges that are too large."""
    found: Series = {}
    for metric, names in sorted(used_metrics().items()):
        for place in range(2):
            own = {name: LABELS[name][place] for name in names}
            own |= {"instance": f"host-{place}:1", "job": "sluice"}
            bounds = BOUNDS if metric.endswith("_bucket") else {"": 10}
            for bound, growth in bounds.items():
                of = labels(metric, **own, **({"le": bound} if bound else {}))
                grows = metric.endswith(("_total", "_bucket"))
                found[of] = [
                    (START_MS + minute * 60_000, bits_of(minute * growth * 6e4 if grows else 1e12))
                    for minute in range(MINUTES + 1)
                ]
    return found


@pytest.mark.clients
@pytest.mark.parametrize("name", PROGRAMS)
def test_metrics_by_a_prometheus(name: str, tmp_path: Path) -> None:
    written = written_series()
    made = deployment(tmp_path / "made")
    deliver_written(made, written, at_ns=DAY0_NS, ingested=1)
    questions = [
        (title, one.replace("$__rate_interval", "5m")) for title, one in panels("prometheus")
    ]
    assert len(questions) > 15
    assert len(rules()) > 15

    async def story(both: TwoEngines) -> None:
        for title, question in [*questions, *rules()]:
            own, remote = await both.both("query", query=question, time=str(END_S))
            assert (own["status"], remote["status"]) == ("success", "success"), question
            left, right = own["data"]["result"], remote["data"]["result"]
            assert same(left, right), (question, left, right)
            assert bool(right) == (title not in SILENT), question

    talk_to_engines(name, made, written, tmp_path, story)


@pytest.fixture
def logs(tmp_path: Path) -> Deployment:
    """Lines of a gateway as an agent sends them."""
    made = deployment(tmp_path)
    records = [
        LogRecord(
            ts_ns=DAY0_NS + place * NS_PER_S,
            body=json.dumps({"event": "journal_not_written", "level": level}),
            attributes={"level": level},
        )
        for place, level in enumerate(("info", "warning", "error"))
    ]
    resource = (("service.name", "sluice-gateway"),)
    made.deliver([sent(logs_from_records(records), resource=resource)])
    return made


def test_logs_by_the_routes_of_loki(logs: Deployment) -> None:
    async def ask(client: QueryClient, question: str) -> Any:
        span = {"start": str(DAY0_NS), "end": str(DAY0_NS + 600 * NS_PER_S), "step": "60s"}
        given = {"query": question.replace("$__auto", "5m"), **span}
        url = f"{client.url}/loki/api/v1/query_range"
        async with client.session.get(url, params=given) as response:
            assert response.status == 200, await response.text()
            return json.loads(await response.read())["data"]["result"]

    async def story(client: QueryClient) -> None:
        for title, question in panels("loki"):
            found = await ask(client, question)
            shown = {
                json.dumps(one.get("metric") or one["stream"], sort_keys=True) for one in found
            }
            assert len(shown) == 2, title

    assert len(panels("loki")) == 2
    talk(logs, story)


def test_the_data_sources_are_those_of_the_page() -> None:
    loaded = yaml.safe_load((MONITORING / "datasources.yaml").read_text(encoding="utf-8"))
    kinds = {one["type"]: one["url"] for one in loaded["datasources"]}
    assert kinds.keys() == {"loki", "jaeger", "prometheus"}
    assert kinds["loki"] == kinds["jaeger"]
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))
    (read,) = config["remote_read"]
    assert read["url"] == f"{kinds['loki']}/api/v1/read"
