"""Bodies of responses that a client reads up to a limit."""

import aiohttp


async def read_up_to(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Return the body of a response, or its first `bytes_max` bytes.

    A single read returns only what has arrived so far.
    """
    body = bytearray()
    while len(body) < bytes_max:
        piece = await response.content.read(bytes_max - len(body))
        if not piece:
            break
        body += piece
    return bytes(body)
