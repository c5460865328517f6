"""Uploads over real sockets, with each response of the table in docs/protocol.md."""

import asyncio
import json
import re
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import zstandard
from support import raw_frames
from support.gateway import (
    Running,
    TestKey,
    frame_of,
    identity,
    running,
    upload_fields,
)

from sluice_protocol.authority import Authority
from sluice_protocol.keys import (
    QUARANTINE_CONFLICTS,
    accepted_key,
    blob_key,
    digest_of,
    quarantine_by_blob_key,
    quarantine_key,
)
from sluice_protocol.manifests import decode_accepted, decode_conflict
from sluice_protocol.outcomes import Found
from sluice_store.authority import read_authority

HOST = TestKey("host-1", ("host-1",))
OTHER = TestKey("host-2", ("host-2",))


def serve(tmp_path: Path, **settings: Any) -> AbstractAsyncContextManager[Running]:
    return running(tmp_path, HOST, OTHER, **settings)


async def test_upload_new_then_duplicate(tmp_path: Path) -> None:
    """A new batch is accepted once; the same bytes again are the same acceptance."""
    async with serve(tmp_path) as served:
        frame = frame_of()
        first = await served.client.upload(frame)
        again = await served.client.upload(frame)
        assert (first.status, first.body["duplicate"]) == (200, False)
        assert (again.status, again.body["duplicate"]) == (200, True)
        assert first.body["manifest_key"] == accepted_key(identity())
        assert first.body["accepted_at_unix_ns"] == again.body["accepted_at_unix_ns"]
        assert "blob;dur=" in first.headers["Server-Timing"]
        blob = await served.store.inner.get(blob_key(digest_of(frame)))
        assert isinstance(blob, Found)
        assert blob.body == frame
        manifest = await served.store.inner.get(accepted_key(identity()))
        assert isinstance(manifest, Found)
        decoded = decode_accepted(manifest.info.key, manifest.body)
        assert (decoded.principal, decoded.collector_id) == ("host-1", "gw-test")
        assert decoded.accepted_at_unix_ns == first.body["accepted_at_unix_ns"]


async def test_upload_duplicate_without_the_cache(tmp_path: Path) -> None:
    """A batch that another gateway accepted is read from the store, with the same response."""
    async with serve(tmp_path, cache_entries_max=0) as served:
        frame = frame_of()
        first = await served.client.upload(frame)
        again = await served.client.upload(frame)
        retried = await served.client.upload(frame, Sluice_Retry="1")
        assert [a.body["duplicate"] for a in (first, again, retried)] == [False, True, True]
        assert retried.body["accepted_at_unix_ns"] == first.body["accepted_at_unix_ns"]


async def test_upload_retry_reads_before_it_writes(tmp_path: Path) -> None:
    """`Sluice-Retry: 1` of an accepted batch costs a GET and a HEAD and no write."""
    async with serve(tmp_path, cache_entries_max=0) as served:
        frame = frame_of()
        await served.client.upload(frame)
        served.store.calls.clear()
        await served.client.upload(frame, Sluice_Retry="1")
        assert [verb for verb, _ in served.store.calls] == ["get", "head"]


async def test_an_upload_conflict_is_recorded(tmp_path: Path) -> None:
    """Other bytes under an accepted identity: 409, with quarantine manifest and reference."""
    async with serve(tmp_path) as served:
        first, second = frame_of(text="one"), frame_of(text="two")
        await served.client.upload(first)
        answer = await served.client.upload(second)
        assert (answer.status, answer.body["code"]) == (409, "identity_conflict")
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.body["accepted_frame_sha256"] == digest_of(first)
        assert answer.body["submitted_frame_sha256"] == digest_of(second)
        assert answer.body["quarantine_key"] == quarantine_key(identity(), digest_of(second))
        assert (answer.body["retryable"], answer.body["effect"]) == (False, "none")
        record = await served.store.inner.get(answer.body["quarantine_key"])
        assert isinstance(record, Found)
        conflict = decode_conflict(record.info.key, record.body)
        assert conflict.accepted_frame_sha256 == digest_of(first)
        reference = await served.store.inner.get(
            quarantine_by_blob_key(digest_of(second), identity())
        )
        assert isinstance(reference, Found)
        assert json.loads(reference.body)["manifest_key"].startswith(QUARANTINE_CONFLICTS)
        for key in ("accepted_raw_blob_key", "submitted_raw_blob_key"):
            assert isinstance(await served.store.inner.get(answer.body[key]), Found)


async def test_upload_for_a_foreign_agent_never_reaches_the_store(tmp_path: Path) -> None:
    """403 before any store call, with a text that reveals nothing."""
    async with serve(tmp_path) as served:
        served.client.key = OTHER
        answer = await served.client.upload(frame_of())
        assert (answer.status, answer.body["code"]) == (403, "forbidden_agent")
        assert "host" not in json.dumps(answer.body)
        assert served.store.calls == []


def _bomb() -> bytes:
    """Return a frame whose compressed column has far more bytes than its directory announces."""
    columns = raw_frames.logs()
    columns["body"] = columns["body"]._replace(coding=raw_frames.ZSTD)
    bomb = zstandard.compress(b"\0" * (256 << 20))
    return raw_frames.frame(raw_frames.envelope(), columns, stored={"body": bomb})


def _wrong_count() -> bytes:
    return raw_frames.frame(raw_frames.envelope(count=3), raw_frames.logs())


BAD_FRAMES = {
    "truncated": frame_of()[:-1],
    "longer": frame_of() + b"\0",
    "empty": b"",
    "magic": b"XMB1" + frame_of()[4:],
    "version": frame_of()[:4] + b"\x04\0" + frame_of()[6:],
    "checksum": frame_of()[:-1] + bytes((frame_of()[-1] ^ 1,)),
    "count": _wrong_count(),
}


@pytest.mark.parametrize("name", [*BAD_FRAMES, "bomb"])
async def test_upload_of_a_bad_frame_writes_nothing(tmp_path: Path, name: str) -> None:
    """Truncated, wrong magic, wrong count, a bomb: 400 that names the field, and no store call."""
    async with serve(tmp_path) as served:
        answer = await served.client.upload(_bomb() if name == "bomb" else BAD_FRAMES[name])
        wanted = "unsupported_version" if name == "version" else "invalid_frame"
        assert (answer.status, answer.body["code"]) == (400, wanted)
        assert re.search(r"(field|found)=`", answer.body["detail"])
        assert served.store.calls == []


async def test_upload_unknown_senders(tmp_path: Path) -> None:
    """No signature, an unknown key, an expired or replaced signature: 401 before any store call."""
    async with serve(tmp_path) as served:
        frame, client = frame_of(), served.client
        fields = upload_fields(frame)
        stale = HOST.sign(fields, client.authority, created_s=1_700_000_000)
        elsewhere = HOST.sign(fields, "gw.example:1")
        stranger = TestKey("stranger", ("host-1",)).sign(fields, client.authority)
        borrowed = HOST.sign(upload_fields(frame_of(text="x" * 5)), client.authority)
        borrowed = borrowed | fields
        for headers in (fields, stale, elsewhere, stranger, borrowed):
            answer = await client.send(frame, headers)
            assert (answer.status, answer.body["code"]) == (401, "unauthenticated")
            assert answer.body["detail"] == "the sender is not known"
        assert served.store.calls == []


async def test_upload_wrong_digest_comes_before_the_frame(tmp_path: Path) -> None:
    """A body damaged in transit differs from an invalid frame: it may be sent again."""
    async with serve(tmp_path) as served:
        frame = frame_of()
        fields = HOST.sign(upload_fields(frame), served.client.authority)
        answer = await served.client.send(b"X" + frame[1:], fields)
        assert (answer.status, answer.body["code"]) == (400, "digest_mismatch")
        assert answer.body["retryable"] is True
        assert served.store.calls == []


@pytest.mark.parametrize(
    ("extra", "status", "code"),
    [
        ({"Content_Type": "application/json"}, 415, "unsupported_media_type"),
        ({"Content_Encoding": "gzip"}, 415, "unsupported_media_type"),
        ({"Content_Encoding": "identity"}, 415, "unsupported_media_type"),
    ],
)
async def test_upload_head_refusals(
    tmp_path: Path, extra: dict[str, str], status: int, code: str
) -> None:
    """Another media type or any Content-Encoding is 415."""
    async with serve(tmp_path) as served:
        answer = await served.client.upload(frame_of(), **extra)
        assert (answer.status, answer.body["code"]) == (status, code)


async def test_upload_too_large(tmp_path: Path) -> None:
    """A frame above the limit is 413 before the body is read."""
    async with serve(tmp_path, frame_bytes_max=100_000) as served:
        answer = await served.client.upload(frame_of(size=200_000))
        assert (answer.status, answer.body["code"]) == (413, "too_large")
        assert served.store.calls == []


async def test_upload_needs_a_length(tmp_path: Path) -> None:
    """A chunked body is 411: a signature covers Content-Length, so only mTLS senders get here."""
    async with serve(tmp_path) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        fields = HOST.sign(upload_fields(b""), served.client.authority)
        fields.pop("Content-Length")
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(
            f"POST /v1/batches HTTP/1.1\r\nHost: {served.client.authority}\r\n{head}"
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".encode()
        )
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 401 ")
        writer.close()
        await writer.wait_closed()


async def test_an_overloaded_gateway_refuses_before_the_body(tmp_path: Path) -> None:
    """Above the bytes in flight: 503 with Retry-After, and the client reads it."""
    async with serve(tmp_path, frame_bytes_max=4_000_000, inflight_bytes_max=5_000_000) as served:
        frame = frame_of(size=3_000_000)
        with served.gateway.uploads.budget.take(4_000_000):
            answer = await served.client.upload(frame)
        assert (answer.status, answer.body["code"]) == (503, "overloaded")
        assert answer.headers["Retry-After"] == "1"
        assert (answer.body["effect"], answer.body["retryable"]) == ("none", True)
        assert served.gateway.uploads.budget.held_bytes == 0
        assert (await served.client.upload(frame)).status == 200


async def test_a_draining_gateway_refuses_uploads(tmp_path: Path) -> None:
    """A stopping gateway fails /readyz and refuses uploads, and stays alive."""
    async with serve(tmp_path) as served:
        await served.gateway.readiness.check_store()
        served.store.calls.clear()
        assert (await served.client.get("/readyz"))[0] == 200
        served.gateway.uploads.running.drain()
        answer = await served.client.upload(frame_of())
        assert (answer.status, answer.body["code"]) == (503, "draining")
        assert (await served.client.get("/readyz"))[0] == 503
        assert (await served.client.get("/livez"))[0] == 200
        assert served.store.calls == []


async def test_metrics_and_openapi(tmp_path: Path) -> None:
    """Outcomes are counted without agent ids, and the OpenAPI description is served."""
    async with serve(tmp_path) as served:
        await served.client.upload(frame_of())
        status, text = await served.client.get("/metrics")
        assert status == 200
        assert 'sluice_accepts_total{outcome="new"} 1.0' in text
        assert "host-1" not in text
        status, text = await served.client.get("/openapi.json")
        document = json.loads(text)
        assert document["openapi"] == "3.1.0"
        assert "AcceptedResponse" in document["components"]["schemas"]
        assert (await served.client.get("/nothing"))[0] == 404


async def test_a_wrong_blob_is_overwritten_and_counted(tmp_path: Path) -> None:
    """Other bytes under the key of the blob are overwritten, counted in a metric, and the result is
    200.
    """
    async with serve(tmp_path) as served:
        frame = frame_of()
        key = blob_key(digest_of(frame))
        await served.store.inner.create(key, b"not these bytes")
        answer = await served.client.upload(frame)
        assert (answer.status, answer.body["duplicate"]) == (200, False)
        blob = await served.store.inner.get(key)
        assert isinstance(blob, Found)
        assert blob.body == frame
        assert "sluice_healed_blobs_total 1.0" in (await served.client.get("/metrics"))[1]


@pytest.mark.parametrize("record", [b"{}", b"not json", b""])
async def test_a_damaged_manifest_is_a_500(tmp_path: Path, record: bytes) -> None:
    """An object that is no manifest decides nothing: 500, retryable, never 200 or 409."""
    async with serve(tmp_path) as served:
        await served.store.inner.create(accepted_key(identity()), record)
        answer = await served.client.upload(frame_of())
        assert (answer.status, answer.body["code"]) == (500, "corrupt_object")
        assert (answer.body["retryable"], answer.body["effect"]) == (True, "unknown")


async def test_a_young_orphan_blob_is_used(tmp_path: Path) -> None:
    """A young blob without a manifest, from a crash, is sufficient proof: one write, not two."""
    async with serve(tmp_path) as served:
        frame = frame_of()
        await served.store.inner.create(blob_key(digest_of(frame)), frame)
        answer = await served.client.upload(frame)
        assert (answer.status, answer.body["duplicate"]) == (200, False)
        assert [verb for verb, _ in served.store.calls] == ["create", "head", "create"]


async def test_old_orphan_blob_is_written_again(tmp_path: Path) -> None:
    """A blob older than the window may be deleted soon: it is written again first."""

    async def body(served: Running) -> None:
        frame = frame_of()
        await served.store.inner.create(blob_key(digest_of(frame)), frame)
        await asyncio.sleep(1.1)
        answer = await served.client.upload(frame)
        assert (answer.status, answer.body["duplicate"]) == (200, False)
        verbs = [verb for verb, _ in served.store.calls]
        assert verbs[:4] == ["create", "head", "get", "overwrite"]

    async with running(tmp_path, HOST, authority=Narrow(authority_id="narrow")) as served:
        await body(served)


async def test_a_batch_that_is_sent_again_restores_its_blob(tmp_path: Path) -> None:
    """A gateway that did not accept it itself writes the blob that is missing at its manifest.

    The one that did repeats its response from memory for some time.
    """
    frame = frame_of()
    key = blob_key(digest_of(frame))

    async with running(tmp_path, HOST) as served:
        assert (await served.client.upload(frame)).body["duplicate"] is False
        authority = await read_authority(served.store.inner)
        stored = await served.store.inner.get(key)
        assert isinstance(stored, Found)
        await served.store.inner.delete(key, stored.info.incarnation)
        assert (await served.client.upload(frame)).body["duplicate"] is True
        assert not isinstance(await served.store.inner.get(key), Found)
    async with running(tmp_path, HOST, authority=authority) as served:
        answer = await served.client.upload(frame)
        assert (answer.status, answer.body["duplicate"]) == (200, True)
        restored = await served.store.inner.get(key)
        assert isinstance(restored, Found)
        assert restored.body == frame


class Narrow(Authority, frozen=True):
    """An authority with a window of one second, which no real authority may have."""

    @property
    def proof_window_ns(self) -> int:
        return 1_000_000_000
