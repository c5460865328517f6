"""The agent over TLS to a real gateway: its certificate identifies it."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.gateway import TestKey, run, running
from support.gateway_tls import SERVER, TestAuthority

from sluice_agent.app import run_forward
from sluice_agent.sending.gateway_choice import GatewayTarget
from sluice_agent.sending.transport import (
    HttpTransport,
    UploadRequest,
    UploadResult,
    client_tls,
    open_upload_session,
)
from sluice_agent.sending.upload_decisions import ConnectionFailure, NoGatewayResponse
from sluice_agent.settings import AgentSettings, Durability
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import digest_of
from sluice_protocol.system_clock import SystemClock


def failure_of(result: UploadResult) -> ConnectionFailure:
    assert isinstance(result.response, NoGatewayResponse)
    return result.response.failure


class _Fleet(TestKey):
    @property
    def entry(self) -> str:
        template = 'agent_template = "spiffe://td/agent/{agent}"'
        return super().entry + f'[[principals]]\nname = "fleet"\n{template}\n'


def test_a_certificate_identifies_the_agent(tmp_path: Path) -> None:
    """mTLS without a signature is accepted; a gateway of another authority is not trusted."""
    authority = TestAuthority(tmp_path / "ca")
    server = authority.issue("server", usage=SERVER)
    own = authority.issue("host-1", "spiffe://td/agent/" + b"host-1".hex())
    (tmp_path / "lines").write_bytes(b"one\ntwo\n")

    async def main() -> None:
        async with running(
            tmp_path, _Fleet("other", ("other",)), tls_certificate=server.certificate,
            tls_key=server.key, tls_client_ca=authority.path,
        ) as served:  # fmt: skip
            settings = AgentSettings(
                gateway=f"https://127.0.0.1:{served.port}", spool=tmp_path / "s",
                agent_id="host-1", tls_ca=authority.path, tls_cert=own.certificate,
                tls_key=own.key,
            )  # fmt: skip
            await forward(settings)
            await distrust(replace(settings, tls_ca=TestAuthority(tmp_path / "evil").path))

    async def forward(settings: AgentSettings) -> None:
        descriptor = os.open(tmp_path / "lines", os.O_RDONLY)
        outcome = await run_forward(
            settings, durability=Durability.ACCEPTED, descriptor=descriptor, stop=asyncio.Event()
        )
        os.close(descriptor)
        assert (outcome.sealed_records, outcome.waiting, outcome.parked) == (2, 0, 0)

    async def distrust(settings: AgentSettings) -> None:
        tls = client_tls(settings.tls_ca, settings.tls_cert, settings.tls_key)
        async with open_upload_session(
            tls=tls, connections_max=1, total_s=5, connect_s=2
        ) as session:
            transport = HttpTransport(session, key=None, clock=SystemClock())
            sent = UploadRequest(frame=b"x", digest=digest_of(b"x"))
            received = await transport.send(GatewayTarget(url=settings.gateway), sent)
        assert failure_of(received) is ConnectionFailure.TLS

    run(main())


def test_invalid_certificate_files_are_reported(tmp_path: Path) -> None:
    """The command fails before anything is sent."""
    (tmp_path / "no.pem").write_text("nothing")
    for ca, cert in ((tmp_path / "no.pem", None), (None, tmp_path / "no.pem"), (tmp_path, None)):
        with pytest.raises(BadUsage, match="cannot use certificate"):
            client_tls(ca, cert, None)
