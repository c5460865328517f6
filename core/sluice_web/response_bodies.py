"""Bodies of responses that a client reads up to a limit."""

import aiohttp


async def read_up_to(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Return the body, or its first `bytes_max` bytes; one read returns only what has arrived."""
    body = bytearray()
    while len(body) < bytes_max:
        piece = await response.content.read(bytes_max - len(body))
        if not piece:
            break
        body += piece
    return bytes(body)
