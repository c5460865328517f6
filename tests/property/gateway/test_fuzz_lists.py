"""Damaged lists of frames from a known sender: every frame keeps its own result, never a 5xx."""

import asyncio
import contextlib
import struct
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.gateway import HttpResult, Running, TestKey, frame_of, identity, running, upload_fields

from sluice_protocol.errors import SluiceError
from sluice_protocol.frame import decode_frame
from sluice_protocol.frame_lists import ListedFrame, encode_frame_list, parse_frame_list
from sluice_protocol.keys import accepted_key, digest_of
from sluice_protocol.manifests import decode_accepted
from sluice_protocol.outcomes import Found
from sluice_protocol.upload_http import FRAME_LIST_MEDIA_TYPE, UPLOAD_LIST_PATH

HOST = TestKey("host-1", ("host-1",))
WORDS = st.sampled_from(["one", "two", "three"])
NUMBERS = st.sampled_from([0, 1, 2, 15, 16, 17, 255, 256, 257, 65_536, 2**31, 2**32 - 1])


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Draw a frame of few identities and texts, so that duplicates and conflicts are common."""
    frame = frame_of(identity(seq=draw(st.integers(0, 3))), draw(WORDS))
    return frame[:-1] if draw(st.integers(0, 9)) == 0 else frame


@st.composite
def listed(draw: st.DrawFn) -> list[ListedFrame]:
    found = draw(st.lists(frames(), min_size=1, max_size=8))
    return [ListedFrame(frame=one, sent_before=draw(st.booleans())) for one in found]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw a list with bytes changed, removed or inserted, or numbers of its heads changed."""
    data = bytearray(encode_frame_list(draw(listed())))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.integers(0, 4)):
            case 0:
                data[place : place + 1] = bytes([draw(st.integers(0, 255))])
            case 1:
                del data[place:]
            case 2:
                del data[place : place + draw(st.integers(1, 20))]
            case 3:
                data[place:place] = draw(st.binary(min_size=1, max_size=20))
            case _:
                field = draw(st.sampled_from([4, 8, 12, 16, 20]))
                if len(data) >= field + 4:
                    struct.pack_into("<I", data, field, draw(NUMBERS))
    return bytes(data)


class Loop:
    """A gateway that serves on a separate loop between the examples."""

    def __init__(self, tmp_path: Path) -> None:
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.stack = AsyncExitStack()
        self.served: Running = self.runner.run(
            self.stack.enter_async_context(running(tmp_path, HOST))  # type: ignore[arg-type]
        )

    def send(self, body: bytes) -> HttpResult:
        return self.runner.run(self._send(body))

    async def _send(self, body: bytes) -> HttpResult:
        client = self.served.client
        fields = upload_fields(body) | {"Content-Type": FRAME_LIST_MEDIA_TYPE}
        fields = HOST.sign(fields, client.authority, path=UPLOAD_LIST_PATH)
        url = f"http://{client.authority}{UPLOAD_LIST_PATH}"
        async with client.session.post(url, data=body, headers=fields) as answer:
            return HttpResult(answer.status, await answer.json(content_type=None), answer.headers)

    def owner(self, seq: int) -> str | None:
        """Return the digest that owns an identity in the store."""
        key = accepted_key(identity(seq=seq))
        found = self.runner.run(self.served.store.get(key))
        return decode_accepted(key, found.body).digest if isinstance(found, Found) else None

    def close(self) -> None:
        self.runner.run(self.stack.aclose())  # type: ignore[arg-type]
        self.runner.close()


@pytest.fixture(name="loop")
def _loop(tmp_path: Path) -> Iterator[Loop]:
    served = Loop(tmp_path)
    yield served
    served.close()


def expected(frame: bytes, owned: dict[str, str]) -> set[int]:
    """Return the statuses that a frame may have after the frames before it."""
    try:
        decoded = decode_frame(frame)
    except SluiceError:
        return {400, 413}
    if decoded.identity.agent_id != "host-1":
        return {403}
    owner = owned.setdefault(accepted_key(decoded.identity), digest_of(frame))
    return {200} if owner == digest_of(frame) else {409}


def check(loop: Loop, body: bytes, owned: dict[str, str]) -> None:
    loop.served.store.calls.clear()
    answer = loop.send(body)
    parsed: tuple[ListedFrame, ...] = ()
    with contextlib.suppress(SluiceError):
        parsed = parse_frame_list(body)
    if not parsed:
        assert answer.status in {400, 413}, answer
        assert loop.served.store.calls == []
        return
    assert answer.status == 200, answer
    results = answer.body["results"]
    assert len(results) == len(parsed)
    for one, result in zip(parsed, results, strict=True):
        assert result["status"] in expected(one.frame, owned), result
        if result["status"] == 200:
            assert result["accepted"]["frame_sha256"] == digest_of(one.frame)


def fuzz(loop: Loop, examples: int) -> None:
    owned: dict[str, str] = {}

    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(listed().map(encode_frame_list) | damaged())
    def one(body: bytes) -> None:
        check(loop, body, owned)

    one()
    for seq in range(4):
        assert loop.owner(seq) == owned.get(accepted_key(identity(seq=seq)))


def test_each_frame_of_a_list_keeps_its_result(loop: Loop) -> None:
    fuzz(loop, 120)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_each_frame_of_many_lists_keeps_its_result(loop: Loop) -> None:
    fuzz(loop, 10_000)
