"""Damaged lists of frames from a known sender: every frame keeps its own result, never a 5xx."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.gateway import HttpResult, TestKey, frame_of, identity, upload_fields
from support.gateway_loop import GatewayLoop, damaged_bytes
from support.repetitions import times

from sluice_protocol.errors import SluiceError
from sluice_protocol.frame import decode_frame
from sluice_protocol.keys import accepted_key, digest_of
from sluice_protocol.manifests import decode_accepted
from sluice_protocol.outcomes import Found
from sluice_protocol.upload_http import (
    FRAME_LIST_MEDIA_TYPE,
    UPLOAD_LIST_PATH,
    ListedFrame,
    encode_frame_list,
    parse_frame_list,
)

HOST = TestKey("host-1", ("host-1",))
WORDS = st.sampled_from(["one", "two", "three"])
NUMBERS = (0, 1, 2, 15, 16, 17, 255, 256, 257, 65_536, 2**31, 2**32 - 1)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Draw a frame of few identities and texts, so that duplicates and conflicts are common."""
    frame = frame_of(identity(seq=draw(st.integers(0, 3))), draw(WORDS))
    return frame[:-1] if draw(st.integers(0, 9)) == 0 else frame


@st.composite
def listed(draw: st.DrawFn) -> list[ListedFrame]:
    found = draw(st.lists(frames(), min_size=1, max_size=8))
    return [ListedFrame(frame=one, sent_before=draw(st.booleans())) for one in found]


DAMAGED = damaged_bytes(listed().map(encode_frame_list), NUMBERS, changes_max=3, run_bytes_max=20)


def send(loop: GatewayLoop, body: bytes) -> HttpResult:
    async def post() -> HttpResult:
        client = loop.served.client
        fields = upload_fields(body) | {"Content-Type": FRAME_LIST_MEDIA_TYPE}
        fields = HOST.sign(fields, client.authority, path=UPLOAD_LIST_PATH)
        url = f"http://{client.authority}{UPLOAD_LIST_PATH}"
        async with client.session.post(url, data=body, headers=fields) as answer:
            return HttpResult(answer.status, await answer.json(content_type=None), answer.headers)

    return loop.run(post())


def owner(loop: GatewayLoop, seq: int) -> str | None:
    """Return the digest that owns an identity in the store."""
    key = accepted_key(identity(seq=seq))
    found = loop.run(loop.served.store.get(key))
    return decode_accepted(key, found.body).digest if isinstance(found, Found) else None


@pytest.fixture(name="loop")
def _loop(tmp_path: Path) -> Iterator[GatewayLoop]:
    served = GatewayLoop(tmp_path, HOST)
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


def check(loop: GatewayLoop, body: bytes, owned: dict[str, str]) -> None:
    loop.served.store.calls.clear()
    answer = send(loop, body)
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


def fuzz(loop: GatewayLoop, examples: int) -> None:
    owned: dict[str, str] = {}

    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(listed().map(encode_frame_list) | DAMAGED)
    def one(body: bytes) -> None:
        check(loop, body, owned)

    one()
    for seq in range(4):
        assert owner(loop, seq) == owned.get(accepted_key(identity(seq=seq)))


def test_each_frame_of_a_list_keeps_its_result(loop: GatewayLoop) -> None:
    fuzz(loop, 50)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_each_frame_of_many_lists_keeps_its_result(loop: GatewayLoop) -> None:
    fuzz(loop, times(700))
