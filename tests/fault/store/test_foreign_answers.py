"""A response that is not the store's proves nothing: every operation, every wrong response."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from aiohttp import web
from support.store_versitygw import CREDENTIALS

from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.outcomes import Applied, Unknown, UnknownReason
from sluice_protocol.units import ETag, ObjectKey, ObjectVersion
from sluice_store.administration import AdminResponse
from sluice_store.port import ObjectStore
from sluice_store.s3.sdk import client_error, open_s3_store
from sluice_store.s3.settings import parse_s3_url

KEY = ObjectKey("some/key")
HTML = "<html><body>Please log in</body></html>"
ERROR = "<Error><Code>InternalError</Code><Message>no</Message></Error>"
MD5 = '"841a2d689ad86bd1611447453c22c6fc"'
DATE = "Fri, 27 Nov 2026 10:00:00 GMT"


@dataclass
class Answer:
    """One response to every request."""

    status: int = 200
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


PAGE = {"Content-Type": "text/html"}
STATIC = {"ETag": '"5f3e-264"', "Last-Modified": DATE, **PAGE}
EVERYWHERE = {
    "error document": Answer(body=ERROR),
    "login page": Answer(body=HTML, headers=PAGE),
    "static page": Answer(body=HTML, headers=STATIC),
    "JSON": Answer(body=json.dumps({"ok": True})),
    "nothing": Answer(),
    "accepted": Answer(status=202),
    "well-formed HTML": Answer(body="<html/>", headers={"Content-Type": "application/xml"}),
    "redirect": Answer(status=302, headers={"Location": "http://login.example/"}),
    "moved": Answer(status=301, body=HTML, headers=PAGE),
    "not modified": Answer(status=304),
    "bad request page": Answer(status=400, body=HTML, headers=PAGE),
    "login required": Answer(status=401, body=HTML, headers=PAGE),
    "forbidden page": Answer(status=403, body=HTML, headers=PAGE),
    "not found page": Answer(status=404, body=HTML, headers=PAGE),
    "not found": Answer(status=404),
    "no method": Answer(status=405),
    "proxy login": Answer(status=407, body=HTML, headers=PAGE),
    "precondition page": Answer(status=412, body=HTML, headers=PAGE),
    "precondition": Answer(status=412),
    "too large": Answer(status=413, body=HTML, headers=PAGE),
    "range": Answer(status=416),
    "not implemented": Answer(status=501, body=HTML, headers=PAGE),
    "bad gateway": Answer(status=502, body=HTML, headers=PAGE),
    "unavailable page": Answer(status=503, body=HTML, headers=PAGE),
}
WRITES = {
    "body and an ETag": Answer(body=ERROR, headers={"ETag": MD5}),
    "ETag of another body": Answer(headers={"ETag": '"00000000000000000000000000000000"'}),
    "checksum of another body": Answer(headers={"ETag": '"x"', "x-amz-checksum-sha256": "AA=="}),
    "accepted and an ETag": Answer(status=202, headers={"ETag": MD5}),
}


def _listing(inner: str, root: str = "ListBucketResult") -> Answer:
    return Answer(body=f"<{root}>{inner}</{root}>", headers={"Content-Type": "application/xml"})


ROW = "<Contents><Key>{}</Key><Size>1</Size><ETag>x</ETag><LastModified>2026-11-27T10:00:00Z"
ROW += "</LastModified></Contents>"
WHOLE = "<IsTruncated>false</IsTruncated>"
LISTINGS = {
    "no end": _listing(ROW.format("pre/some/key")),
    "another bucket": _listing(f"<Name>other</Name>{WHOLE}"),
    "another prefix": _listing(f"<Prefix>elsewhere/</Prefix>{WHOLE}"),
    "keys of another prefix": _listing(WHOLE + ROW.format("elsewhere/key")),
    "no token": _listing("<IsTruncated>true</IsTruncated>"),
    "cut off": Answer(body=f"<ListBucketResult>{WHOLE}<Contents><Key>pre/some"),
}
Operation = Callable[[ObjectStore], Awaitable[object]]


async def _list(store: ObjectStore) -> list[object]:
    return [page async for page in store.list("some/")]


async def _list_incarnations(store: ObjectStore) -> list[object]:
    return [page async for page in store.list_incarnations("some/")]


CHANGES: dict[str, Operation] = {
    "create": lambda store: store.create(KEY, b"body"),
    "replace": lambda store: store.replace(KEY, b"body", if_match=ETag('"x"')),
    "overwrite": lambda store: store.overwrite(KEY, b"body"),
    "delete": lambda store: store.delete(KEY, ObjectVersion("v1")),
}
READS: dict[str, Operation] = {
    "get": lambda store: store.get(KEY),
    "get range": lambda store: store.get(KEY, first=2, last=5),
    "head": lambda store: store.head(KEY),
    "head version": lambda store: store.head_incarnation(KEY, ObjectVersion("v1")),
    "list": _list,
    "list versions": _list_incarnations,
    "versioning": lambda store: store.read_versioning(),
}


@asynccontextmanager
async def answering(left: list[Answer]) -> AsyncIterator[ObjectStore]:
    """Yield a store behind a server that sends these responses, the last one again and again."""

    async def handle(request: web.Request) -> web.Response:
        await request.read()
        now = left.pop(0) if len(left) > 1 else left[0]
        return web.Response(status=now.status, text=now.body, headers=now.headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        url = f"s3://bucket/pre?endpoint=http://127.0.0.1:{port}&region=us-east-1"
        async with open_s3_store(replace(parse_s3_url(url), request_timeout_s=5.0)) as store:
            yield store
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("operation", CHANGES)
def test_a_write_that_another_program_answered_is_unknown(operation: str) -> None:
    """No such response is taken for success, for a failed condition, or for a refusal."""
    wrong = EVERYWHERE | (WRITES if operation != "delete" else {})

    async def run() -> dict[str, object]:
        answers = [Answer()]
        async with answering(answers) as store:
            found = {}
            for name, answers[0] in wrong.items():
                found[name] = await CHANGES[operation](store)
            return found

    for name, outcome in asyncio.run(run()).items():
        assert isinstance(outcome, Unknown), f"{name}: {outcome}"
        assert outcome.reason is UnknownReason.FOREIGN, f"{name}: {outcome}"


@pytest.mark.daily(3)
@pytest.mark.parametrize("operation", READS)
async def test_a_read_that_another_program_answered_proves_nothing(operation: str) -> None:
    """No such response shows an object, its absence, an empty listing, or a setting."""
    wrong = EVERYWHERE | (LISTINGS if operation == "list" else {})

    answers = [Answer()]
    async with answering(answers) as store:
        for name, answers[0] in wrong.items():
            with pytest.raises(StoreUnavailable) as refused:
                pytest.fail(f"{name}: {await READS[operation](store)}")
            assert "\n" not in str(refused.value), name


SHA256 = "Iw2DWNyOiJC0xY3utikS7i8gNXrpKlzIYbmOaP4xrLU="  # of `body`
CHECKED = Answer(headers={"ETag": '"opaque"', "x-amz-checksum-sha256": SHA256})
UNCHECKED = Answer(headers={"ETag": '"opaque"'})
OTHER_MD5 = Answer(headers={"ETag": '"00000000000000000000000000000000"'})
STORED = Answer(body="body", headers={"ETag": '"opaque"', "Last-Modified": DATE})
OLD = replace(STORED, body="olds")
ABSENT = Answer(status=404, body="<Error><Code>NoSuchKey</Code></Error>")


@pytest.mark.daily(4)
@pytest.mark.parametrize(
    ("before", "doubtful"),
    [
        pytest.param([CHECKED], UNCHECKED, id="the checksum is missing"),
        pytest.param([CHECKED], OTHER_MD5, id="the checksum is missing, the ETag is another"),
        pytest.param([], OTHER_MD5, id="the ETag is another"),
    ],
)
@pytest.mark.parametrize("operation", ["create", "replace", "overwrite"])
def test_a_doubtful_success_is_decided_by_a_read(
    before: list[Answer], doubtful: Answer, operation: str
) -> None:
    """A store behind a balancer or after an upgrade keeps accepting; a lost write stays unknown."""

    async def run(read: Answer) -> list[type]:
        answers = [*before, doubtful, read, doubtful, replace(ABSENT)]
        async with answering(answers) as store:
            return [type(await CHANGES[operation](store)) for _ in range(len(before) + 2)]

    known = [Applied] * len(before)
    assert asyncio.run(run(STORED)) == [*known, Applied, Applied], "the second needs no read"
    for lost in (OLD, ABSENT, Answer(body=HTML, headers=STATIC), Answer(status=503)):
        assert asyncio.run(run(lost)) == [*known, Unknown, Unknown], lost


@pytest.mark.parametrize("status", [200, 201, 204])
async def test_an_md5_of_the_body_proves_a_write_without_the_checksum(status: int) -> None:
    """Ceph can be set to send 201 or 204, and a server of another version sends no checksum."""
    async with answering([CHECKED, Answer(status=status, headers={"ETag": MD5})]) as store:
        for _ in range(3):
            assert isinstance(await store.overwrite(KEY, b"body"), Applied)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"ETag": '"opaque"'}, id="no MD5"),
        pytest.param({"ETag": MD5, "x-amz-server-side-encryption": "aws:kms"}, id="encrypted"),
        pytest.param({"ETag": '"841A2D689AD86BD1611447453C22C6FC"'.lower()}, id="MD5"),
        pytest.param({"ETag": "841A2D689AD86BD1611447453C22C6FC"}, id="MD5 without quotes"),
    ],
)
async def test_what_real_servers_send_is_accepted(headers: dict[str, str]) -> None:
    """An ETag that is no MD5, one of an encrypted object, and the forms of an MD5 are accepted."""
    body = b"other" if "x-amz-server-side-encryption" in headers else b"body"
    async with answering([Answer(headers=headers)]) as store:
        assert isinstance(await store.create(KEY, body), Applied)


def test_a_refusal_without_a_code_of_s3_is_no_policy() -> None:
    """A firewall's 403 does not prove that a policy denies a request."""
    assert AdminResponse(status=403, code="AccessDenied").refused
    assert not AdminResponse(status=403, code="InvalidAccessKeyId").refused
    page = {"ResponseMetadata": {"HTTPStatusCode": 403}, "Error": {"Code": "403"}}
    assert isinstance(client_error(page, "attempt", "key"), StoreUnavailable)
