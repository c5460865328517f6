"""Several batches in one request: each has the result of a single upload."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from prometheus_client import generate_latest
from support.gateway import (
    CountingStore,
    TestKey,
    frame_of,
    head_of,
    identity,
    post,
    run,
    running,
    send_list,
    upload_fields,
)

from sluice_gateway.uploads.lists import FRAMES_AT_ONCE
from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.keys import accepted_key, blob_key, digest_of, high_water_key
from sluice_protocol.outcomes import CreateOutcome, Found
from sluice_protocol.units import Digest, ObjectKey
from sluice_protocol.upload_http import (
    FRAME_LIST_MEDIA_TYPE,
    FRAMES_MAX,
    UPLOAD_LIST_PATH,
    ListedFrame,
    encode_frame_list,
)
from sluice_store.port import ObjectStore

HOST = TestKey("host-1", ("host-1",))


def keys_of(store: CountingStore, verb: str = "create") -> list[str]:
    return [key for called, key in store.calls if called == verb]


class FailingStore(CountingStore):
    """A store that refuses every create under some keys, and counts concurrent creates."""

    def __init__(self, inner: ObjectStore, *refused: str) -> None:
        super().__init__(inner)
        self.refused = refused
        self.running = 0
        self.most = 0

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        if key in self.refused:
            raise StoreUnavailable("create", key, "refused by the test")
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0.001)
            return await super().create(key, body, sha256=sha256)
        finally:
            self.running -= 1


def test_each_frame_has_the_result_of_a_single_upload(tmp_path: Path) -> None:
    """New, duplicate, conflict, damaged and foreign frames in one request."""

    async def body() -> None:
        async with running(tmp_path, HOST) as served:
            known, other = frame_of(identity(seq=1)), frame_of(identity(seq=1), "other")
            assert (await served.client.upload(known)).status == 200
            new, damaged = frame_of(identity(seq=2)), frame_of(identity(seq=3))[:-1]
            foreign = frame_of(identity("host-2"))
            results = await send_list(served.client, new, known, other, damaged, foreign)
            assert [one["status"] for one in results] == [200, 200, 409, 400, 403]
            assert results[0]["accepted"]["duplicate"] is False
            assert results[0]["accepted"]["frame_sha256"] == digest_of(new)
            assert results[1]["accepted"]["duplicate"] is True
            assert results[2]["conflict"]["submitted_frame_sha256"] == digest_of(other)
            assert results[3]["problem"]["code"] == "invalid_frame"
            assert results[4]["problem"]["code"] == "forbidden_agent"
            again = await served.client.upload(other)
            assert results[2]["conflict"] == again.body
            assert (await served.client.upload(new)).body["duplicate"] is True

    run(body())


def test_frames_are_noted_in_journal_metrics_and_cache(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, HOST) as served:
            frames = [frame_of(identity(seq=seq)) for seq in range(5)]
            await send_list(served.client, *frames)
            uploads = served.gateway.uploads
            assert served.gateway.uploads.journal._book.waiting == 5  # type: ignore[attr-defined]
            metrics = generate_latest(uploads.metrics.registry).decode()
            assert 'sluice_accepts_total{outcome="new"} 5.0' in metrics
            assert "sluice_accept_duration_seconds_count 5.0" in metrics
            assert 'sluice_accept_phase_seconds_count{phase="manifest"} 5.0' in metrics
            assert 'sluice_accept_phase_seconds_count{phase="receive"} 1.0' in metrics
            assert uploads.budget.held_bytes == 0
            served.store.calls.clear()
            results = await send_list(served.client, *frames)
            assert all(one["accepted"]["duplicate"] for one in results)
            assert served.store.calls == []

    run(body())


def test_marks_and_retries_are_read_per_frame(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, HOST) as served:
            first, second = frame_of(identity(seq=1)), frame_of(identity(seq=2, boot="b2"))
            marked = ListedFrame(frame=second, sent_before=True, high_water=40)
            await send_list(served.client, first, marked)
            asked = keys_of(served.store, "get")
            assert asked == [accepted_key(identity(seq=2, boot="b2"))]  # a retry reads first
            assert await served.gateway.uploads.high_water.flush() == 1
            found = await served.store.get(high_water_key("host-1", "b2"))
            assert isinstance(found, Found)
            assert b'"seq_end":40' in found.body

    run(body())


def test_the_first_of_two_frames_of_one_identity_owns_it(tmp_path: Path) -> None:
    """Equal frames are a duplicate, other bytes a conflict, in every run the same one."""

    async def body() -> None:
        async with running(tmp_path, HOST) as served:
            for round_ in range(5):
                seq = 10 * round_
                frame = frame_of(identity(seq=seq), size=100_000)  # validated in a thread
                other = frame_of(identity(seq=seq), "other")
                results = await send_list(served.client, frame, other, frame)
                assert [one["status"] for one in results] == [200, 409, 200]
                assert results[0]["accepted"]["duplicate"] is False
                assert results[2]["accepted"]["duplicate"] is True

    run(body())


def test_the_failure_of_one_frame_is_not_the_failure_of_others(tmp_path: Path) -> None:
    async def body() -> None:
        frames = [frame_of(identity(seq=seq)) for seq in range(40)]
        refused = (blob_key(digest_of(frames[3])), accepted_key(identity(seq=7)))
        async with running(tmp_path, HOST, upload_time_s_max=1.0) as served:
            failing = FailingStore(served.store.inner, *refused)
            served.store.inner = failing
            results = await send_list(served.client, *frames)
            statuses = {seq: one["status"] for seq, one in enumerate(results)}
            assert {seq for seq, status in statuses.items() if status == 503} == {3, 7}
            assert {status for seq, status in statuses.items() if seq not in (3, 7)} == {200}
            assert results[3]["problem"]["retryable"] is True
            assert 2 <= failing.most <= FRAMES_AT_ONCE
            failing.refused = ()
            while {one["status"] for one in results} != {200}:  # a slow disk needs several
                results = await send_list(served.client, *frames)
                assert {one["status"] for one in results} <= {200, 503}

    run(body())


def test_no_frame_is_begun_after_the_time_of_the_request(tmp_path: Path) -> None:
    async def body() -> None:
        frames = [frame_of(identity(seq=seq)) for seq in range(2 * FRAMES_AT_ONCE)]
        refused = [blob_key(digest_of(frame)) for frame in frames]
        async with running(tmp_path, HOST, upload_time_s_max=0.3) as served:
            served.store.inner = FailingStore(served.store.inner, *refused)
            results = await send_list(served.client, *frames)
            codes = [one["problem"]["code"] for one in results]
            assert codes.count("store_unavailable") == FRAMES_AT_ONCE
            assert codes.count("overloaded") == FRAMES_AT_ONCE

    run(body())


class DrainingStore(CountingStore):
    """A store that starts the drain of a gateway with the first create."""

    def __init__(self, inner: ObjectStore, drain: Callable[[], None]) -> None:
        super().__init__(inner)
        self.drain = drain

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        self.drain()
        return await super().create(key, body, sha256=sha256)


def test_no_frame_is_begun_after_the_drain_began(tmp_path: Path) -> None:
    async def body() -> None:
        frames = [frame_of(identity(seq=seq)) for seq in range(2 * FRAMES_AT_ONCE)]
        async with running(tmp_path, HOST) as served:
            drain = served.gateway.uploads.running.drain
            served.store.inner = DrainingStore(served.store.inner, drain)
            results = await send_list(served.client, *frames)
            begun = [one["status"] for one in results].count(200)
            assert 1 <= begun <= FRAMES_AT_ONCE
            codes = {one["problem"]["code"] for one in results if one["status"] != 200}
            assert codes == {"draining"}
            accepted = [key for key in keys_of(served.store) if key.startswith("accepted/")]
            assert len(accepted) == begun

    run(body())


def test_a_request_that_is_cut_off_accepts_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, HOST) as served:
            frames = [ListedFrame(frame=frame_of(identity(seq=seq))) for seq in range(9)]
            data = encode_frame_list(frames)
            fields = head_of(served.client, data) | {"Host": served.client.authority}
            head = f"POST {UPLOAD_LIST_PATH} HTTP/1.1\r\n" + "".join(
                f"{name}: {text}\r\n" for name, text in fields.items()
            )
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(f"{head}\r\n".encode() + data[:-1])
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.close()
            await asyncio.sleep(0.05)
            assert served.store.calls == []
            assert served.gateway.uploads.budget.held_bytes == 0
            assert served.gateway.uploads.running.count == 0

    run(body())


def test_a_request_is_refused_as_a_whole_before_any_store_call(tmp_path: Path) -> None:
    async def body() -> None:
        limits = {"frame_bytes_max": 4096, "inflight_bytes_max": 32_768}
        async with running(tmp_path, HOST, **limits) as served:
            client = served.client
            one = encode_frame_list([ListedFrame(frame=frame_of())])

            async def refused(data: bytes, fields: dict[str, str]) -> tuple[int, str]:
                answer = await post(client, data, fields)
                return answer.status, answer.body["code"]

            stranger = TestKey("host-1", ("host-1",))
            unsigned = upload_fields(one) | {"Content-Type": FRAME_LIST_MEDIA_TYPE}
            signed = stranger.sign(unsigned, client.authority, path=UPLOAD_LIST_PATH)
            assert await refused(one, signed) == (401, "unauthenticated")
            assert await refused(one, unsigned) == (401, "unauthenticated")
            assert await refused(one[:-1], head_of(client, one[:-1])) == (400, "invalid_frame")
            swapped = one[:-1] + bytes([one[-1] ^ 1])
            assert await refused(swapped, head_of(client, one)) == (400, "digest_mismatch")
            typed = head_of(client, one, Content_Type="application/vnd.lightmetrics.batch")
            assert await refused(one, typed) == (415, "unsupported_media_type")
            many = bytearray(one)
            many[8:12] = (FRAMES_MAX + 1).to_bytes(4, "little")
            assert await refused(bytes(many), head_of(client, bytes(many))) == (413, "too_large")
            large = bytes(20_000)
            assert await refused(large, head_of(client, large)) == (413, "too_large")
            served.gateway.uploads.budget.reserve(32_768)
            assert await refused(one, head_of(client, one)) == (503, "overloaded")
            served.gateway.uploads.budget.release(32_768)
            served.gateway.uploads.running.drain()
            assert await refused(one, head_of(client, one)) == (503, "draining")
            assert served.store.calls == []

    run(body())
