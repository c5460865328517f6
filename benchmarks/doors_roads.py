"""Benchmark `doors_roads`: protobuf of Loki, Prometheus and OTLP metrics to columns.

The subject is the decoder of the door, which maps Arrow arrays. The control is the mapping record
by record, which installations without Arrow use. `mixed` has a histogram behind each other metric:
these are mapped point by point on both roads. All run in turn in one process.

    python -m benchmarks.doors_roads [RECORDS] [ROUNDS]
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from benchmarks.doors_bodies import SHAPES, otlp_metrics
from benchmarks.doors_decode import NOW_NS
from benchmarks.measure import Sample, interleave, ratio, report, timed
from sluice_doors import protobuf
from sluice_doors.decoded import DecodedRecords, content_digest
from sluice_doors.loki.push import PROTOBUF, decode_loki
from sluice_doors.otlp.http import decode_otlp_metrics
from sluice_doors.prometheus.write import decode_remote_write

REPEATS: Final = 4
BOUNDS: Final = (0.1, 1.0, 10.0)
Decode = Callable[[bytes], Sequence[DecodedRecords]]


def with_histograms(body: bytes) -> bytes:
    """Return a metrics request with a histogram behind each of its metrics."""
    request, made = ExportMetricsServiceRequest.FromString(body), ExportMetricsServiceRequest()
    made.CopyFrom(request)
    metrics = made.resource_metrics[0].scope_metrics[0].metrics
    del metrics[:]
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        metrics.add().CopyFrom(metric)
        histogram = metrics.add(name=f"{metric.name}.size").histogram
        histogram.aggregation_temporality = 2
        point = histogram.data_points.add(time_unix_nano=NOW_NS, count=6, sum=9.5)
        point.explicit_bounds.extend(BOUNDS)
        point.bucket_counts.extend((1, 2, 3, 0))
    return bytes(made.SerializeToString())


def loki(body: bytes) -> Sequence[DecodedRecords]:
    """Decode a push of Loki."""
    return decode_loki(body, PROTOBUF, received_ns=NOW_NS)


def prometheus(body: bytes) -> Sequence[DecodedRecords]:
    """Decode a request of remote write 1.0."""
    return decode_remote_write(body, PROTOBUF, received_ns=NOW_NS).records


def metrics(body: bytes) -> Sequence[DecodedRecords]:
    """Decode metrics of OTLP."""
    return decode_otlp_metrics(body, PROTOBUF, received_ns=NOW_NS)


def by_records(decode: Decode, body: bytes) -> Sequence[DecodedRecords]:
    """Decode without Arrow: the control."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protobuf, "ARROW_BYTES_MIN", sys.maxsize)
        return decode(body)


def main(records: int = 20_000, rounds: int = 5) -> int:
    """Run the benchmark."""
    many = {shape.door: shape.many for shape in SHAPES}
    points = otlp_metrics(records)
    bodies: dict[str, tuple[Decode, bytes]] = {
        "loki": (loki, many["loki"](records)),
        "prometheus": (prometheus, many["prometheus"](records)),
        "metrics": (metrics, points),
        "mixed": (metrics, with_histograms(points)),
    }

    def running(decode: Decode, body: bytes) -> Sample:
        def work() -> float:
            for _ in range(REPEATS):
                decode(body)
            return float(REPEATS * len(body))

        return timed(work)

    subjects: dict[str, Callable[[], Sample]] = {}
    for name, (decode, body) in bodies.items():
        control = partial(by_records, decode)
        if len({content_digest(one(body)[0]) for one in (decode, control)}) != 1:
            raise SystemExit(f"the results differ, body={name}")
        subjects[name] = partial(running, decode, body)
        subjects[f"{name} control"] = partial(running, control, body)
    samples = interleave(subjects, rounds=rounds)
    shown = []
    for name in bodies:
        control_samples = samples[f"{name} control"]
        low, middle, high = ratio(samples[name], control_samples, lambda one: 1 / one.cpu_per_unit)
        per_s = sorted(1 / one.cpu_per_unit for one in samples[name])[rounds // 2]
        shown.append(
            f"{name}: {per_s / 1e6:.1f} MB per CPU second,"
            f" {middle:.2f} x the control ({low:.2f} to {high:.2f})"
        )
    report("doors_roads", shown, samples)
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
