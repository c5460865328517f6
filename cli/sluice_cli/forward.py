"""`app | sluice forward`: ships standard input, line by line, with a promise about its safety."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sluice_agent.app import run_forward
from sluice_agent.batching import WhenFull
from sluice_agent.settings import AgentSettings, Durability, default_agent_id
from sluice_cli.agent import draw_outcome, exit_code, run_until_signal, with_key
from sluice_cli.common import Json
from sluice_cli.output import emit


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardSettings:
    """The settings of `sluice forward`.

    Attributes:
        gateway: Base URLs of gateways, separated by commas; all are equal.
        durability: `fast`: safe against a kill; `durable`: against a power cut too; what could
            not be sent in time waits for the next run; `accepted`: ends when all is accepted.
        spool: Directory of the spool; several forwards share it, each in a part of its own.
        key: File of the Ed25519 key; default what `sluice agent init` made in this directory.
        agent_id: The id under which records are accepted; default the host's name.
        drain_s: Seconds to go on sending after the input ended, for `fast` and `durable`.
        batch_bytes: Cut a batch at about so many bytes before compression.
        batch_records: Cut a batch at so many records.
        batch_age_s: Cut a batch so many seconds after its first record.
        uploads: Batches in flight at once; 1 keeps them in order.
        spool_bytes: Most bytes in the spool; then the pipe waits.
        when_full: What a full spool does: `block`, or `drop_newest` (counted).
        timezone: Zone of timestamps that name none; empty is the machine's.
        resource: `key=value` attributes of every record.
        tls_ca: File of CA certificates, PEM; empty uses the system's.
        tls_cert: File of the client certificate for mTLS, PEM.
        tls_key: File of the client certificate's key.
    """

    gateway: str
    durability: Durability = Durability.DURABLE
    spool: Path = Path(".sluice-agent/forward")
    key: Path | None = None
    agent_id: str | None = None
    drain_s: float = 10.0
    batch_bytes: int = 4 * 1024 * 1024
    batch_records: int = 100_000
    batch_age_s: float = 1.0
    uploads: int = 4
    spool_bytes: int = 1024 * 1024 * 1024
    when_full: WhenFull = WhenFull.BLOCK
    timezone: str = ""
    resource: tuple[str, ...] = ()
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def for_agent(self) -> AgentSettings:
        """Gives the agent's settings of the same meaning."""
        return AgentSettings(
            gateway=self.gateway,
            spool=self.spool,
            key=self.key,
            agent_id=self.agent_id or default_agent_id(),
            drain_s=self.drain_s,
            batch_bytes=self.batch_bytes,
            batch_records=self.batch_records,
            batch_age_s=self.batch_age_s,
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
    """Ships standard input until it ends; exits 1 when something was parked, dropped or left."""
    agent = with_key(settings.for_agent())
    outcome = run_until_signal(
        lambda stop: run_forward(
            agent, durability=settings.durability, descriptor=sys.stdin.fileno(), stop=stop
        )
    )
    emit(outcome, as_json=json, human=lambda console: draw_outcome(console, outcome))
    return exit_code(outcome, all_accepted=settings.durability is Durability.ACCEPTED)
