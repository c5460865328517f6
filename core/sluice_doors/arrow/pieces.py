"""Cut a large request in protobuf into requests with few records, without parsing these.

Arrow takes seven times the memory of a request. Each piece repeats the fields around its records,
so the records of all pieces are those of the request. OTLP logs and metrics have the same fields
around records, and the streams of Loki those of a scope. Only field numbers and lengths are read. A
request with a field that is not known here, or that is damaged, is not cut.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

PIECE_BYTES: Final = 2 * 1024 * 1024
"""Bytes of the records of a piece, about."""
CUT_BYTES: Final = 8 * 1024 * 1024
"""Smaller requests are not cut: finding the records takes a tenth of the time of decoding."""
_MESSAGE, _SECOND, _URL = 0x0A, 0x12, 0x1A
"""Tags of the fields 1, 2 and 3 with a length; no other field is known here."""
_TAGS: Final = frozenset((_MESSAGE, _SECOND, _URL))
_LONG: Final = 0x80
_SHIFT_MAX: Final = 28
"""A length has at most five bytes."""


class NotCut(Exception):
    """The request cannot be cut."""


@dataclass(frozen=True, slots=True)
class RequestScope:
    """The records of a scope of OTLP, the entries of a stream of Loki, or the series of Prometheus.

    `fields` are the other fields, as they were sent. A run is where records begin and end; it has
    about the size of a piece, at most.
    """

    fields: bytes
    runs: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class RequestResource:
    """The scopes with records of a resource.

    `fields` are the other fields of `ResourceLogs` or `ResourceMetrics`, as they were sent. There
    is at least one scope.
    """

    fields: bytes
    scopes: list[RequestScope] = field(default_factory=list)


def find_records(body: bytes, *, piece_bytes: int = PIECE_BYTES) -> list[RequestResource]:
    """Return where the records of a request of OTLP are."""
    resources = [_resource(body, start, end, piece_bytes) for start, end in _messages(body)]
    return [one for one in resources if one.scopes]


def cut_request(
    body: bytes, resources: list[RequestResource], *, piece_bytes: int = PIECE_BYTES
) -> Iterator[bytes]:
    """Yield requests with the same records, in order."""
    view = memoryview(body)
    done: list[bytes] = []  # the resources of this piece
    size_bytes = 0
    for resource in resources:
        scopes: list[bytes] = []
        for scope in resource.scopes:
            for start, end in scope.runs:
                scopes.append(_message(_SECOND, scope.fields, view[start:end]))
                size_bytes += len(scopes[-1])
                if size_bytes >= piece_bytes:
                    yield b"".join([*done, _message(_MESSAGE, resource.fields, *scopes)])
                    done, scopes, size_bytes = [], [], 0
        if scopes:
            done.append(_message(_MESSAGE, resource.fields, *scopes))
            size_bytes += len(resource.fields)
    if done:
        yield b"".join(done)


def find_streams(body: bytes, *, piece_bytes: int = PIECE_BYTES) -> list[RequestScope]:
    """Return where the entries of a push request of Loki are."""
    streams = [_scope(body, start, end, piece_bytes) for start, end in _messages(body)]
    return [one for one in streams if one.runs]


def cut_streams(
    body: bytes, streams: list[RequestScope], *, piece_bytes: int = PIECE_BYTES
) -> Iterator[bytes]:
    """Yield push requests with the same entries, in order."""
    view = memoryview(body)
    done: list[bytes] = []
    size_bytes = 0
    for stream in streams:
        for start, end in stream.runs:
            done.append(_message(_MESSAGE, stream.fields, view[start:end]))
            size_bytes += len(done[-1])
            if size_bytes >= piece_bytes:
                yield b"".join(done)
                done, size_bytes = [], 0
    if done:
        yield b"".join(done)


def _messages(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the content of each message of a request begins and ends."""
    for tag, _, start, end in _fields(body, 0, len(body)):
        if tag != _MESSAGE:
            raise NotCut
        yield start, end


def _resource(body: bytes, at: int, end: int, piece_bytes: int) -> RequestResource:
    fields, scopes = [], []
    for tag, start, inner, after in _fields(body, at, end):
        if tag == _SECOND:
            scope = _scope(body, inner, after, piece_bytes)
            if scope.runs:
                scopes.append(scope)
        else:
            fields.append(body[start:after])
    return RequestResource(b"".join(fields), scopes)


def find_elements(body: bytes, *, piece_bytes: int = PIECE_BYTES) -> RequestScope:
    """Return where the elements of the first list of a request are; each run is such a request."""
    return _scope(body, 0, len(body), piece_bytes, tag=_MESSAGE)


def _scope(body: bytes, at: int, end: int, piece_bytes: int, *, tag: int = _SECOND) -> RequestScope:
    """Return the runs of records, which have a tag; this loop runs for each record."""
    fields, runs, run = [], [], at
    while at < end:
        after = _field_end(body, at)
        if body[at] != tag:
            if at > run:
                runs.append((run, at))
            fields.append(body[at:after])
            run = after
        elif after - run >= piece_bytes:
            runs.append((run, after))
            run = after
        at = after
    if at != end:
        raise NotCut
    if end > run:
        runs.append((run, end))
    return RequestScope(b"".join(fields), runs)


def _field_end(body: bytes, at: int) -> int:
    if body[at] not in _TAGS:
        raise NotCut
    size, inner = _varint(body, at + 1)
    return inner + size


def _fields(body: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield tag, start, start of the content and end of each field between two places."""
    while at < end:
        tag = body[at]
        if tag not in _TAGS:
            raise NotCut
        size, inner = _varint(body, at + 1)
        after = inner + size
        if after > end:
            raise NotCut
        yield tag, at, inner, after
        at = after


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return a number, and the place after it."""
    value = shift = 0
    try:
        while body[at] >= _LONG:
            if shift > _SHIFT_MAX:
                raise NotCut
            value |= (body[at] - _LONG) << shift
            shift += 7
            at += 1
        return value | body[at] << shift, at + 1
    except IndexError as error:
        raise NotCut from error


def _message(tag: int, *parts: bytes | memoryview) -> bytes:
    head, size = bytearray([tag]), sum(map(len, parts))
    while size >= _LONG:
        head.append(size % _LONG + _LONG)
        size >>= 7
    head.append(size)
    return b"".join((head, *parts))
