"""`app | sluice forward`: ship standard input, line by line."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sluice_agent.settings import (
    AgentSettings,
    Durability,
    WhenFull,
    default_agent_id,
)
from sluice_cli.agent import draw_outcome, exit_code, run_until_signal, with_key
from sluice_cli.shell.options import Json
from sluice_cli.shell.output import emit


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardSettings:
    """The settings of `sluice forward`.

    Attributes:
        gateway: Base URLs of equivalent gateways, separated by commas; a name that resolves to
            several addresses is that many gateways.
        durability: `fast` survives a kill and `durable` also a power loss; both leave unsent
            batches in the spool for the next run. `accepted` ends when all batches are accepted.
        spool: Directory of the spool; concurrent runs share it, each in a separate slot.
        key: File of the Ed25519 key; default is the key that `sluice agent init` created here.
        agent_id: The id under which records are accepted; default is the host's name.
        give_up_s: Seconds of failing uploads after which the command fails with exit code 3; the
            batches stay in the spool for the next run. 0 never gives up.
        uploads: Number of concurrent uploads; 1 sends batches in order.
        spool_bytes: Maximum size of the spool; when it is reached, inputs are blocked.
        when_full: What to do while the spool is full: `block`, or `drop_newest` (counted).
        timezone: Zone of timestamps that specify none, such as `Europe/Berlin`; empty is the
            system's.
        resource: `key=value` attributes of every record.
        tls_ca: File of CA certificates, PEM; default is the system's.
        tls_cert: File of the client certificate for mTLS, PEM.
        tls_key: File of the client certificate's key; default is the certificate's file.
    """

    gateway: str
    durability: Durability = Durability.DURABLE
    spool: Path = Path(".sluice-agent/forward")
    key: Path | None = None
    agent_id: str = field(default_factory=default_agent_id)
    give_up_s: float = 0.0
    uploads: int = 4
    spool_bytes: int = 1024 * 1024 * 1024
    when_full: WhenFull = WhenFull.BLOCK
    timezone: str = ""
    resource: tuple[str, ...] = ()
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def for_agent(self) -> AgentSettings:
        """Return the equivalent settings of an agent."""
        return AgentSettings(
            gateway=self.gateway,
            spool=self.spool,
            key=self.key,
            agent_id=self.agent_id,
            uploads=self.uploads,
            spool_bytes=self.spool_bytes,
            when_full=self.when_full,
            timezone=self.timezone,
            resource=self.resource,
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
        )


def forward(
    *, settings: Annotated[ForwardSettings, Parameter(name="*")], json: Json = False
) -> int:
    """Ship standard input until it ends; exit 1 if a batch was parked, dropped or not sent."""
    from sluice_agent.app import run_forward  # noqa: PLC0415 - quick help

    agent = with_key(settings.for_agent())
    outcome = run_until_signal(
        lambda stop: run_forward(
            agent,
            durability=settings.durability,
            descriptor=sys.stdin.fileno(),
            stop=stop,
            give_up_s=settings.give_up_s,
        )
    )
    emit(outcome, as_json=json, human=lambda console: draw_outcome(console, outcome))
    return exit_code(outcome, all_accepted=settings.durability is Durability.ACCEPTED)
