"""An HTTP server of buckets in memory that checks signatures, for tests with the real client.

Also here: check of SigV4 signatures as S3 makes it, written from the specification, not from the
signer.

It supports path style, and virtual-host style for `<bucket>.localhost`. A fault happens on the
connection: a timeout is a response that is never sent, a reset is an aborted connection.

Source: AWS General Reference, "Authenticating Requests (AWS Signature Version 4)".
"""

import asyncio
import hashlib
import hmac
import random
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Final
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from aiohttp import web
from multidict import CIMultiDict
from support.memory_bucket.bucket import MemoryBucket, S3Reply
from support.memory_bucket.faults import Call, Fault, FaultPlan, NoFaults
from support.memory_bucket.transport import CLOCK_STEP_NS

from sluice_protocol.clock import Clock
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_store.port import ListedIncarnation, ListedObject, Versioning
from sluice_store.replication import ReplicationRules

_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<access>[^/]+)/(?P<scope>[^,]+), ?"
    r"SignedHeaders=(?P<signed>[^,]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)
_SKEW_S: Final = 15 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """What a signature covers, as received.

    Attributes:
        method: The method.
        path: The path, still percent-encoded.
        query: The query, still percent-encoded.
        headers: The headers, names in any case.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


def access_key_of(headers: Mapping[str, str]) -> str:
    """Return the access key that signed a request, or an empty text."""
    found = _AUTHORIZATION.fullmatch(headers.get("Authorization", ""))
    return "" if found is None else found["access"]


def check_signature(request: SignedRequest, secrets: Mapping[str, str], now_ns: int) -> str | None:
    """Return the error code of a request that must be refused, or None for a valid signature."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    if found is None:
        return "AccessDenied"
    secret = secrets.get(found["access"])
    if secret is None:
        return "InvalidAccessKeyId"
    stamp = headers.get("x-amz-date", "")
    try:
        signed_at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return "AccessDenied"
    if abs(signed_at.timestamp() - now_ns / NS_PER_S) > _SKEW_S:
        return "RequestTimeTooSkewed"
    names = found["signed"].split(";")
    if "host" not in names or any(name not in headers for name in names):
        return "AccessDenied"
    canonical = _canonical(request, headers, names)
    wanted = _signature(secret, found["scope"], stamp, canonical)
    return None if hmac.compare_digest(wanted, found["signature"]) else "SignatureDoesNotMatch"


def _canonical(request: SignedRequest, headers: Mapping[str, str], names: list[str]) -> str:
    pairs = [part.partition("=") for part in request.query.split("&") if part]
    query = sorted((_encode(name), _encode(text)) for name, _, text in pairs)
    lines = [
        request.method,
        quote(unquote(request.path), safe="/-_.~"),
        "&".join(f"{name}={text}" for name, text in query),
        *(f"{name}:{' '.join(headers[name].split())}" for name in names),
        "",
        ";".join(names),
        headers.get("x-amz-content-sha256", ""),
    ]
    return "\n".join(lines)


def _encode(text: str) -> str:
    return quote(unquote(text), safe="-_.~")


def _signature(secret: str, scope: str, stamp: str, canonical: str) -> str:
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    return hmac.new(key, text.encode(), "sha256").hexdigest()


BODY_BYTES_MAX: Final = 64 * 1024 * 1024
_VIRTUAL: Final = ".localhost"
_APPLIED: Final = frozenset(
    {
        Fault.TIMEOUT_AFTER,
        Fault.RESET_AFTER,
        Fault.APPLIED_LATE,
        Fault.TRUNCATED,
        Fault.ERROR_AFTER,
        Fault.CLOCK_JUMP,
        Fault.CRASH_AFTER,
    }
)
_ANSWERS: Final[Mapping[Fault, tuple[int, str]]] = {
    Fault.CONFLICT: (409, "ConditionalRequestConflict"),
    Fault.PRECONDITION: (412, "PreconditionFailed"),
    Fault.SLOW_DOWN: (503, "SlowDown"),
    Fault.ERROR_AFTER: (500, "InternalError"),
    Fault.DENIED: (403, "AccessDenied"),
}
_RESETS: Final = frozenset({Fault.RESET_BEFORE, Fault.RESET_AFTER})


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedCall:
    """A request with a valid signature, as a policy sees it.

    Attributes:
        access_key: The access key that signed it.
        method: The method.
        key: The object's key; empty for a request to the bucket.
        query: The parameters of the query.
        headers: The headers.
        tls: Whether it came over TLS.
    """

    access_key: str
    method: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    tls: bool


Guard = Callable[[GuardedCall], bool]
"""Whether the policies of the bucket allow a request."""


@dataclass(slots=True)
class MemoryServer:
    """A running server of buckets in memory.

    Attributes:
        endpoint: Its URL.
        secrets: Secret keys by access key.
        plan: The faults; it may be changed while the server runs.
        clock: Time of the buckets.
        buckets: The buckets by name.
        guard: The policies, evaluated before any precondition as on S3; None allows everything.
        seen: Every request received, as a plan receives it.
        headers: The headers of every request received.
    """

    secrets: Mapping[str, str]
    clock: Clock
    plan: FaultPlan = field(default_factory=NoFaults)
    endpoint: str = ""
    buckets: dict[str, MemoryBucket] = field(default_factory=dict)
    guard: Guard | None = None
    seen: list[Call] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)

    def make_bucket(self, name: str, versioning: Versioning = Versioning.ENABLED) -> MemoryBucket:
        """Create an empty bucket and return it."""
        self.buckets[name] = MemoryBucket(
            clock=self.clock,
            rng=random.Random(name),
            name=name,
            versioning=versioning,
        )
        return self.buckets[name]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Respond to one request."""
        body = await request.read()
        name, key = _place(request)
        refusal = self._check(request, name)
        if refusal is not None:
            return self._render(request, refusal)
        if not key:
            return self._bucket_request(request, name, body)
        call = self._note(request, key)
        fault = self.plan.fault_of(call)
        bucket = self.buckets[name]
        if fault is Fault.CLOCK_JUMP:
            bucket.clock_offset_ns += CLOCK_STEP_NS
        reply = None
        if fault is None or fault in _APPLIED:
            reply = _perform(bucket, request, key, body)
        return await self._happen(request, fault, reply)

    async def _happen(
        self, request: web.Request, fault: Fault | None, reply: S3Reply | None
    ) -> web.StreamResponse:
        if fault is not None and fault in _ANSWERS:
            status, code = _ANSWERS[fault]
            return self._render(request, self.refusal(status, code))
        if fault is Fault.TRUNCATED and reply is not None:
            return await _break_off(request, reply)
        if fault in _RESETS and request.transport is not None:
            request.transport.abort()
        elif fault is not None and fault is not Fault.CLOCK_JUMP:
            await asyncio.Event().wait()  # until the client times out and closes its connection
        return self._render(request, reply or self.refusal(500, "InternalError"))

    def refusal(self, status: int, code: str) -> S3Reply:
        """Return a response without an effect on any bucket."""
        bucket = next(iter(self.buckets.values()), None)
        bucket = bucket or MemoryBucket(clock=self.clock, rng=random.Random(0))
        return bucket.refusal(status, code)

    def _check(self, request: web.Request, name: str) -> S3Reply | None:
        signed = SignedRequest(
            method=request.method,
            path=request.rel_url.raw_path,
            query=request.rel_url.raw_query_string,
            headers=request.headers,
        )
        code = check_signature(signed, self.secrets, self.clock.now_ns())
        if code is not None:
            return self.refusal(403, code)
        making = request.method == "PUT" and not _place(request)[1]
        if name not in self.buckets and not making:
            return self.refusal(404, "NoSuchBucket")
        if self.guard is not None and not self.guard(_guarded(request)):
            return self.refusal(403, "AccessDenied")
        return None

    def _note(self, request: web.Request, key: str) -> Call:
        conditional = "If-Match" in request.headers or "If-None-Match" in request.headers
        call = Call(number=len(self.seen), method=request.method, key=key, conditional=conditional)
        self.seen.append(call)
        self.headers.append(CIMultiDict(request.headers))
        return call

    def _bucket_request(self, request: web.Request, name: str, body: bytes) -> web.Response:
        query = request.rel_url.query
        if request.method == "PUT" and "versioning" not in query:
            self.make_bucket(name, Versioning.OFF)
            return web.Response()
        bucket = self.buckets[name]
        if request.method == "PUT":
            suspended = Versioning.SUSPENDED.encode() in body
            bucket.versioning = Versioning.SUSPENDED if suspended else Versioning.ENABLED
            return web.Response()
        text = ""
        if "replication" in query:
            rules = bucket.replication.get(name)
            if rules is None:
                return self._render(
                    request, bucket.refusal(404, "ReplicationConfigurationNotFoundError")
                )
            text = replication_xml(rules)
        elif "versioning" in query:
            text = versioning_xml(bucket.versioning)
        elif "versions" in query:
            text = _versions_page(bucket, query)
        elif request.method == "GET":
            text = _objects_page(bucket, query)
        date = bucket.refusal(200, "").headers
        return web.Response(text=text, content_type="application/xml", headers=date)

    def _render(self, request: web.Request, reply: S3Reply) -> web.Response:
        headers = dict(reply.headers)
        body = reply.body
        if reply.code:
            headers.pop("Content-Length", None)
            body = b"" if request.method == "HEAD" else error_xml(reply.code).encode()
        return web.Response(status=reply.status, headers=headers, body=body)


async def _break_off(request: web.Request, reply: S3Reply) -> web.StreamResponse:
    """Send the head and half of the body, and close the connection."""
    answer = web.StreamResponse(status=reply.status, headers=reply.headers)
    answer.content_length = max(len(reply.body), 2)
    await answer.prepare(request)
    await answer.write(reply.body[: len(reply.body) // 2] or b"x")
    if request.transport is not None:
        request.transport.close()
    return answer


def _place(request: web.Request) -> tuple[str, str]:
    """Return bucket and key, from the host or from the path."""
    path = unquote(request.rel_url.raw_path).removeprefix("/")
    host = request.host.partition(":")[0]
    if host.endswith(_VIRTUAL):
        return host.removesuffix(_VIRTUAL), path
    bucket, _, key = path.partition("/")
    return bucket, key


def _guarded(request: web.Request) -> GuardedCall:
    return GuardedCall(
        access_key=access_key_of(request.headers),
        method=request.method,
        key=_place(request)[1],
        query=request.rel_url.query,
        headers=request.headers,
        tls=request.secure,
    )


def _perform(bucket: MemoryBucket, request: web.Request, key: str, body: bytes) -> S3Reply:
    incarnation = request.rel_url.query.get("versionId")
    headers = CIMultiDict(request.headers)
    if request.method == "PUT":
        source = unquote(headers.get("x-amz-copy-source", "")).lstrip("/").partition("/")[2]
        return bucket.copy(source, key, headers) if source else bucket.put(key, body, headers)
    if request.method == "DELETE":
        return bucket.delete(key, headers, incarnation)
    return bucket.get(key, headers, incarnation)


def _objects_page(bucket: MemoryBucket, query: Mapping[str, str]) -> str:
    after = query.get("continuation-token") or query.get("start-after", "")
    rows = bucket.objects(query.get("prefix", ""), after)
    page = list(islice(rows, bucket.page_keys + 1))
    more = len(page) > bucket.page_keys
    page = page[: bucket.page_keys]
    return objects_xml(page, page[-1].key if more else None)


def _versions_page(bucket: MemoryBucket, query: Mapping[str, str]) -> str:
    after = ObjectKey(query.get("key-marker", ""))
    page: list[ListedIncarnation] = []
    for row in bucket.incarnations(query.get("prefix", ""), after):
        if len(page) >= bucket.page_keys and row.key != page[-1].key:
            return versions_xml(page, page[-1].key)
        page.append(row)
    return versions_xml(page, None)


@asynccontextmanager
async def serve_memory(
    secrets: Mapping[str, str],
    *,
    clock: Clock | None = None,
    plan: FaultPlan | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[MemoryServer]:
    """Run a server on a free port of this machine.

    Args:
        secrets: Secret keys by access key.
        clock: Time of its buckets; the machine's when None.
        plan: The faults; none when None.
        tls: Its certificate; plain HTTP when None.
    """
    server = MemoryServer(secrets=secrets, clock=clock or SystemClock(), plan=plan or NoFaults())
    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(
        app, auto_decompress=False, shutdown_timeout=0.1, handler_cancellation=True
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        port = runner.addresses[0][1]
        server.endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        yield server
    finally:
        await runner.cleanup()


_HEAD = '<?xml version="1.0" encoding="UTF-8"?>'
_SPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


def error_xml(code: str) -> str:
    """Return an error document."""
    return f"{_HEAD}<Error><Code>{escape(code)}</Code><Message>{escape(code)}</Message></Error>"


def replication_xml(rules: ReplicationRules) -> str:
    """Return a replication configuration as S3 writes it."""
    items = "".join(
        f"<Rule><Status>{'Enabled' if one.enabled else 'Disabled'}</Status>"
        f"<Filter><Prefix>{escape(one.prefix)}</Prefix></Filter>"
        f"<Destination><Bucket>arn:aws:s3:::{escape(one.target)}</Bucket></Destination></Rule>"
        for one in rules
    )
    return f"<ReplicationConfiguration>{items}</ReplicationConfiguration>"


def versioning_xml(state: Versioning) -> str:
    """Return the document of a bucket's versioning; off is an empty document."""
    status = "" if state is Versioning.OFF else f"<Status>{state}</Status>"
    return f"{_HEAD}<VersioningConfiguration {_SPACE}>{status}</VersioningConfiguration>"


def objects_xml(objects: Sequence[ListedObject], token: str | None) -> str:
    """Return one page of ListObjectsV2; `token` continues it."""
    rows = "".join(
        f"<Contents><Key>{escape(one.key)}</Key><Size>{one.size_bytes}</Size>"
        f"<ETag>{escape(one.etag)}</ETag>"
        f"<LastModified>{_moment(one.last_modified_ns)}</LastModified></Contents>"
        for one in objects
    )
    more = _truncated(token)
    if token is not None:
        more += f"<NextContinuationToken>{escape(token)}</NextContinuationToken>"
    return f"{_HEAD}<ListBucketResult {_SPACE}>{more}{rows}</ListBucketResult>"


def versions_xml(rows: Sequence[ListedIncarnation], next_key: str | None) -> str:
    """Return one page of ListObjectVersions; a page ends between two keys."""
    more = _truncated(next_key)
    if next_key is not None:
        more += f"<NextKeyMarker>{escape(next_key)}</NextKeyMarker>"
    body = "".join(_version_xml(row) for row in rows)
    return f"{_HEAD}<ListVersionsResult {_SPACE}>{more}{body}</ListVersionsResult>"


def _version_xml(row: ListedIncarnation) -> str:
    name = "DeleteMarker" if row.marker else "Version"
    size = "" if row.marker else f"<Size>{row.size_bytes}</Size><ETag>{escape(row.etag)}</ETag>"
    return (
        f"<{name}><Key>{escape(row.key)}</Key><VersionId>{row.incarnation}</VersionId>"
        f"<IsLatest>{'true' if row.current else 'false'}</IsLatest>{size}"
        f"<LastModified>{_moment(row.last_modified_ns)}</LastModified></{name}>"
    )


def _truncated(token: str | None) -> str:
    return f"<IsTruncated>{'false' if token is None else 'true'}</IsTruncated>"


def _moment(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // NS_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
