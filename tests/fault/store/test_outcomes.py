"""Every fault between client and store has the outcome that the port defines."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from support.memory_bucket import Fault, NoFaults, Scripted, open_memory_store
from support.memory_bucket.faults import OnKey
from support.memory_bucket.server import MemoryServer, serve_memory
from support.store_versitygw import ACCESS, CREDENTIALS, SECRET, free_port

from sluice_protocol.errors import StoreDenied, StoreError, StoreMisconfigured, StoreUnavailable
from sluice_protocol.outcomes import (
    Applied,
    Deleted,
    Exists,
    Found,
    Mismatch,
    NotFound,
    Unknown,
    UnknownReason,
)
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore
from sluice_store.s3.sdk import open_s3_store
from sluice_store.s3.settings import parse_s3_url

KEY = ObjectKey("some/key")
UNKNOWN = {
    Fault.TIMEOUT_BEFORE: (UnknownReason.TIMEOUT, False),
    Fault.RESET_BEFORE: (UnknownReason.RESET, False),
    Fault.TIMEOUT_AFTER: (UnknownReason.TIMEOUT, True),
    Fault.RESET_AFTER: (UnknownReason.RESET, True),
    Fault.CONFLICT: (UnknownReason.CONFLICT, False),
    Fault.SLOW_DOWN: (UnknownReason.SERVER_ERROR, False),
    Fault.ERROR_AFTER: (UnknownReason.SERVER_ERROR, True),
}


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@asynccontextmanager
async def over_http() -> AsyncIterator[tuple[ObjectStore, MemoryServer]]:
    """Yield the real client on the fake over HTTP, with a short timeout."""
    async with serve_memory({ACCESS: SECRET}) as server:
        url = f"s3://bucket/pre?endpoint={server.endpoint}&region=us-east-1"
        server.make_bucket("bucket")
        settings = replace(parse_s3_url(url), request_timeout_s=0.3)
        async with open_s3_store(settings) as store:
            yield store, server


@pytest.mark.daily(3)
@pytest.mark.parametrize("fault", UNKNOWN, ids=str)
async def test_create_over_http_unknown_is_named(fault: Fault) -> None:
    """The real client returns Unknown with its reason, and a read shows whether it was applied."""
    reason, landed = UNKNOWN[fault]

    async with over_http() as (store, server):
        server.plan = OnKey("PUT", "pre/", 1, fault)
        outcome = await store.create(KEY, b"body")
        assert isinstance(outcome, Unknown)
        assert outcome.reason is reason
        assert [call.method for call in server.seen] == ["PUT"]
        assert isinstance(await store.get(KEY), Found if landed else NotFound)
        again = await store.create(KEY, b"body")
        assert isinstance(again, Exists if landed else Applied)


@pytest.mark.parametrize("fault", UNKNOWN, ids=str)
async def test_create_in_memory_unknown_is_named(fault: Fault) -> None:
    """The fake without a network has the same outcomes as the client over HTTP."""
    reason, landed = UNKNOWN[fault]

    store, _ = open_memory_store(plan=Scripted({0: fault}))
    outcome = await store.create(KEY, b"body")
    assert isinstance(outcome, Unknown)
    assert outcome.reason is reason
    assert isinstance(await store.get(KEY), Found if landed else NotFound)


@pytest.mark.daily(3)
@pytest.mark.parametrize("fault", UNKNOWN, ids=str)
async def test_replace_over_http_own_write_reads_as_mismatch(fault: Fault) -> None:
    """A repeated replace reports Mismatch exactly when the first try was applied."""
    reason, landed = UNKNOWN[fault]

    async with over_http() as (store, server):
        first = await store.create(KEY, b"one")
        assert isinstance(first, Applied)
        server.plan = OnKey("PUT", "pre/", 1, fault)
        outcome = await store.replace(KEY, b"two", if_match=first.etag)
        assert isinstance(outcome, Unknown)
        assert outcome.reason is reason
        again = await store.replace(KEY, b"two", if_match=first.etag)
        assert isinstance(again, Mismatch if landed else Applied)


@pytest.mark.parametrize("fault", [Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.CONFLICT], ids=str)
async def test_delete_over_http_unknown_is_named(fault: Fault) -> None:
    """A delete without a response is Unknown, and can be repeated."""
    async with over_http() as (store, server):
        made = await store.create(KEY, b"one")
        assert isinstance(made, Applied)
        assert made.incarnation is not None
        server.plan = OnKey("DELETE", "pre/", 1, fault)
        assert isinstance(await store.delete(KEY, made.incarnation), Unknown)
        assert isinstance(await store.delete(KEY, made.incarnation), Deleted)
        assert isinstance(await store.head(KEY), NotFound)


async def test_late_create_is_applied_after_a_read_found_nothing() -> None:
    """A read that finds nothing proves nothing: the write is applied three calls later."""
    store, _ = open_memory_store(plan=Scripted({0: Fault.APPLIED_LATE}))
    assert isinstance(await store.create(KEY, b"late"), Unknown)
    found = [isinstance(await store.get(KEY), Found) for _ in range(5)]
    assert found == [False, False, False, True, True]


@pytest.mark.parametrize("fault", [Fault.TRUNCATED, Fault.RESET_BEFORE, Fault.SLOW_DOWN], ids=str)
async def test_get_over_http_failure_is_unavailable(fault: Fault) -> None:
    """A read without a complete response is a typed failure and may be repeated."""
    async with over_http() as (store, server):
        await store.create(KEY, b"body of some length")
        server.plan = OnKey("GET", "pre/", 1, fault)
        with pytest.raises(StoreUnavailable):
            await store.get(KEY)
        assert isinstance(await store.get(KEY), Found)


async def test_put_over_http_is_one_request_with_signed_digest() -> None:
    """A put is one request without `Expect` or chunked signing, with the known digest."""
    async with over_http() as (store, server):
        await store.create(KEY, b"body")
        sent = server.headers[0]
        assert "Expect" not in sent
        assert "Transfer-Encoding" not in sent
        assert len(sent["x-amz-content-sha256"]) == 64
        assert sent["x-amz-checksum-sha256"]
        assert "x-amz-checksum-sha256" in sent["Authorization"]


async def _refused(url: str) -> StoreError:
    settings = replace(parse_s3_url(url), request_timeout_s=2, connect_timeout_s=1)
    async with open_s3_store(settings) as store:
        calls = (
            lambda: store.create(KEY, b"x"),
            lambda: store.get(KEY),
            lambda: store.head(KEY),
            lambda: anext(aiter(store.list(""))),
            store.read_versioning,
        )
        errors = [await _error_of(call) for call in calls]
    assert len({type(error) for error in errors}) == 1, errors
    return errors[0]


async def _error_of(call: object) -> StoreError:
    with pytest.raises(StoreError) as caught:
        await call()  # type: ignore[operator]
    return caught.value


def test_missing_bucket_is_named() -> None:
    """A missing bucket is a typed error on every verb, with advice."""

    async def run() -> StoreError:
        async with serve_memory({ACCESS: SECRET}) as server:
            return await _refused(f"s3://nothing?endpoint={server.endpoint}")

    error = asyncio.run(run())
    assert isinstance(error, StoreMisconfigured)
    assert "no such bucket" in str(error)


def test_wrong_credentials_are_denied() -> None:
    """A wrong secret key is a typed error on every verb."""

    async def run() -> StoreError:
        async with serve_memory({ACCESS: "another secret"}) as server:
            return await _refused(f"s3://bucket?endpoint={server.endpoint}")

    error = asyncio.run(run())
    assert isinstance(error, StoreDenied)
    assert "credentials" in str(error)


def test_no_credentials_are_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials the error states how to set them, before any request is sent."""
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")

    async def run() -> None:
        async with open_s3_store(parse_s3_url("s3://bucket?endpoint=http://127.0.0.1:1")):
            pass

    with pytest.raises(StoreDenied, match="AWS_ACCESS_KEY_ID"):
        asyncio.run(run())


def test_unreachable_endpoint_is_unavailable() -> None:
    """A port without a listener is a definite failure on every verb, without a delay."""
    began = time.monotonic()
    error = asyncio.run(_refused(f"s3://bucket?endpoint=http://127.0.0.1:{free_port()}"))
    assert isinstance(error, StoreUnavailable)
    assert time.monotonic() - began < 5


class _Shifted:
    """A store's clock that is 20 minutes wrong."""

    def now_ns(self) -> int:
        return time.time_ns() + 20 * 60 * 10**9

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def test_clock_20_minutes_off_is_denied() -> None:
    """A wrong clock is reported as such, not as wrong credentials."""

    async def run() -> StoreError:
        async with (
            serve_memory({ACCESS: SECRET}, clock=_Shifted()) as server,  # type: ignore[arg-type]
            open_s3_store(parse_s3_url(f"s3://bucket?endpoint={server.endpoint}")) as store,
        ):
            return await _error_of(lambda: store.create(KEY, b"x"))

    error = asyncio.run(run())
    assert isinstance(error, StoreDenied)
    assert "clock" in str(error)


async def test_no_request_is_sent_twice() -> None:
    """One verb is one request, also when its connection breaks."""
    async with over_http() as (store, server):
        await store.create(ObjectKey("warm"), b"x")  # so that the next call uses a kept connection
        server.plan = OnKey("PUT", "pre/", 1, Fault.RESET_AFTER)
        assert isinstance(await store.create(KEY, b"x"), Unknown)
        assert len(server.seen) == 2
        server.plan = NoFaults()
