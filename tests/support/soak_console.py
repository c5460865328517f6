"""A console whose clock runs faster: `python -m support.soak_console STORE QUERY [leak]`.

A sample is due every 10 s of its clock, so a day of samples takes some minutes. With `leak` it
keeps what it sends, so that a test shows that growth is found.
"""

import asyncio
import sys
import time
from pathlib import Path

from aiohttp import web

from sluice_console.app import MAPPED_BYTES_MIN, open_console
from sluice_console.settings import ConsoleSettings
from sluice_protocol.system_clock import SystemClock
from sluice_store.local import open_local_store
from sluice_web.connection_guard import listening
from sluice_web.listening import ServerOptions
from sluice_web.process_limits import MMAP_THRESHOLD, set_allocator_options

FASTER = 1_000


class FastClock(SystemClock):
    """The machine's clock; pauses and monotonic time are a thousand times shorter."""

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() * FASTER

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / FASTER)


def keep_every_response() -> None:
    """Keep a copy of all bytes that the console sends."""
    kept: list[bytes] = []
    former = web.StreamResponse.write

    async def write(self: web.StreamResponse, data: bytes) -> None:
        kept.append(bytes(data))
        await former(self, data)

    web.StreamResponse.write = write  # type: ignore[method-assign, assignment]


async def main(store_folder: Path, query: str) -> None:
    set_allocator_options({MMAP_THRESHOLD: MAPPED_BYTES_MIN})
    settings = ConsoleSettings(listen="127.0.0.1:0", query=query)
    async with (
        open_local_store(store_folder) as store,
        open_console(store, "s3://logs/production", settings, FastClock()) as app,
        listening(app, settings.listen, ServerOptions(shutdown_s=1.0)) as urls,
    ):
        print(urls[0], flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    if "leak" in sys.argv[3:]:
        keep_every_response()
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
