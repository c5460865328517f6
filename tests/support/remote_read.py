"""Remote write and read of Prometheus as a client has them: requests, and answers decoded again.

The chunks are decoded here by the description of their format, not by the code that encodes them.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cramjam import snappy

from sluice_doors.otlp.metrics import STALE
from sluice_doors.prometheus.read import crc32c
from sluice_doors.prometheus.write import decode_remote_write
from sluice_doors.protobuf import message_classes
from sluice_protocol.columns import Columns

_LABEL = {"name": (1, "bytes"), "value": (2, "bytes")}
_SAMPLE = {"value": (1, "double"), "timestamp": (2, "int64")}
MESSAGES = message_classes(
    "prometheus.test",
    {
        "Label": _LABEL,
        "Sample": _SAMPLE,
        "TimeSeries": {"labels": (1, "*Label"), "samples": (2, "*Sample")},
        "Metadata": {"type": (1, "int32"), "family": (2, "bytes"), "help": (4, "bytes")},
        "WriteRequest": {"timeseries": (1, "*TimeSeries"), "metadata": (3, "*Metadata")},
        "LabelMatcher": {"type": (1, "int32"), "name": (2, "bytes"), "value": (3, "bytes")},
        "Hints": {"step_ms": (1, "int64"), "func": (2, "bytes")},
        "Query": {
            "start_timestamp_ms": (1, "int64"),
            "end_timestamp_ms": (2, "int64"),
            "matchers": (3, "*LabelMatcher"),
            "hints": (4, "Hints"),
        },
        "ReadRequest": {"queries": (1, "*Query"), "accepted_response_types": (2, "*int32")},
        "QueryResult": {"timeseries": (1, "*TimeSeries")},
        "ReadResponse": {"results": (1, "*QueryResult")},
        "Chunk": {
            "min_time_ms": (1, "int64"),
            "max_time_ms": (2, "int64"),
            "type": (3, "int32"),
            "data": (4, "bytes"),
        },
        "ChunkedSeries": {"labels": (1, "*Label"), "chunks": (2, "*Chunk")},
        "ChunkedReadResponse": {
            "chunked_series": (1, "*ChunkedSeries"),
            "query_index": (2, "int64"),
        },
    },
)
SIGNS = ("=", "!=", "=~", "!~")
Labels = tuple[tuple[str, str], ...]
Series = dict[Labels, list[tuple[int, int]]]
"""Samples by labels: times in ms, and the 64 bits of values."""
NAN_BITS = 0x7FF8000000000001
STALE_BITS = struct.unpack(">Q", struct.pack(">d", STALE))[0]


def bits_of(value: float) -> int:
    found: int = struct.unpack(">Q", struct.pack(">d", value))[0]
    return found


def value_of(bits: int) -> float:
    found: float = struct.unpack(">d", struct.pack(">Q", bits))[0]
    return found


def labels(name: str, **others: str) -> Labels:
    return tuple(sorted({"__name__": name, **others}.items()))


def _set_labels(series: Any, of: Labels) -> None:
    for name, value in of:
        series.labels.add(name=name.encode(), value=value.encode())


def write_request(written: Series, helps: Mapping[str, tuple[int, str]] | None = None) -> bytes:
    """Return a request of remote write, not compressed."""
    request = MESSAGES["WriteRequest"]()
    for of, samples in written.items():
        series = request.timeseries.add()
        _set_labels(series, of)
        for at_ms, bits in samples:
            series.samples.add(timestamp=at_ms, value=value_of(bits))
    for family, (type_, text) in (helps or {}).items():
        request.metadata.add(family=family.encode(), type=type_, help=text.encode())
    encoded: bytes = request.SerializeToString()
    return encoded


def written_columns(
    written: Series, *, received_ns: int, helps: Mapping[str, tuple[int, str]] | None = None
) -> Columns:
    """Return the records of a request of remote write."""
    found = decode_remote_write(
        write_request(written, helps), "application/x-protobuf", received_ns=received_ns
    )
    (records,) = found.records
    return records.columns


@dataclass(frozen=True)
class Wanted:
    """A query of remote read."""

    start_ms: int
    end_ms: int
    matchers: Sequence[tuple[str, str, str]] = ()


def read_request(*queries: Wanted, accepted: Sequence[int] = ()) -> bytes:
    """Return the compressed body of a request of remote read."""
    request = MESSAGES["ReadRequest"](accepted_response_types=accepted)
    for one in queries:
        query = request.queries.add(start_timestamp_ms=one.start_ms, end_timestamp_ms=one.end_ms)
        query.hints.step_ms = 1000
        query.hints.func = b"rate"
        for name, sign, value in one.matchers:
            query.matchers.add(type=SIGNS.index(sign), name=name.encode(), value=value.encode())
    return bytes(snappy.compress_raw(request.SerializeToString()))


def _labels_of(series: Any) -> Labels:
    return tuple((one.name.decode(), one.value.decode()) for one in series.labels)


def samples_of(body: bytes) -> list[Series]:
    """Return the samples of an answer without chunks, by query."""
    answer = MESSAGES["ReadResponse"].FromString(bytes(snappy.decompress_raw(body)))
    return [
        {
            _labels_of(series): [(one.timestamp, bits_of(one.value)) for one in series.samples]
            for series in result.timeseries
        }
        for result in answer.results
    ]


def frames_of(body: bytes) -> Iterator[Any]:
    """Yield the messages of a streamed answer; each has its length and its checksum."""
    at = 0
    while at < len(body):
        size = shift = 0
        while True:
            byte = body[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        data = body[at + 4 : at + 4 + size]
        assert crc32c(data) == struct.unpack(">I", body[at : at + 4])[0]
        yield MESSAGES["ChunkedReadResponse"].FromString(data)
        at += 4 + size


def chunks_of(body: bytes, queries: int) -> list[Series]:
    """Return the samples of a streamed answer, by query."""
    found: list[Series] = [{} for _ in range(queries)]
    for frame in frames_of(body):
        (series,) = frame.chunked_series
        of = _labels_of(series)
        samples = [one for chunk in series.chunks for one in _chunk(chunk)]
        found[frame.query_index].setdefault(of, []).extend(samples)
    return found


def _chunk(chunk: Any) -> list[tuple[int, int]]:
    assert chunk.type == 1
    samples = decode_chunk(chunk.data)
    assert (chunk.min_time_ms, chunk.max_time_ms) == (samples[0][0], samples[-1][0])
    return samples


class _Bits:
    def __init__(self, data: bytes) -> None:
        self.text = "".join(f"{one:08b}" for one in data)
        self.at = 0

    def take(self, width: int) -> int:
        assert self.at + width <= len(self.text)
        self.at += width
        return int(self.text[self.at - width : self.at] or "0", 2)

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.take(8)
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number


def decode_chunk(data: bytes) -> list[tuple[int, int]]:
    """Return the samples of a chunk of the encoding XOR."""
    bits = _Bits(data)
    count = bits.take(16)
    zigzag = bits.varint()
    at = zigzag >> 1 ^ -(zigzag & 1)
    value, delta = bits.take(64), 0
    leading = trailing = 0
    found = [(at, value)]
    for place in range(1, count):
        delta = bits.varint() if place == 1 else delta + _second_difference(bits)
        at += delta
        if bits.take(1):
            if bits.take(1):
                leading, width = bits.take(5), bits.take(6) or 64
                trailing = 64 - leading - width
            value ^= bits.take(64 - leading - trailing) << trailing
        found.append((at, value))
    assert len(bits.text) - bits.at < 8
    return found


def _second_difference(bits: _Bits) -> int:
    ones = 0
    while ones < 4 and bits.take(1):
        ones += 1
    width = (0, 14, 17, 20, 64)[ones]
    number = bits.take(width) if width else 0
    return number - (1 << width) if width and number > 1 << width - 1 else number
