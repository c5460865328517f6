"""Requests of Fluent Bit, Vector and Alloy: their success, and one record for each of theirs."""

from pathlib import Path
from typing import get_args

import pytest
from support.door_client import TestSender, accepted_frames, post
from support.gateway import Running, TestKey, run, running
from support.recorded_requests import RECORDED

from sluice_doors.table import DoorName
from sluice_protocol.columns import LogColumns

HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", (), doors=get_args(DoorName))


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_request(tmp_path: Path, name: str) -> None:
    """With the door of this client open, and no other."""
    recorded = RECORDED[name]

    async def check(served: Running) -> None:
        for probe in recorded.probes:
            url = f"http://127.0.0.1:{served.port}{probe}"
            async with served.client.session.get(url) as answer:
                assert answer.status == 200, probe
        for _ in range(2):
            answer_ = await post(
                served, recorded.path, recorded.body, SHOP.token.token, recorded.headers
            )
            assert answer_.status == recorded.status, answer_.body
        frames = await accepted_frames(served.store.inner)
        bodies = [
            body.decode()
            for frame in frames
            if isinstance(frame.columns, LogColumns)
            for body in frame.columns.body.slices()
        ]
        assert sorted(bodies) == sorted(recorded.bodies)

    async def main() -> None:
        async with running(tmp_path, HOST, SHOP, doors=(recorded.door,)) as served:
            await check(served)

    run(main())
