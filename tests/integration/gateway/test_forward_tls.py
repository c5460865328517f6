"""The forward protocol over TLS."""

from pathlib import Path

from support.door_client import accepted_frames
from support.event_bodies import FORWARD
from support.forward_client import connect
from support.forward_door import KEY, serving
from support.gateway import run
from support.gateway_tls import SERVER, TestAuthority


def test_a_client_certificate_needs_no_handshake(tmp_path: Path) -> None:
    async def main() -> None:
        authority = TestAuthority(tmp_path / "ca")
        server = authority.issue("server", usage=SERVER)
        tls = {
            "tls_certificate": server.certificate, "tls_key": server.key,
            "tls_client_ca": authority.path, "forward_principal": "",
        }  # fmt: skip
        async with serving(tmp_path, **tls) as (served, port):
            known = authority.issue("fluent", "spiffe://td/fluent")
            client = await connect(port, authority.client_context(known))
            await client.send(FORWARD["message"])
            assert await client.receive() == {"ack": "c1"}
            unknown = authority.issue("what", "spiffe://td/what")
            client = await connect(port, authority.client_context(unknown))
            await client.send(FORWARD["forward"])
            assert await client.receive() is None
            client = await connect(port, authority.client_context(None))
            assert (await client.log_in(KEY) or [])[1] is True
            assert len(await accepted_frames(served.store.inner)) == 1

    run(main())
