"""A trace of 100,000 spans, sent with OTLP to a real gateway and read back."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.commands import sluice
from support.door_fleet import Fleet, fleet
from support.query_lake import DAY0_NS
from support.spark_local import ingest_locally

from sluice_protocol.units import NS_PER_S

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPANS = 100_000
IN_REQUEST = 10_000
EVENTS = 1_000
EVENTFUL = 54_321
"""The span with so many events."""
LARGE = 2**53 + 1
GATEWAY_KB_MAX = 400_000
QUERY_KB_MAX = 1_000_000
SPAN = ("--from", str(DAY0_NS), "--to", str(DAY0_NS + NS_PER_S))


def pair(key: str, value: str | int) -> KeyValue:
    if isinstance(value, str):
        return KeyValue(key=key, value=AnyValue(string_value=value))
    return KeyValue(key=key, value=AnyValue(int_value=value))


def span(number: int) -> Span:
    start_ns = DAY0_NS + number * 1_000
    events = [
        Span.Event(
            name=f"event {n}", time_unix_nano=start_ns + n, attributes=[pair("n", LARGE + n)]
        )
        for n in range(EVENTS if number == EVENTFUL else 0)
    ]
    return Span(
        trace_id=bytes.fromhex(TRACE),
        span_id=(number + 1).to_bytes(8, "big"),
        parent_span_id=(number // 3 + 1).to_bytes(8, "big") if number else b"",
        name=f"op {number % 50}",
        start_time_unix_nano=start_ns,
        end_time_unix_nano=start_ns + 500,
        attributes=[pair("url.path", f"/cart/{number}"), pair("n", LARGE + number)],
        events=events,
    )


def send(gateways: Fleet, spans: list[Span]) -> None:
    whole = ExportTraceServiceRequest()
    of = whole.resource_spans.add()
    of.resource.attributes.append(pair("service.name", "shop"))
    of.scope_spans.add().spans.extend(spans)
    request = urllib.request.Request(f"{gateways.url}/v1/traces", data=whole.SerializeToString())
    request.add_header("Content-Type", "application/x-protobuf")
    request.add_header("Authorization", f"Bearer {gateways.token}")
    with urllib.request.urlopen(request, timeout=120) as response:
        assert response.status == 200


def peak_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


@contextmanager
def query_service(store_url: str) -> Iterator[tuple[str, int]]:
    """Run the service; yield its URL and its process."""
    command = (sys.executable, "-m", "sluice_cli", "query", "serve", "--store", store_url)
    options = ("--listen", "127.0.0.1:0", "--time-s-max", "120", "--json")
    with subprocess.Popen((*command, *options), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"], process.pid
        finally:
            process.terminate()


def trace(url: str, **given: object) -> Any:
    query = "&".join(f"{name}={value}" for name, value in given.items())
    with urllib.request.urlopen(f"{url}/v1/traces/{TRACE}?{query}", timeout=240) as response:
        return json.load(response)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_100_000_spans_are_read_back_pending_and_from_the_table(tmp_path: Path) -> None:
    """In bounded memory; an answer that is cut states it, and every event and integer is exact."""
    with fleet(tmp_path, "otlp", count=1) as gateways:
        for start in range(0, SPANS, IN_REQUEST):
            send(gateways, [span(start + n) for n in range(IN_REQUEST)])
        assert peak_kb(gateways.gateways[0].process.pid) < GATEWAY_KB_MAX
    store_url = gateways.store_url
    gateways.enqueue()
    with query_service(store_url) as (url, pid):
        for place in ("pending", "table"):
            if place == "table":
                ingest_locally(store_url)
            cut = trace(url)
            assert (len(cut["spans"]), cut["more"], cut["summary"]["more"]) == (10_000, True, True)
            whole = trace(url, limit=SPANS)
            summary = whole["summary"]
            assert (whole["more"], summary["results"], summary["partial"]) == (False, SPANS, False)
            assert (summary["waiting_batches"] > 0) == (place == "pending")
            ids = [int(one["span_id"], 16) for one in whole["spans"]]
            assert ids == list(range(1, SPANS + 1))
            assert all(
                one["attributes"]["n"] == LARGE + number
                for number, one in enumerate(whole["spans"])
            )
            events = json.loads(whole["spans"][EVENTFUL]["events"])
            assert [one["attributes"]["n"] for one in events] == [LARGE + n for n in range(EVENTS)]
            assert trace(url, limit=SPANS - 1)["more"]
        assert peak_kb(pid) < QUERY_KB_MAX
    its = ("query", f'{{trace_id="{TRACE}"}}', "--store", store_url, "--kind", "spans", *SPAN)
    its = (*its, "--time-s-max", "120")
    done = sluice(*its, "--limit", str(SPANS))
    assert (done.returncode, done.stdout.count("\n")) == (0, SPANS)
    assert done.stderr.startswith(f"{SPANS} results; ")
    assert sluice(*its).stderr.startswith("1000 results (more match: raise --limit)")
