"""Validates frames without holding the event loop: small ones at once, others in a thread.

Two threads at most decode at a time, and only one of them a payload of more than
`LARGE_RAW_BYTES`: a frame of 16 MiB may unfold to 64 MiB, and memory stays bounded.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sluice_protocol.envelope import Envelope
from sluice_protocol.frame import decode_frame

INLINE_BYTES_MAX: Final = 64 * 1024
INLINE_RAW_BYTES_MAX: Final = 256 * 1024
LARGE_RAW_BYTES: Final = 8 * 1024 * 1024
THREADS: Final = 2
_RAW_BYTES_AT: Final = slice(16, 20)


def announced_raw_bytes(frame: bytes) -> int:
    """Gives what the header says of the payload's unfolded size, believed for scheduling alone."""
    return int.from_bytes(frame[_RAW_BYTES_AT], "little")


class FrameDecoder:
    """Decodes whole frames and keeps what the gateway needs of them: the envelope."""

    def __init__(self, frame_bytes_max: int) -> None:
        """Takes the largest frame that this gateway takes."""
        self._frame_bytes_max = frame_bytes_max
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="decode")
        self._large = asyncio.Lock()

    async def decode(self, frame: bytes) -> Envelope:
        """Checks every rule of a frame and gives its envelope.

        Raises:
            InvalidFrame: The frame breaks a rule.
            UnsupportedVersion: It is of a version that this build does not know.
            TooLarge: It is over a limit.
        """
        raw_bytes = announced_raw_bytes(frame)
        if len(frame) <= INLINE_BYTES_MAX and raw_bytes <= INLINE_RAW_BYTES_MAX:
            return self._check(frame)
        if max(raw_bytes, len(frame)) <= LARGE_RAW_BYTES:
            return await self._in_thread(frame)
        async with self._large:
            return await self._in_thread(frame)

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(self, frame: bytes) -> Envelope:
        return decode_frame(frame, frame_bytes_max=self._frame_bytes_max).envelope

    async def _in_thread(self, frame: bytes) -> Envelope:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._check, frame)
