"""A read of a range returns the range, also from a server that sends the whole object."""

import asyncio

import pytest

from sluice_protocol.exchange_verdicts import Responded
from sluice_protocol.units import ObjectKey
from sluice_store.s3.exchange import S3Exchange, S3Request
from sluice_store.s3.store import S3Store

BODY = b"0123456789"


class Server:
    """A server that ignores `Range`, or not."""

    def __init__(self, *, ranged: bool) -> None:
        self.ranged = ranged

    async def send(self, request: S3Request, body: bytes = b"") -> S3Exchange:
        del body
        if not self.ranged:
            headers = {"Content-Length": str(len(BODY))}
            return S3Exchange(seen=Responded(status=200), headers=headers, body=BODY)
        first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
        part = BODY[int(first) : int(last) + 1 if last else None]
        headers = {
            "Content-Length": str(len(part)),
            "Content-Range": f"bytes {first}-{int(first) + len(part) - 1}/{len(BODY)}",
        }
        return S3Exchange(seen=Responded(status=206), headers=headers, body=part)


@pytest.mark.parametrize("ranged", [True, False])
@pytest.mark.parametrize(("first", "last"), [(0, 3), (2, 5), (7, None), (7, 99), (0, 9)])
def test_a_range_is_what_was_asked_for(first: int, last: int | None, *, ranged: bool) -> None:
    store = S3Store(Server(ranged=ranged), None, "")  # type: ignore[arg-type] - no bucket is read
    found = asyncio.run(store.get(ObjectKey("a"), first=first, last=last))
    assert found.body == BODY[first : None if last is None else last + 1]
    assert found.info.size_bytes == len(BODY)
