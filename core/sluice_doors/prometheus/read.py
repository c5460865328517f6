"""Remote read of Prometheus: the question, and answers as samples or as streamed chunks.

Source: prometheus/prometheus, `prompb/remote.proto`, `prompb/types.proto`,
`storage/remote/codec.go`, `storage/remote/chunked.go`, `tsdb/docs/format/chunks.md`.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, Protocol

import numpy as np
from google.protobuf.message import DecodeError

from sluice_doors.content_coding import decompress
from sluice_doors.decoded import BodyUnreadable
from sluice_doors.prometheus.write import MESSAGES_1
from sluice_doors.protobuf import field_head, message_classes, varint
from sluice_protocol.columns import F64, I64

SAMPLES: Final = 0
CHUNKS: Final = 1
"""The types of answers, `ReadRequest.ResponseType`."""
QUERIES_MAX: Final = 32
"""Queries of one request; Prometheus sends one."""
READ_BYTES_MAX: Final = 1 << 20
FRAME_BYTES: Final = 1 << 20
"""Size from which a series continues in the next frame, as by Prometheus."""
_CHUNK_SAMPLES: Final = 120
_XOR: Final = 1
_MESSAGES: Final = MESSAGES_1 | {
    "ReadRequest": {"queries": (1, "*Query"), "accepted_response_types": (2, "*int32")},
    "Query": {
        "start_timestamp_ms": (1, "int64"),
        "end_timestamp_ms": (2, "int64"),
        "matchers": (3, "*LabelMatcher"),
    },
    "LabelMatcher": {"type": (1, "int32"), "name": (2, "bytes"), "value": (3, "bytes")},
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
}

MatcherSign = Literal["=", "!=", "=~", "!~"]
_SIGNS: Final[tuple[MatcherSign, ...]] = ("=", "!=", "=~", "!~")
Labels = tuple[tuple[str, str], ...]
"""The labels of a series, sorted by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadQuery:
    """Which samples are wanted: both times inclusive, all matchers met."""

    start_ms: int
    end_ms: int
    matchers: tuple[tuple[str, MatcherSign, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRead:
    """A request: its queries, and the type of the answer."""

    queries: tuple[ReadQuery, ...]
    answer: int


@cache
def _classes() -> dict[str, Any]:
    return message_classes("sluice_doors.prometheus.read", _MESSAGES)


def parse_read_request(body: bytes) -> RemoteRead:
    """Return a request from its compressed body.

    Without a list of accepted types the answer is samples; otherwise the first known type counts.
    """
    raw = decompress(body, "snappy", bytes_max=READ_BYTES_MAX)
    try:
        request = _classes()["ReadRequest"].FromString(raw)
    except DecodeError as error:
        raise BodyUnreadable(f"cannot read body as a request of remote read: {error}") from error
    if not 1 <= len(request.queries) <= QUERIES_MAX:
        raise BodyUnreadable(
            f"a request must have 1 to {QUERIES_MAX} queries, queries=`{len(request.queries)}`"
        )
    accepted = [*request.accepted_response_types] or [SAMPLES]
    answer = next((one for one in accepted if one in (SAMPLES, CHUNKS)), None)
    if answer is None:
        raise BodyUnreadable(
            f"no accepted response type is known: accept {SAMPLES} (samples) or {CHUNKS}"
            f" (streamed chunks), accepted=`{accepted[:10]}`"
        )
    return RemoteRead(queries=tuple(map(_query, request.queries)), answer=answer)


def _query(query: Any) -> ReadQuery:  # noqa: ANN401 - the class is made at run time
    matchers = []
    for one in query.matchers:
        if not 0 <= one.type < len(_SIGNS):
            raise BodyUnreadable(f"type of a matcher is not known, type=`{one.type}`")
        try:
            matchers.append((one.name.decode(), _SIGNS[one.type], one.value.decode()))
        except UnicodeDecodeError as error:
            raise BodyUnreadable("a matcher is not valid UTF-8") from error
    return ReadQuery(
        start_ms=query.start_timestamp_ms,
        end_ms=query.end_timestamp_ms,
        matchers=tuple(matchers),
    )


class ReadAnswer(Protocol):
    """An answer that is built series by series, in the order of their labels."""

    def begin(self, query: int) -> bytes:
        """Begin the answer of the query with this number."""

    def add(self, labels: Labels, times_ms: I64, values: F64) -> bytes:
        """Add samples, later than those before of the same series; return bytes to send."""

    def finish(self) -> bytes:
        """Return the last bytes."""


class SampledAnswer:
    """All samples in one message, which is in memory as a whole."""

    def __init__(self) -> None:
        self._results: list[list[bytes]] = []
        self._labels: Labels | None = None
        self._series: Any = None

    def begin(self, query: int) -> bytes:
        """Begin the answer of the next query."""
        del query
        self._close()
        self._results.append([])
        return b""

    def add(self, labels: Labels, times_ms: I64, values: F64) -> bytes:
        """Add samples."""
        if labels != self._labels:
            self._close()
            self._labels, self._series = labels, _classes()["TimeSeries"]()
            _set_labels(self._series, labels)
        sample = self._series.samples.add
        for at, value in zip(times_ms.tolist(), values.tolist(), strict=True):
            sample(timestamp=at, value=value)
        return b""

    def finish(self) -> bytes:
        """Return the whole answer, compressed."""
        from cramjam import snappy  # noqa: PLC0415 - of the extra `doors`

        self._close()
        answer = bytearray()
        for found in self._results:
            answer += field_head(1, sum(map(len, found)))
            for one in found:
                answer += one
            found.clear()
        return bytes(snappy.compress_raw(bytes(answer)))

    def _close(self) -> None:
        if self._series is not None:
            data = self._series.SerializeToString()
            self._results[-1].append(field_head(1, len(data)) + data)
        self._labels = self._series = None


class ChunkedAnswer:
    """Chunks in frames that are sent while samples are read: a long series has several frames."""

    def __init__(self) -> None:
        self._query = 0
        self._labels: Labels = ()
        self._left: tuple[I64, F64] = _nothing()
        self._chunks: list[Any] = []
        self._bytes = 0

    def begin(self, query: int) -> bytes:
        """Begin the answer of the query with this number."""
        rest = self.finish()
        self._query, self._labels = query, ()
        return rest

    def add(self, labels: Labels, times_ms: I64, values: F64) -> bytes:
        """Add samples, and return the frames that are full."""
        frames = self.finish() if labels != self._labels else b""
        self._labels = labels
        times_ms = np.concatenate([self._left[0], times_ms])
        values = np.concatenate([self._left[1], values])
        whole = len(times_ms) // _CHUNK_SAMPLES * _CHUNK_SAMPLES
        for start in range(0, whole, _CHUNK_SAMPLES):
            end = start + _CHUNK_SAMPLES
            self._add_chunk(times_ms[start:end], values[start:end])
            if self._bytes >= FRAME_BYTES:
                frames += self._frame()
        self._left = (times_ms[whole:], values[whole:])
        return frames

    def finish(self) -> bytes:
        """Return the rest of the series."""
        if len(self._left[0]):
            self._add_chunk(*self._left)
        self._left = _nothing()
        return self._frame() if self._chunks else b""

    def _add_chunk(self, times_ms: I64, values: F64) -> None:
        times = times_ms.tolist()
        data = xor_chunk(times, values.view(np.uint64).tolist())
        chunk = _classes()["Chunk"](
            min_time_ms=times[0], max_time_ms=times[-1], type=_XOR, data=data
        )
        self._chunks.append(chunk)
        self._bytes += len(data)

    def _frame(self) -> bytes:
        series = _classes()["ChunkedSeries"](chunks=self._chunks)
        _set_labels(series, self._labels)
        message = _classes()["ChunkedReadResponse"](
            chunked_series=[series], query_index=self._query
        )
        data: bytes = message.SerializeToString()
        self._chunks, self._bytes = [], 0
        return varint(len(data)) + struct.pack(">I", crc32c(data)) + data


def _nothing() -> tuple[I64, F64]:
    return np.zeros(0, np.int64), np.zeros(0, np.float64)


def _set_labels(series: Any, labels: Labels) -> None:  # noqa: ANN401 - made at run time
    for name, value in labels:
        series.labels.add(name=name.encode(), value=value.encode())


def _crc32c_table() -> tuple[int, ...]:
    table = []
    for number in range(256):
        rest = number
        for _ in range(8):
            rest = rest >> 1 ^ (0x82F63B78 if rest & 1 else 0)
        table.append(rest)
    return tuple(table)


_CRC32C: Final = _crc32c_table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of bytes, RFC 3720 appendix B.4."""
    crc, table = 0xFFFFFFFF, _CRC32C
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


_BITS_OF_TIME: Final = ((14, 2, 0b10), (17, 3, 0b110), (20, 4, 0b1110))
"""The bits of a second difference of times, with their mark: its length and value."""
_LEADING_MAX: Final = 31


def xor_chunk(times_ms: Sequence[int], bits: Sequence[int]) -> bytes:
    """Return a chunk of the encoding XOR: at least one sample, at most 65,535.

    `bits` are the values as 64-bit numbers, so that NaN keeps its payload.
    """
    first = times_ms[0] << 1 ^ times_ms[0] >> 63
    head = struct.pack(">H", len(times_ms)) + varint(first & (1 << 64) - 1)
    head += struct.pack(">Q", bits[0])
    stream = size = 0
    leading, trailing, delta = -1, 0, 0
    for place in range(1, len(times_ms)):
        step = times_ms[place] - times_ms[place - 1]
        if place == 1:
            coded = varint(step)
            stream, size = int.from_bytes(coded, "big"), 8 * len(coded)
        else:
            number, width = _time_bits(step - delta)
            stream, size = stream << width | number, size + width
        delta = step
        changed = bits[place] ^ bits[place - 1]
        if not changed:
            stream, size = stream << 1, size + 1
            continue
        zeros_before = min(64 - changed.bit_length(), _LEADING_MAX)
        zeros_after = (changed & -changed).bit_length() - 1
        if leading >= 0 and zeros_before >= leading and zeros_after >= trailing:
            width = 64 - leading - trailing
            stream, size = stream << 2 | 0b10, size + 2
        else:
            leading, trailing = zeros_before, zeros_after
            width = 64 - leading - trailing
            # 64 bits are written as 0, because six bits end at 63.
            stream = stream << 13 | 0b11 << 11 | leading << 6 | width & 63
            size += 13
        stream, size = stream << width | changed >> trailing, size + width
    return head + (stream << -size % 8).to_bytes((size + 7) // 8, "big")


def _time_bits(change: int) -> tuple[int, int]:
    """Return the bits of a second difference of times, and their number."""
    if not change:
        return 0, 1
    for width, mark_width, mark in _BITS_OF_TIME:
        if 1 - (1 << width - 1) <= change <= 1 << width - 1:
            return mark << width | change & (1 << width) - 1, mark_width + width
    return 0b1111 << 64 | change & (1 << 64) - 1, 68
