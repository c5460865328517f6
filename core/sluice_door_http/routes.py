"""What a protocol of a door defines: how a request is read, and its three kinds of responses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import hdrs, web

from sluice_door_http.paths import USUAL_METHODS, Method
from sluice_doors.decoded import DecodedRecords
from sluice_doors.timed_lines import TimedLines
from sluice_protocol.request_identity import DoorName, IdentitySource
from sluice_protocol.units import UnixNs
from sluice_web.problems import RETRY_AFTER_S, Problem

SERVER_ERRORS: Final = 500
LATER: Final = 503
RECEIVED_NS: Final = web.RequestKey("received_ns", int)
"""When a request was received, Unix ns; set before it is read or refused."""

Decode = Callable[[bytes, UnixNs], Sequence[DecodedRecords]]
"""Decodes a decompressed body that was received at a time."""


class DoorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the head of a request states.

    Attributes:
        door: The protocol.
        decode: Decodes the body.
        coding: The Content-Encoding, or the one that the protocol prescribes.
        key: The name that came with the request; empty where there is none.
        read_lines: Reads a small body so that its records can be decoded together with others; None
            where the protocol has no such form.
    """

    door: DoorName
    decode: Decode
    coding: str
    key: bytes = b""
    read_lines: Callable[[bytes], TimedLines | None] | None = None


class DoorResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was accepted.

    Attributes:
        records: The number of records, duplicates included.
        unreadable: Those of them that were kept raw.
        duplicate: Whether all of them were accepted before this request.
        source: What identifies the request.
        combined: Whether records are in a batch with those of other requests, so that a repetition
            is found within a window of time only.
    """

    records: int
    unreadable: int
    duplicate: bool
    source: IdentitySource
    combined: bool = False

    @property
    def identity(self) -> str:
        """What identifies the request, as the response reports it."""
        is_bounded = self.combined and self.source != "none"
        return f"{self.source}; combined" if is_bounded else self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorRoute:
    """One path of a protocol.

    Attributes:
        door: The protocol.
        path: The path.
        summary: One line for the OpenAPI description.
        media_type: The media type of most request bodies.
        read: Reads the head of a request.
        respond: Returns the response after every record was accepted.
        refuse: Returns the response to a request that is not accepted, or not yet.
        methods: The methods that its clients use.
        parameters: The query parameters that it reads.
        ignores_others: As in `check_query`: whether the protocol is that of another product, whose
            clients send parameters that the door does not need.
    """

    door: DoorName
    path: str
    summary: str
    media_type: str
    read: Callable[[web.Request], DoorRequest]
    respond: Callable[[web.Request, DoorResult], web.Response]
    refuse: Callable[[web.Request, Problem], web.Response]
    methods: tuple[Method, ...] = USUAL_METHODS
    parameters: tuple[str, ...] = ()
    ignores_others: bool = True


def request_head(
    request: web.Request,
    door: DoorName,
    decode: Decode,
    *,
    usual_coding: str = "identity",
    read_lines: Callable[[bytes], TimedLines | None] | None = None,
) -> DoorRequest:
    """Return what the head of a request states.

    Args:
        request: The request.
        door: The protocol.
        decode: Decodes the body.
        usual_coding: The coding of a body whose head names none.
        read_lines: As in `DoorRequest`.
    """
    return DoorRequest(
        door=door,
        decode=decode,
        coding=request.headers.get(hdrs.CONTENT_ENCODING, usual_coding),
        key=idempotency_key(request),
        read_lines=read_lines,
    )


def idempotency_key(request: web.Request) -> bytes:
    """Return the name that the sender has given to a request; empty where there is none."""
    return request.headers.get("Idempotency-Key", "").encode(errors="surrogateescape")


def status_for(problem: Problem) -> int:
    """Return the status of a refusal; trouble of the gateway or the store is always 503.

    Most clients drop a batch on any other error of the server than 503.
    """
    return LATER if problem.status >= SERVER_ERRORS else problem.status


def retry_later(response: web.Response) -> web.Response:
    """Add `Retry-After` to a 503."""
    if response.status == LATER:
        response.headers[hdrs.RETRY_AFTER] = str(RETRY_AFTER_S)
    return response


def readable_detail(problem: Problem) -> str:
    """Return the reason of a refusal as text that can be encoded."""
    return problem.detail.encode(errors="replace").decode()


def refuse_in_text(request: web.Request, problem: Problem) -> web.Response:
    """Return a refusal as plain text, which clients log."""
    del request
    return retry_later(web.Response(status=status_for(problem), text=readable_detail(problem)))
