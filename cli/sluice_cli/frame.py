"""`sluice frame`: make frames from NDJSON, and inspect them."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

from cyclopts import App, Parameter

from sluice_cli.shell.options import Json
from sluice_cli.shell.output import emit, format_size
from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import Kind
from sluice_protocol.frame import FRAME_VERSION, Frame, decode_frame, encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key, blob_key, digest_of
from sluice_protocol.ndjson import columns_from_ndjson, ndjson_from_columns
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import FRAME_BYTES_MAX, RAW_BYTES_MAX, Digest, ObjectKey

if TYPE_CHECKING:
    from rich.console import Console

app = App(name="frame", help="Make frames from NDJSON, and inspect them.")

INPUT_BYTES_MAX: Final = 4 * RAW_BYTES_MAX
"""NDJSON is larger than columns; no frame can contain more than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameReport:
    """The output of `sluice frame inspect`."""

    frame_sha256: Digest
    frame_bytes: int
    frame_version: int
    raw_bytes: int
    kind: Kind
    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    record_count: int
    min_ts: str | None
    max_ts: str | None
    resource: dict[str, str]
    accepted_key: ObjectKey
    raw_blob_key: ObjectKey


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFrame:
    """What a new frame contains in addition to its records.

    Attributes:
        agent: The agent id, 1 to 120 bytes of UTF-8.
        boot: The boot id, 1 to 64 bytes of UTF-8.
        seq_start: Sequence number of the first record.
        kind: Kind of the records.
        resource: Pairs of the resource, each as `KEY=VALUE`.
        plain: Store the columns without compression.
    """

    agent: str
    boot: str
    seq_start: int
    kind: Kind
    resource: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    plain: Annotated[bool, Parameter(negative="")] = False


@app.command
def encode(new: Annotated[NewFrame, Parameter(name="*")]) -> None:
    """Read NDJSON from standard input and write one frame to standard output."""
    columns = columns_from_ndjson(new.kind, _read_input(sys.stdin.buffer).split(b"\n"))
    identity = Identity(
        agent_id=new.agent,
        boot_id=new.boot,
        seq_start=new.seq_start,
        seq_end=new.seq_start + len(columns) - 1,
    )
    resource = tuple(_pair(text) for text in new.resource)
    frame = encode_frame(
        identity=identity,
        columns=columns,
        resource=resource,
        compress=not new.plain,
    )
    _write(frame)


@app.command
def inspect(
    file: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    records: Annotated[bool, Parameter(negative="")] = False,
    as_json: Json = False,
) -> None:
    """Validate a frame and show its content.

    Args:
        file: The frame; `-` reads standard input.
        records: Print the records as NDJSON instead.
        as_json: Print JSON for programs.
    """
    data = _read_frame(file)
    frame = decode_frame(data)
    if records:
        for line in ndjson_from_columns(frame.columns):
            sys.stdout.write(line + "\n")
        return
    report = report_of(data, frame)
    emit(report, as_json=as_json, human=lambda console: _draw(console, report))


def report_of(data: bytes, frame: Frame) -> FrameReport:
    """Return the description of a frame and its bytes."""
    envelope, digest = frame.envelope, digest_of(data)
    return FrameReport(
        frame_sha256=digest,
        frame_bytes=len(data),
        frame_version=FRAME_VERSION,
        raw_bytes=frame.raw_bytes,
        kind=envelope.kind,
        agent_id=envelope.agent_id,
        boot_id=envelope.boot_id,
        seq_start=envelope.seq_start,
        seq_end=envelope.seq_end,
        record_count=envelope.count,
        min_ts=None if envelope.min_ts_ns is None else format_rfc3339(envelope.min_ts_ns),
        max_ts=None if envelope.max_ts_ns is None else format_rfc3339(envelope.max_ts_ns),
        resource=dict(envelope.resource),
        accepted_key=accepted_key(frame.identity),
        raw_blob_key=blob_key(digest),
    )


def _draw(console: "Console", report: FrameReport) -> None:
    size = f"{format_size(report.frame_bytes)}, {format_size(report.raw_bytes)} before compression"
    span = "-" if report.min_ts is None else f"{report.min_ts} to {report.max_ts}"
    rows = (
        ("agent", report.agent_id),
        ("boot", report.boot_id),
        ("sequence", f"{report.seq_start} to {report.seq_end}"),
        ("records", f"{report.record_count} {report.kind}"),
        ("times", span),
        ("size", size),
        ("version", str(report.frame_version)),
        ("resource", ", ".join(f"{key}={value}" for key, value in report.resource.items()) or "-"),
        ("sha256", report.frame_sha256),
        ("identity", report.accepted_key),
        ("blob", report.raw_blob_key),
    )
    for name, value in rows:
        console.print(f"{name:<9} {value}", markup=False)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise BadUsage(f"resource must be KEY=VALUE, resource=`{text}`")
    return key, value


def _read_input(source: BinaryIO) -> bytes:
    data = source.read(INPUT_BYTES_MAX + 1)
    if len(data) > INPUT_BYTES_MAX:
        raise BadUsage(f"standard input is too large for a frame, limit_bytes=`{INPUT_BYTES_MAX}`")
    return data


def _read_frame(file: Path) -> bytes:
    if str(file) == "-":
        return sys.stdin.buffer.read(FRAME_BYTES_MAX + 1)
    try:
        with file.open("rb") as source:
            return source.read(FRAME_BYTES_MAX + 1)
    except OSError as error:
        raise BadUsage(f"cannot read the frame: {error.strerror}, file=`{file}`") from error


def _write(data: bytes) -> None:
    if sys.stdout.isatty():
        raise BadUsage("a frame is binary: redirect standard output to a file")
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
