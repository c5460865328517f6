"""Benchmark `doors_decode`: bodies of clients to the columns of a frame, per CPU second.

OTLP logs in protobuf: the subject is `decode_otlp_logs`. The control parses the same body with upb
and builds the columns in a plain Python loop; it decodes only what these records contain. `rows` is
the road of installations without Arrow. Lines of JSON: the subject is `decode_json`, and the
control is `json.loads` with the loop over records. All run in turn in one process.

    python -m benchmarks.doors_decode [RECORDS] [ROUNDS]
"""

import json
import random
import sys
from collections.abc import Callable
from typing import Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from benchmarks.measure import Sample, interleave, ratio, report, timed
from sluice_doors.decoded import DecodedRecords, Tally, content_digest
from sluice_doors.json.ingest import decode_json
from sluice_doors.json.records import RecordFields, record_of
from sluice_doors.otlp import protobuf as otlp_protobuf
from sluice_doors.otlp.http import PROTOBUF, decode_otlp_logs
from sluice_doors.otlp.logs import logs_from_groups, logs_from_rows
from sluice_protocol.records import LogRecord, logs_from_records

RATIO_MIN: Final = 4.0
JSON_RATIO_MIN: Final = 1.5
REPEATS: Final = 10
NOW_NS: Final = 1_763_769_600_000_000_000


def request(records: int) -> bytes:
    """Return a request of one resource and one scope, with four attributes for each record."""
    rng = random.Random(1)
    made = ExportLogsServiceRequest()
    group = made.resource_logs.add()
    group.resource.attributes.add(key="service.name").value.string_value = "shop"
    scoped = group.scope_logs.add()
    scoped.scope.name = "lib"
    for number in range(records):
        log = scoped.log_records.add(
            time_unix_nano=NOW_NS + number,
            observed_time_unix_nano=NOW_NS + number + 1_000,
            severity_number=9,
            severity_text="INFO",
        )
        log.body.string_value = (
            f"GET /api/v1/items/{rng.randrange(10**6)} took {rng.random():.4f} ms"
            " and returned two hundred bytes"
        )
        for key in ("http.method", "http.route", "user.id", "peer"):
            log.attributes.add(key=key).value.string_value = f"{rng.randrange(1000)}abc"
    return bytes(made.SerializeToString())


def plain_loop(body: bytes) -> DecodedRecords:
    """Decode with upb and a Python loop: the control."""
    parsed = ExportLogsServiceRequest.FromString(body)
    rows = []
    resource: dict[str, str] = {}
    for group in parsed.resource_logs:
        resource = {one.key: one.value.string_value for one in group.resource.attributes}
        for scoped in group.scope_logs:
            shared = {"otel.scope.name": scoped.scope.name}
            for log in scoped.log_records:
                attributes = {one.key: one.value.string_value for one in log.attributes}
                attributes["severity_text"] = log.severity_text
                attributes["observed_time_unix_nano"] = str(log.observed_time_unix_nano)
                attributes |= shared
                rows.append(
                    LogRecord(
                        ts_ns=log.time_unix_nano,
                        body=log.body.string_value,
                        severity=log.severity_number,
                        attributes=attributes,
                    )
                )
    return DecodedRecords(
        columns=logs_from_records(rows),
        resource=tuple(resource.items()),
        timed=True,
        unreadable=0,
    )


def by_rows(body: bytes) -> DecodedRecords:
    """Decode on the road of installations without Arrow."""
    found = logs_from_groups(otlp_protobuf.log_groups(body), received_ns=NOW_NS)
    if found is None:
        raise SystemExit("no records")
    return found


def fast(body: bytes) -> DecodedRecords:
    """Decode on the fast road."""
    (found,) = decode_otlp_logs(body, PROTOBUF, received_ns=NOW_NS)
    return found


def ndjson(records: int) -> bytes:
    """Return lines of JSON with six fields each."""
    rng = random.Random(2)
    lines = (
        {
            "time": f"2025-11-22T00:00:00.{number:06}Z",
            "message": f"GET /api/v1/items/{rng.randrange(10**6)} took {rng.random():.4f} ms",
            "level": "info",
            "http.method": "GET",
            "user.id": str(rng.randrange(1000)),
            "status": 200,
        }
        for number in range(records)
    )
    return "\n".join(map(json.dumps, lines)).encode()


def loads_loop(body: bytes) -> DecodedRecords:
    """Decode lines of JSON with `json.loads`, record by record: the control."""
    tally = Tally()
    fields = RecordFields(received_ns=NOW_NS)
    rows = [record_of(json.loads(line), fields, tally, {}) for line in body.split(b"\n")]
    columns = logs_from_rows(rows, tally)
    return DecodedRecords(columns=columns, resource=(), timed=True, unreadable=0)


def lines(body: bytes) -> DecodedRecords:
    """Decode lines of JSON."""
    (found,) = decode_json(body, RecordFields(received_ns=NOW_NS))
    return found


def main(records: int = 5_000, rounds: int = 7) -> int:
    """Run the benchmark; return 1 if the ratio is below the bar."""
    otlp = {"fast": fast, "rows": by_rows, "control": plain_loop}
    plain = {"json": lines, "json control": loads_loop}
    bodies = dict.fromkeys(otlp, request(records)) | dict.fromkeys(plain, ndjson(records))
    for group in (otlp, plain):
        if len({content_digest(decode(bodies[name])) for name, decode in group.items()}) != 1:
            raise SystemExit("the results differ")

    def running(name: str, decode: Callable[[bytes], DecodedRecords]) -> Callable[[], Sample]:
        def work() -> float:
            for _ in range(REPEATS):
                decode(bodies[name])
            return float(REPEATS * len(bodies[name]))

        return lambda: timed(work)

    subjects = {name: running(name, one) for name, one in (otlp | plain).items()}
    samples = interleave(subjects, rounds=rounds)
    shown, medians = [], {}
    for name, found in samples.items():
        control = samples["json control" if name in plain else "control"]
        low, middle, high = ratio(found, control, lambda one: 1 / one.cpu_per_unit)
        medians[name] = middle
        per_s = sorted(1 / one.cpu_per_unit for one in found)[len(found) // 2]
        shown.append(
            f"{name}: {per_s / 1e6:.1f} MB and {per_s / len(bodies[name]) * records:,.0f} records"
            f" per CPU second, {middle:.2f} x the control ({low:.2f} to {high:.2f})"
        )
    report("doors_decode", shown, samples)
    return int(medians["fast"] < RATIO_MIN or medians["json"] < JSON_RATIO_MIN)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
