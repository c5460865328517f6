"""A body in memory as aiohttp sends it: in slices, so that a large one does not hold the loop."""

from typing import Final

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

_SLICE_BYTES: Final = 1024 * 1024


class Body(Payload):
    """The bytes of one whole object; aiohttp's own payload warns above 1 MiB."""

    _value: bytes

    def __init__(self, value: bytes) -> None:
        """Takes the bytes; they are not copied."""
        super().__init__(value)
        self._size = len(value)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Gives the bytes as text."""
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Sends everything, waiting for the socket between slices."""
        view = memoryview(self._value)
        for start in range(0, len(view), _SLICE_BYTES):
            await writer.write(view[start : start + _SLICE_BYTES])

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        """Sends everything: the length of a body is its own."""
        del content_length
        await self.write(writer)
