"""The window of requests to doors whose records this spool has made durable.

A client that lost a response sends its request again. The digests of the last `REQUESTS_MAX`
requests with an identity are therefore part of the spool: a batch contains those of its requests,
so that one rename makes records and digests durable together, and the state contains those of
removed batches. An older request is accepted again as new.

A window is the concatenation of digests of `DIGEST_BYTES`, the oldest first. Source: ADR 17.
"""

import hashlib
from typing import Final

DIGEST_BYTES: Final = 16
REQUESTS_MAX: Final = 16_384
"""256 KiB in the state, which is written at most twice a second."""


def part_digest(request: bytes, start: int, count: int) -> bytes:
    """Return the digest of some records of a request.

    `start` and `count` select the records within the request, of whose identity `request` is the
    digest.
    """
    span = start.to_bytes(8, "little") + count.to_bytes(8, "little")
    return hashlib.sha256(request + span).digest()[:DIGEST_BYTES]


def add_requests(window: bytes, added: bytes) -> bytes:
    """Return the window with more requests, and without the oldest above the limit."""
    return (window + added)[-REQUESTS_MAX * DIGEST_BYTES :] if added else window


def remove_requests(window: bytes, removed: bytes) -> bytes:
    """Return the window without some requests."""
    gone = set(split_requests(removed))
    return b"".join(one for one in split_requests(window) if one not in gone)


def split_requests(window: bytes) -> list[bytes]:
    """Return the digests of a window, the oldest first."""
    return [window[at : at + DIGEST_BYTES] for at in range(0, len(window), DIGEST_BYTES)]
