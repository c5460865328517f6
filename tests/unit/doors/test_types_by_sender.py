"""The table of types of `docs/fields.md`: each sender keeps exactly the types that it lists."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from deploy.fields_page import TYPES_BY_SENDER
from support.agent_formats import read_whole

from sluice_doors.decoded import DecodedRecords
from sluice_doors.forward.messages import decode_forward
from sluice_doors.json.elasticsearch import decode_bulk
from sluice_doors.json.firehose import decode_firehose
from sluice_doors.json.hec import decode_events
from sluice_doors.json.ingest import decode_json
from sluice_doors.json.records import RecordFields
from sluice_doors.loki.push import decode_loki
from sluice_doors.otlp.http import decode_otlp_logs
from sluice_doors.syslog import SyslogPiece, decode_syslog
from sluice_protocol.ndjson import attribute_rows
from sluice_protocol.units import UnixNs
from sluice_protocol.values import TypedText, ValueType

RECEIVED = UnixNs(1_790_000_000_000_000_000)
NS = 1_764_316_800_123_000_000
SENT: dict[str, Any] = {
    "string": "a", "integer": 1, "float": 1.5, "boolean": True, "json": [1, "a"],
    "o": {"inside": 7},
}  # fmt: skip


def shown(*decoded: DecodedRecords | None) -> dict[str, str]:
    [one] = decoded
    assert one is not None
    [row] = attribute_rows(one.columns.attributes, 1)
    return dict(row)


def otlp() -> dict[str, str]:
    values: dict[str, Any] = {
        "string": {"stringValue": "a"}, "integer": {"intValue": "1"}, "float": {"doubleValue": 1.5},
        "boolean": {"boolValue": True}, "bytes": {"bytesValue": "/wE="},
        "json": {"arrayValue": {"values": [{"intValue": "1"}]}},
        "o": {"kvlistValue": {"values": [{"key": "inside", "value": {"intValue": "7"}}]}},
    }  # fmt: skip
    record = {
        "timeUnixNano": str(NS),
        "attributes": [{"key": key, "value": value} for key, value in values.items()],
    }
    body = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
    text = json.dumps(body).encode()
    return shown(*decode_otlp_logs(text, "application/json", received_ns=RECEIVED))


def forward() -> dict[str, str]:
    body = msgpack.packb(["tag", [[NS // 10**9, {**SENT, "bytes": b"\xff"}]]])
    return shown(*decode_forward(body, received_ns=RECEIVED, bytes_max=1 << 24))


def json_door() -> dict[str, str]:
    return shown(*decode_json(json.dumps(SENT).encode(), RecordFields(received_ns=RECEIVED)))


def bulk() -> dict[str, str]:
    body = b'{"create":{}}\n' + json.dumps(SENT).encode()
    return shown(*decode_bulk(body, received_ns=RECEIVED).records)


def splunk() -> dict[str, str]:
    return shown(*decode_events(json.dumps({"event": SENT}).encode(), received_ns=RECEIVED))


def splunk_fields() -> dict[str, str]:
    body = {"event": "m", "fields": SENT}
    return shown(*decode_events(json.dumps(body).encode(), received_ns=RECEIVED))


def firehose() -> dict[str, str]:
    data = base64.b64encode(json.dumps(SENT).encode()).decode()
    body = json.dumps({"records": [{"data": data}]}).encode()
    return shown(*decode_firehose(body, {}, received_ns=RECEIVED))


def loki() -> dict[str, str]:
    body = {"streams": [{"stream": {"a": "1"}, "values": [[str(NS), "m", {"integer": "1"}]]}]}
    text = json.dumps(body).encode()
    return shown(*decode_loki(text, "application/json", received_ns=RECEIVED))


def syslog() -> dict[str, str]:
    piece = SyslogPiece(b'<13>1 - h a 1 - [m@1 integer="1"] m', {})
    return shown(decode_syslog([piece], received_ns=RECEIVED, zone=None))


DOORS: dict[Callable[[], dict[str, str]], str] = {
    otlp: "OTLP logs, metrics and traces",
    json_door: "JSON, Elasticsearch, Splunk, Firehose",
    bulk: "JSON, Elasticsearch, Splunk, Firehose",
    splunk: "JSON, Elasticsearch, Splunk, Firehose",
    splunk_fields: "JSON, Elasticsearch, Splunk, Firehose",
    firehose: "JSON, Elasticsearch, Splunk, Firehose",
    forward: "Fluent forward",
    loki: "Loki labels and structured metadata",
    syslog: "agent, logfmt and syslog",
}


def types_of(row: dict[str, str]) -> set[ValueType]:
    return {one.type if isinstance(one, TypedText) else ValueType.TEXT for one in row.values()}


@pytest.mark.parametrize("door", DOORS)
def test_a_door_keeps_the_types_of_its_row(door: Callable[[], dict[str, str]]) -> None:
    row, (types, nested) = door(), TYPES_BY_SENDER[DOORS[door]]
    assert types_of(row) == set(types)
    assert ("o.inside" in row, "o" in row) == (nested == "dotted keys", nested.startswith("one"))


@pytest.mark.parametrize(
    ("line", "sender"),
    [
        (json.dumps({"message": "m", **SENT}), "agent, lines of JSON"),
        ('msg=m integer=1 string="a"', "agent, logfmt and syslog"),
    ],
)
def test_the_agent_keeps_the_types_of_its_row(line: str, sender: str, tmp_path: Path) -> None:
    [(_, _, _, row)] = read_whole(tmp_path / "a.log", line.encode() + b"\n")
    types, nested = TYPES_BY_SENDER[sender]
    assert types_of(row) == set(types)
    assert ("o.inside" in row) == bool(nested)
