"""`sluice upload FRAME`: send one frame to one gateway and print the response."""

import asyncio
import dataclasses
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from sluice_agent.sending.foreign_responses import describe_foreign_server
from sluice_agent.sending.gateway_choice import GatewayTarget
from sluice_agent.sending.signing_key import read_key
from sluice_agent.sending.transport import (
    HttpTransport,
    UploadRequest,
    UploadResult,
    client_tls,
    open_upload_session,
)
from sluice_agent.sending.upload_decisions import (
    Forget,
    GatewayResponse,
    NoGatewayResponse,
    SendAgain,
    decide_reaction,
)
from sluice_cli.shell.options import Json
from sluice_cli.shell.output import emit
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.keys import digest_of
from sluice_protocol.settings_checks import is_base_url
from sluice_protocol.system_clock import SystemClock

if TYPE_CHECKING:
    from rich.console import Console

UPLOAD_S: Final = 60.0
CONNECT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadReport:
    """The result of one upload.

    Attributes:
        status: The HTTP status; 0 without a response.
        problem: Why this is not the response of a gateway; empty if it is.
    """

    frame_sha256: str
    status: int
    reaction: str
    problem: str
    answer: str


def upload(
    frame: Path,
    *,
    gateway: str,
    key: Path | None = None,
    retry: Annotated[bool, Parameter(negative="")] = False,
    tls_ca: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    json: Json = False,
) -> int:
    """Send one frame unchanged and print the response; exit 0 only on 200.

    Args:
        frame: The file with the frame.
        gateway: The gateway's base URL.
        key: The agent's key file; without it the upload is not signed.
        retry: Mark these bytes as sent before (`Sluice-Retry: 1`).
        tls_ca: File of CA certificates, PEM; default is the system's.
        tls_cert: File of the client certificate for mTLS, PEM.
        tls_key: File of the client certificate's key; default is the certificate's file.
        json: Print JSON for programs.
    """
    if not is_base_url(gateway):
        raise BadUsage(
            f"the gateway must be a base URL such as http://host:port, gateway=`{gateway}`"
        )
    try:
        body = frame.read_bytes()
    except OSError as error:
        raise BadUsage(f"cannot read the frame: {error.strerror}, path=`{frame}`") from error
    sent = UploadRequest(frame=body, digest=digest_of(body), retry=retry)
    tls = client_tls(tls_ca, tls_cert, tls_key)
    received = asyncio.run(_send(gateway, key, sent, tls))
    report = _report(gateway, sent, received)
    emit(report, as_json=json, human=lambda console: _draw(console, report))
    accepted = isinstance(decide_reaction(received.response, sent=sent.digest), Forget)
    return ExitCode.DONE.value if accepted else ExitCode.FOUND_WRONG.value


async def _send(
    gateway: str, key: Path | None, sent: UploadRequest, tls: ssl.SSLContext | None
) -> UploadResult:
    signing = read_key(key) if key is not None else None
    async with open_upload_session(
        tls=tls, connections_max=1, total_s=UPLOAD_S, connect_s=CONNECT_S
    ) as session:
        return await HttpTransport(session, key=signing, clock=SystemClock()).send(
            GatewayTarget(url=gateway), sent
        )


def _report(gateway: str, sent: UploadRequest, received: UploadResult) -> UploadReport:
    response = received.response
    failure = response.failure.value if isinstance(response, NoGatewayResponse) else ""
    reaction = decide_reaction(response, sent=sent.digest)
    problem = ""
    if isinstance(response, GatewayResponse) and isinstance(reaction, SendAgain):
        target = GatewayTarget(url=gateway)
        problem = describe_foreign_server(target, response) if reaction.is_foreign else ""
    return UploadReport(
        frame_sha256=sent.digest,
        status=response.status if isinstance(response, GatewayResponse) else 0,
        reaction=reaction.name,
        problem=problem,
        answer=failure or received.body.decode(errors="replace"),
    )


def _draw(console: "Console", report: UploadReport) -> None:
    for name, value in dataclasses.asdict(report).items():
        console.print(f"{name}: {value}", markup=False)
