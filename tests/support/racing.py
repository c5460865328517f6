"""A second process that races each upload: both send concurrently, each to its own gateway."""

import asyncio
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from typing import Any

import aiohttp
from support.gateway import Client, TestKey
from support.history import UploadResult

from sluice_protocol.keys import digest_of


def race(
    key: TestKey, ports: Sequence[int], frames: Sequence[Sequence[bytes]]
) -> list[UploadResult]:
    """Send frames[i] of every racer concurrently, one process per racer, and return all responses.

    Args:
        key: The signer.
        ports: One gateway's port for each racer.
        frames: For each racer its frames; the i-th of all racers claim one identity.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(ports))
    answers: Any = context.Queue()
    seed = key.key.private_bytes_raw()
    racers = [
        context.Process(
            target=_racer, args=(key.name, key.agents, seed, port, mine, barrier, answers)
        )
        for port, mine in zip(ports, frames, strict=True)
    ]
    for racer in racers:
        racer.start()
    history = [told for _ in racers for told in answers.get(timeout=120)]
    for racer in racers:
        racer.join(30)
    return history


def _racer(  # noqa: PLR0917 - the arguments of a new process
    name: str,
    agents: tuple[str, ...],
    seed: bytes,
    port: int,
    frames: Sequence[bytes],
    barrier: Barrier,
    answers: Any,
) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - in the child
        Ed25519PrivateKey,
    )

    key = TestKey(name, agents, key=Ed25519PrivateKey.from_private_bytes(seed))
    answers.put(asyncio.run(_send_all(key, port, frames, barrier)))


async def _send_all(
    key: TestKey, port: int, frames: Sequence[bytes], barrier: Barrier
) -> list[UploadResult]:
    history = []
    async with aiohttp.ClientSession() as session:
        client = Client(session, port, key)
        for number, frame in enumerate(frames):
            await asyncio.to_thread(barrier.wait, 60)
            asked = time.monotonic()
            answer = await client.upload(frame)
            history.append(
                UploadResult(
                    identity=str(number),
                    digest=digest_of(frame),
                    asked=asked,
                    told=time.monotonic(),
                    status=answer.status,
                    duplicate=answer.body.get("duplicate"),
                )
            )
    return history
