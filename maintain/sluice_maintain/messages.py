"""What the scheduling process and a worker process send to each other, one JSON value per line."""

from typing import Final

import msgspec

from sluice_maintain.lease_rules import JobState, RunResult
from sluice_maintain.settings import MaintainSettings
from sluice_maintain.tasks import TaskName


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, tag="job"):
    """Run a task; `once` ends ingestion when the backlog is in the lake."""

    number: int
    task: TaskName
    store_url: str
    settings: MaintainSettings
    once: bool = False


class StopRequest(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Stop a job at its next safe point."""

    number: int


class JobProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """What a job that runs has reached."""

    number: int
    state: JobState


class JobEnd(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """The result of a job; `worker_ends` if the process cannot run others: its JVM has ended."""

    number: int
    result: RunResult
    worker_ends: bool = False


WorkerRequest = JobRequest | StopRequest
LINE_BYTES_MAX: Final = 1024 * 1024


def _decode_path(kind: type, value: object) -> object:
    return kind(value)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=str)
_REQUESTS: Final = msgspec.json.Decoder(WorkerRequest, dec_hook=_decode_path)
_REPORTS: Final = msgspec.json.Decoder(JobEnd | JobProgress)


def encode_line(message: WorkerRequest | JobEnd | JobProgress) -> bytes:
    """Return a message as one line; a path is a string."""
    return _ENCODER.encode(message) + b"\n"


def decode_request(line: bytes) -> WorkerRequest:
    """Return the request of a line."""
    request: WorkerRequest = _REQUESTS.decode(line)
    return request


def decode_report(line: bytes) -> JobEnd | JobProgress:
    """Return the progress or the result of a line."""
    report: JobEnd | JobProgress = _REPORTS.decode(line)
    return report
