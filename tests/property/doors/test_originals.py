"""What was sent stays readable: 10^4 generated objects are found again in their records.

The long run generates 10^5.
"""

import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from support.repetitions import times

from sluice_doors.json.ingest import decode_json
from sluice_doors.json.records import RecordFields
from sluice_protocol.columns import LogColumns
from sluice_protocol.meaning import BESIDE, BODY_KEYS, TEMPLATE_TIME, TIME_KEYS
from sluice_protocol.ndjson import attribute_rows
from sluice_protocol.units import NS_PER_S

RECEIVED = 1_790_000_000_000_000_000
SEED = 41
KEYS = (
    *("level", "severity", "log.level", "service", "host", "trace_id", "path", "latency_ms"),
    *("ok", "user.id", "note", "ä", "request_id"),
)
UNITS = (1, 10**3, 10**6, 10**9)
"""Parts of a second that a number of a time may count."""


def generated(draw: random.Random) -> tuple[dict[str, Any], int, str, str]:
    """Return an object, the Unix ns of its time, and the keys of its time and body."""
    unit = draw.choice(UNITS)
    number = draw.randrange(1_700_000_000, 1_900_000_000) * unit + draw.randrange(unit)
    ns = number * (NS_PER_S // unit)
    time_key, body_key = draw.choice(TIME_KEYS), draw.choice(BODY_KEYS)
    form = draw.randrange(3)
    time: object = number
    if form:
        whole, part = divmod(ns, NS_PER_S)
        at = datetime.fromtimestamp(whole + 3600 * (form - 1), UTC).strftime("%Y-%m-%dT%H:%M:%S")
        time = f"{at}.{part:09d}" + ("Z" if form == 1 else "+01:00")
    found: dict[str, Any] = {
        key: draw.choice(["error", "", "ü ✓", 500, 2**60 + 1, -7, True, False, None, [1, "a"]])
        for key in draw.sample(KEYS, draw.randrange(len(KEYS)))
    }
    found |= dict.fromkeys((*BESIDE.get(time_key, ()), *BESIDE.get(body_key, ())), "-")
    found |= {time_key: time, body_key: f"line {draw.randrange(10**9)} {draw.choice(KEYS)}"}
    return found, ns, time_key, body_key


def text_of(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("count", [3_000, pytest.param(times(100_000), marks=pytest.mark.long)])
def test_every_value_of_generated_objects_is_in_their_records(count: int) -> None:
    draw = random.Random(SEED)
    print(f"seed {SEED}")
    sent = [generated(draw) for _ in range(count)]
    body = "\n".join(json.dumps(found, ensure_ascii=False) for found, _, _, _ in sent).encode()
    [decoded] = decode_json(body, RecordFields(received_ns=RECEIVED))
    columns = decoded.columns
    assert isinstance(columns, LogColumns)
    assert (decoded.timed, decoded.unreadable) == (True, 0)
    assert columns.ts.tolist() == [ns for _, ns, _, _ in sent]
    assert columns.body.slices() == [found[key].encode() for found, _, _, key in sent]
    for (found, _, time_key, body_key), shown in zip(
        sent, attribute_rows(columns.attributes, count), strict=True
    ):
        rest = {key: text_of(value) for key, value in found.items() if key != body_key}
        if not str(rest[time_key]).endswith("+01:00") and time_key != TEMPLATE_TIME:
            del rest[time_key]
        assert shown == rest
