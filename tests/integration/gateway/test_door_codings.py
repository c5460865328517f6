"""Each door accepts each content coding, and a request in another coding is the same request."""

import gzip
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

import cramjam
import pytest
import zstandard
from support.door_bodies import DOOR_CASES, SAMPLES
from support.door_client import TestSender, accepted_frames, post
from support.gateway import TestKey, running

from sluice_doors.table import HTTP_DOORS, DoorName

HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", (), doors=get_args(DoorName))
CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.compress,
    "snappy": lambda body: bytes(cramjam.snappy.compress_raw(body)),
}


@pytest.mark.parametrize("door", HTTP_DOORS)
async def test_a_request_in_each_coding_is_accepted_once(tmp_path: Path, door: DoorName) -> None:
    case = DOOR_CASES[door]
    plain = SAMPLES if door == "prometheus" else case.body

    async with running(tmp_path, HOST, SHOP, doors=(door,)) as served:
        for coding, encode in CODINGS.items():
            headers = {**case.headers, "Content-Encoding": coding}
            answer = await post(served, case.path, encode(plain), SHOP.token.token, headers)
            assert answer.status == case.status, (coding, answer.body)
        assert len(await accepted_frames(served.store.inner)) == case.writes // 2
        counted = partial(served.count, "sluice_door_requests_total", door=door)
        assert counted(outcome="new") == 1
        assert counted(outcome="duplicate") == len(CODINGS) - 1
