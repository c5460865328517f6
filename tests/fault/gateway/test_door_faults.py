"""Every door: a fault before or after each write, a kill, and a lost answer.

Each fault is followed by the retry of the client at another gateway, and by one more, as after an
answer that was lost. Consumers then read every record once.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, get_args

import aiohttp
import pytest
from support.door_bodies import DOOR_CASES, S, pack
from support.door_client import TestSender, post
from support.dying_store import WriteFault, WriteFaultStore
from support.forward_door import close_clients, connect
from support.gateway import Running, TestKey, running
from support.reconciler_seed import queued_bodies

from sluice_doors.table import DoorName
from sluice_gateway.process.worker import serving_forward_port
from sluice_protocol.authority import Authority
from sluice_reconciler.service import Reconciler
from sluice_store import StoreMode, open_store
from sluice_store.port import ObjectStore

HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", (), doors=get_args(DoorName))
CHUNK = pack(["app", [[S, {"log": "first"}], [S + 1, {"log": "second"}]], {"chunk": "c1"}])
FORMS = {"separate": 0, "combined": 4096}


async def send(served: Running, port: int, door: str) -> bool:
    """Send the request of a door; return whether it is a success."""
    if door == "forward":
        return await send_forward(port)
    case = DOOR_CASES[door]
    answer = await post(served, case.path, case.body, SHOP.token.token, case.headers)
    assert answer.status in {case.status, 503}, answer
    return answer.status == case.status


async def send_forward(port: int) -> bool:
    """Send the chunk; return whether it is acknowledged."""
    client = await connect(port)
    try:
        await client.send(CHUNK)
        answer = await client.receive()
    finally:
        client.close()
    assert answer in (None, {"ack": "c1"})
    return answer is not None


@asynccontextmanager
async def serving(
    folder: Path, store: ObjectStore, own_frame_bytes: int
) -> AsyncIterator[tuple[Running, int]]:
    options = {"door_own_frame_bytes": own_frame_bytes, "door_flush_ms": 5}
    async with (
        running(
            folder, HOST, SHOP, store=store, doors=get_args(DoorName), upload_time_s_max=0.5,
            forward_listen="127.0.0.1:0", forward_principal="shop", **options,
        ) as served,
        serving_forward_port(served.gateway) as port,
    ):  # fmt: skip
        try:
            yield served, port
        finally:
            await close_clients()


async def read_records(store: ObjectStore) -> Counter[str]:
    """Enqueue everything, and return how often a consumer reads each body or name of a metric."""
    await Reconciler(store, Authority(authority_id="A", lanes=2)).once()
    return await queued_bodies(store)


async def send_with(
    folder: Path, inner: ObjectStore, door: str, form: str, fault: WriteFault
) -> None:
    """Send to a gateway with a fault, and twice to another one, as a client with a lost answer."""
    store = WriteFaultStore(inner, fault)
    async with serving(folder / "a", store, FORMS[form]) as (served, port):
        first = asyncio.create_task(send(served, port, door))
        reached = asyncio.create_task(store.reached.wait())
        await asyncio.wait([first, reached], return_when=asyncio.FIRST_COMPLETED)
        if not fault.kills:
            await first
        assert store.reached.is_set()
    first.cancel()
    with suppress(asyncio.CancelledError, aiohttp.ClientError, OSError):
        assert not (await first and fault.kills)
    async with serving(folder / "b", inner, FORMS[form]) as (served, port):
        for _ in range(2):
            async with asyncio.timeout(60):
                while not await send(served, port, door):  # noqa: ASYNC110 - each try is a request
                    await asyncio.sleep(0.05)


def _cases() -> Iterator[Any]:
    """Yield every case; each door has one that is not long, and each form of fault two doors."""
    faults = list(itertools.product(FORMS, {"fails": False, "killed": True}.items()))
    for place, door in enumerate(DOOR_CASES):
        for number, (form, (name, kills)) in enumerate(faults):
            marks = () if number == place % len(faults) else pytest.mark.long
            yield pytest.param(door, form, kills, id=f"{door}-{form}-{name}", marks=marks)


@pytest.mark.daily(4)
@pytest.mark.parametrize(("door", "form", "kills"), list(_cases()))
async def test_a_fault_at_every_write_loses_and_doubles_nothing(
    tmp_path: Path, door: str, form: str, kills: bool
) -> None:
    for nth in range(1, DOOR_CASES[door].writes + 1):
        for applies in (False, True):
            folder = tmp_path / f"{nth}-{applies}"
            async with open_store(f"file://{folder}/store", StoreMode.CREATE) as inner:
                fault = WriteFault(nth=nth, applies=applies, kills=kills)
                await send_with(folder, inner, door, form, fault)
                assert await read_records(inner) == DOOR_CASES[door].records, fault
