"""A double of the gateway for the agent's tests: an aiohttp server with the protocol's responses.

It verifies signatures and digests, decodes every frame, keeps what it accepted, and responds with
409 to an identity with other bytes. `script` may respond instead.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from sluice_protocol.columns import LogColumns
from sluice_protocol.errors import SluiceError, status_of
from sluice_protocol.frame import Frame, decode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key, digest_of
from sluice_protocol.signatures import (
    PublicKey,
    parse_content_digest,
    read_signature,
    verify_signature,
    view_request,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it was received."""

    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Scripted:
    """A response instead of the double's; `drop` cuts the connection without one."""

    status: int = 503
    code: str = "store_unavailable"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    drop: bool = False
    apply: bool = False
    """Accept the batch first: the response is lost or wrong, but the batch is stored."""
    delay_s: float = 0.0


Script = Callable[[int, Seen], Scripted | None]


class GatewayDouble:
    """Runs the server in a thread; use it as a context manager."""

    def __init__(
        self,
        *,
        keys: dict[str, PublicKey] | None = None,
        script: Script | None = None,
        accepted: dict[Identity, bytes] | None = None,
        port: int = 0,
    ) -> None:
        self.keys = keys
        self.script = script
        self.accepted = {} if accepted is None else accepted
        self.seen: list[Seen] = []
        self.problems: list[str] = []
        self.port = port
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._done.set)
            self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def frames(self) -> list[Frame]:
        """Return every accepted frame, in the order of its sequence within its boot."""
        order = sorted(self.accepted, key=lambda i: (i.boot_id, i.seq_start))
        return [decode_frame(self.accepted[identity]) for identity in order]

    def bodies(self) -> list[bytes]:
        """Return the bodies of every accepted log record."""
        columns = [frame.columns for frame in self.frames()]
        return [
            body for one in columns if isinstance(one, LogColumns) for body in one.body.slices()
        ]

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        app = web.Application(client_max_size=32 * 1024 * 1024)
        app.router.add_post("/v1/batches", self._post)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._done.wait()
        await runner.cleanup()

    async def _post(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        seen = Seen(headers={k.lower(): v for k, v in request.headers.items()}, body=body)
        self.seen.append(seen)
        scripted = self.script(len(self.seen) - 1, seen) if self.script else None
        if scripted is None:
            return self._answer(request, seen)
        if scripted.apply:
            self._answer(request, seen)
        if scripted.delay_s:
            await asyncio.sleep(scripted.delay_s)
        if scripted.drop:
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        if scripted.body is not None:
            return web.Response(
                status=scripted.status, body=scripted.body, headers=scripted.headers
            )
        return problem(scripted.status, scripted.code, headers=scripted.headers)

    def _answer(self, request: web.Request, seen: Seen) -> web.Response:
        try:
            self._authenticate(request, seen)
            digest = digest_of(seen.body)
            assert parse_content_digest(seen.headers["content-digest"]) == digest
            frame = decode_frame(seen.body)
        except SluiceError as error:
            self.problems.append(str(error))
            return problem(status_of(error.code), error.code)
        identity = frame.envelope.identity
        before = self.accepted.setdefault(identity, seen.body)
        if before != seen.body:
            self.problems.append(f"other bytes for {identity}")
            return problem(409, "identity_conflict")
        return accepted(identity, digest)

    def _authenticate(self, request: web.Request, seen: Seen) -> None:
        if self.keys is None:
            return
        view = view_request(
            method=request.method,
            authority=request.headers["Host"],
            path=request.rel_url.raw_path,
            query=request.rel_url.raw_query_string,
            headers=request.headers.items(),
        )
        claim = read_signature(view, now_s=int(time.time()))
        assert claim.covers_body
        for name in ("sluice-retry", "sluice-high-water"):
            if name in seen.headers:
                assert f'"{name}"'.encode() in claim.base
        verify_signature(claim, self.keys[claim.key_id])


def accepted(identity: Identity, digest: str) -> web.Response:
    body: dict[str, Any] = {
        "status": "accepted",
        "duplicate": False,
        "agent_id": identity.agent_id,
        "boot_id": identity.boot_id,
        "seq_start": identity.seq_start,
        "seq_end": identity.seq_end,
        "frame_sha256": digest,
        "manifest_key": accepted_key(identity),
        "accepted_at_unix_ns": 1,
        "collector_id": "double",
    }
    return web.json_response(body)


def problem(status: int, code: str, *, headers: dict[str, str] | None = None) -> web.Response:
    document = {"status": status, "code": code, "retryable": status >= 500, "effect": "unknown"}
    return web.json_response(
        document, status=status, content_type="application/problem+json", headers=headers
    )


def answers(*codes: tuple[int, str], then: Scripted | None = None) -> Script:
    """Return a script that responds with these in turn, then with `then` or as the double does."""
    listed = list(codes)

    def script(index: int, _: Seen) -> Scripted | None:
        return Scripted(*listed[index]) if index < len(listed) else then

    return script


def same_bytes(seen: Iterable[Seen]) -> bool:
    """Return True if every identity was always sent with the same bytes."""
    first: dict[Identity, bytes] = {}
    for one in seen:
        identity = decode_frame(one.body).envelope.identity
        if first.setdefault(identity, one.body) != one.body:
            return False
    return True
