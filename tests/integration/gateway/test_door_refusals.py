"""What each door responds while something is wrong, and that nothing of it is accepted.

The order is that of a bad day: bodies that can never be accepted, a store that refuses writes, and
a token that is revoked while the gateway runs.
"""

import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.door_bodies import DOOR_CASES, DoorCase
from support.door_client import DoorAnswer, TestSender, accepted_frames, post
from support.dying_store import RefusingStore
from support.gateway import Running, TestKey, running

from sluice_doors.table import DoorName
from sluice_store import StoreMode, open_store

HOST = TestKey("host-1", ("host-1",))
HTTP_CASES: dict[DoorName, DoorCase] = {
    "otlp": DOOR_CASES["otlp"],
    "prometheus": DOOR_CASES["prometheus"],
    "loki": DOOR_CASES["loki"],
    "elasticsearch": DOOR_CASES["elasticsearch"],
    "hec": DOOR_CASES["hec"],
    "firehose": DOOR_CASES["firehose"],
    "json": DOOR_CASES["json"],
}
UNKNOWN_SENDER = {"hec": 403}
"""The status for a wrong token; Splunk's collector responds 403, the others 401."""
BODY_BYTES_MAX = 100_000
LARGE = b" " * (BODY_BYTES_MAX + 1)


async def chunks(body: bytes) -> AsyncIterator[bytes]:
    """Yield a body whose length is not announced."""
    for start in range(0, len(body), 10_000):
        yield body[start : start + 10_000]


@pytest.mark.parametrize("door", HTTP_CASES)
async def test_faults_are_refused_in_the_form_that_clients_expect(
    tmp_path: Path, door: DoorName
) -> None:
    case = HTTP_CASES[door]
    sender = TestSender("shop", (), doors=(door,))

    async def send(served: Running, body: bytes | AsyncIterator[bytes], **more: str) -> DoorAnswer:
        named = {name.replace("_", "-"): value for name, value in more.items()}
        headers = {**case.headers, **named}
        return await post(served, case.path, body, sender.token.token, headers)

    async with open_store(f"file://{tmp_path}/shared", StoreMode.CREATE) as shared:
        store = RefusingStore(shared)
        async with running(
            tmp_path, HOST, sender, store=store, doors=(door,),
            door_body_bytes_max=BODY_BYTES_MAX,
        ) as served:  # fmt: skip
            damaged = await send(served, b"\xff\xfe", Content_Encoding="gzip")
            assert damaged.status == 400
            unknown = await send(served, case.body, Content_Encoding="br")
            assert unknown.status == 400
            for large in (LARGE, chunks(LARGE)):
                assert (await send(served, large)).status == 413
            bomb = await send(served, gzip.compress(LARGE), Content_Encoding="gzip")
            assert bomb.status == 413
            later = await send(served, case.body)
            assert (later.status, later.headers["Retry-After"]) == (503, "1")
            assert await accepted_frames(shared) == []
            store.refuses = ()
            assert (await send(served, case.body)).status == case.status
            accepted = len(await accepted_frames(shared))
            assert accepted == case.writes // 2
            principals = served.gateway.uploads.principals
            principals._path.write_text(HOST.entry, encoding="utf-8")
            assert [principals.reload() for _ in range(2)] == [False, True]
            revoked = await send(served, case.body)
            assert revoked.status == UNKNOWN_SENDER.get(door, 401)
            assert len(await accepted_frames(shared)) == accepted
