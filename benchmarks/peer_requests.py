"""Requests of the benchmark `peers`: the same log lines for every server."""

import functools
import itertools
import json
import random
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from benchmarks.accept_load import AT_NS, plain_headers, signed_headers
from sluice_protocol.columns import LogColumns, TextColumn
from sluice_protocol.frame import encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import digest_of
from sluice_protocol.upload_http import (
    FRAME_LIST_MEDIA_TYPE,
    FRAME_MEDIA_TYPE,
    UPLOAD_LIST_PATH,
    UPLOAD_PATH,
    ListedFrame,
    encode_frame_list,
)

OTLP_PATH: Final = "/v1/logs"
_LINE_BYTES: Final = 220
_ENVELOPE_BYTES: Final = 190
_RECORD_BYTES: Final = 12
"""A record has a time of 8 bytes and an offset of 4 in addition to its line."""
_SEQUENCE: Final = itertools.count(step=100_000)
"""The first sequence number of each batch; no batch has as many records as a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request as the load program sends it; only HTTP uses path and header fields."""

    body: bytes
    path: str = ""
    headers: dict[str, str]


def write_requests(path: Path, requests: Iterable[PreparedRequest]) -> None:
    """Write the file that the load program reads."""
    with path.open("wb") as file:
        for one in requests:
            head = json.dumps({"path": one.path, "headers": one.headers}).encode()
            file.write(struct.pack("<I", len(head)) + head)
            file.write(struct.pack("<I", len(one.body)) + one.body)


@functools.cache
def log_lines(size_bytes: int) -> tuple[str, ...]:
    """Return the lines of a batch of about `size_bytes`."""
    rng = random.Random(1)
    count = max(1, (size_bytes - _ENVELOPE_BYTES) // _LINE_BYTES)
    width = (size_bytes - _ENVELOPE_BYTES) // count - _RECORD_BYTES
    return tuple(
        f"GET /cart/{rng.getrandbits(128):032x} {number} took {rng.random():.4f} ms".ljust(
            width, "."
        )
        for number in range(count)
    )


@functools.cache
def _columns(size_bytes: int) -> LogColumns:
    lines = [line.encode() for line in log_lines(size_bytes)]
    edges = np.cumsum([0, *map(len, lines)], dtype=np.int32)
    return LogColumns(
        ts=AT_NS + np.arange(len(lines), dtype=np.int64),
        body=TextColumn(offsets=edges, data=b"".join(lines)),
        severity=None,
        attributes=None,
    )


def frames(size_bytes: int) -> Iterator[bytes]:
    """Yield frames with identities that no other frame has, without compression."""
    columns = _columns(size_bytes)
    for first in _SEQUENCE:
        identity = Identity(
            agent_id="bench", boot_id="peers", seq_start=first, seq_end=first + len(columns.ts) - 1
        )
        yield encode_frame(identity=identity, columns=columns, compress=False)


def upload_requests(size_bytes: int, port: int) -> Iterator[PreparedRequest]:
    """Yield signed uploads of single frames for the gateway on a port."""
    for frame in frames(size_bytes):
        yield _signed(frame, UPLOAD_PATH, FRAME_MEDIA_TYPE, port)


def list_requests(size_bytes: int, count: int, port: int) -> Iterator[PreparedRequest]:
    """Yield signed uploads of lists of `count` frames for the gateway on a port."""
    made = frames(size_bytes)
    while True:
        chosen = [ListedFrame(frame=frame) for frame in itertools.islice(made, count)]
        yield _signed(encode_frame_list(chosen), UPLOAD_LIST_PATH, FRAME_LIST_MEDIA_TYPE, port)


def _signed(body: bytes, path: str, media_type: str, port: int) -> PreparedRequest:
    headers = signed_headers(plain_headers(body, digest_of(body), media_type), path, port)
    return PreparedRequest(body=body, path=path, headers=headers)


def otlp_requests(size_bytes: int) -> Iterator[PreparedRequest]:
    """Yield OTLP requests with the lines of a frame, in protobuf."""
    headers = {"Content-Type": "application/x-protobuf"}
    made = ExportLogsServiceRequest()
    records = made.resource_logs.add().scope_logs.add().log_records
    for number, line in enumerate(log_lines(size_bytes)):
        records.add(time_unix_nano=AT_NS + number).body.string_value = line
    body = bytes(made.SerializeToString())
    yield from itertools.repeat(PreparedRequest(body=body, path=OTLP_PATH, headers=headers))


def message_requests(size_bytes: int) -> Iterator[PreparedRequest]:
    """Yield frames as messages for a broker, which does not read them."""
    for frame in frames(size_bytes):
        yield PreparedRequest(body=frame, headers={})
