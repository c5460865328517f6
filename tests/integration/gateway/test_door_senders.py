"""Who may use a door without a token: a client certificate over TLS, or a signature."""

import io
import json
from pathlib import Path

import aiohttp
from support.door_client import TestSender, accepted_frames
from support.gateway import Running, TestKey, running, upload_fields
from support.gateway_tls import SERVER, Pem, TestAuthority

PATH = "/v1/ingest"
JSON = {"Content-Type": "application/json"}


class _Senders(TestKey):
    """Principals with a key, with a certificate, and with a certificate for another door."""

    @property
    def entry(self) -> str:
        return super().entry + (
            'doors = ["json"]\n'
            '[[principals]]\nname = "certified"\nspiffe = "spiffe://td/shop"\ndoors = ["json"]\n'
            '[[principals]]\nname = "loki-only"\nspiffe = "spiffe://td/loki"\ndoors = ["loki"]\n'
        )


HOST = _Senders("host-1", ("host-1",))
SHOP = TestSender("shop", (), doors=("json",))


def body(text: str) -> bytes:
    return json.dumps({"time": 1_763_769_600, "message": text}).encode()


async def owners(served: Running) -> list[str]:
    """Return the principals in the names of the senders in the lake."""
    frames = await accepted_frames(served.store.inner)
    return sorted(frame.identity.agent_id.rpartition(":")[0] for frame in frames)


async def test_a_client_certificate_is_the_sender(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path / "ca")
    server = authority.issue("server", usage=SERVER)
    known, other, stranger = (
        authority.issue(name, f"spiffe://td/{name}") for name in ("shop", "loki", "stranger")
    )
    async with running(
        tmp_path, HOST, SHOP, doors=("json",), tls_certificate=server.certificate,
        tls_key=server.key, tls_client_ca=authority.path,
    ) as served:  # fmt: skip

        async def send(pem: Pem | None, text: str, token: str = "") -> int:
            fields = JSON | ({"Authorization": f"Bearer {token}"} if token else {})
            connector = aiohttp.TCPConnector(ssl=authority.client_context(pem))
            url = f"https://127.0.0.1:{served.port}{PATH}"
            async with (
                aiohttp.ClientSession(connector=connector) as session,
                session.post(url, data=io.BytesIO(body(text)), headers=fields) as answer,
            ):
                return answer.status

        assert await send(known, "one") == 200
        assert await send(other, "two") == 403
        assert await send(stranger, "three") == 401
        assert await send(None, "four") == 401
        assert await send(known, "five", SHOP.token.token) == 200
        assert await owners(served) == ["door:certified", "door:shop"]


async def test_a_signature_is_the_sender(tmp_path: Path) -> None:
    async with running(tmp_path, HOST, SHOP, doors=("json",)) as served:

        async def send(signed: bytes, sent: bytes) -> int:
            fields = upload_fields(signed) | JSON
            fields = HOST.sign(fields, served.client.authority, path=PATH)
            fields["Content-Length"] = str(len(sent))
            url = f"http://{served.client.authority}{PATH}"
            session = served.client.session
            async with session.post(url, data=io.BytesIO(sent), headers=fields) as answer:
                return answer.status

        assert await send(body("one"), body("one")) == 200
        assert await send(body("one"), body("two")) == 400
        assert await owners(served) == ["door:host-1"]
