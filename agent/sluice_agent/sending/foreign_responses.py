"""Responses of servers that are not gateways: how they delay a batch, and when they park it.

A mistyped URL, a proxy or a firewall responds to uploads too. Its response decides nothing about a
batch, so the batch is sent again. If no gateway responds at all, the fault is in the route, and no
batch is parked, however long it lasts. If gateways accept other batches meanwhile, the fault is in
what the proxy does with this batch, and it is parked after many refusals. Source: ADR 18.
"""

from dataclasses import dataclass, replace
from typing import Final

import structlog

from sluice_agent.errors import NotAGateway
from sluice_agent.metrics import AgentMetrics
from sluice_agent.sending.gateway_choice import GatewayTarget
from sluice_agent.sending.upload_decisions import GatewayResponse
from sluice_agent.spool.spool import SpooledBatch
from sluice_protocol.clock import Clock
from sluice_protocol.units import NS_PER_S
from sluice_protocol.upload_http import UPLOAD_PATH
from sluice_web.rare_warnings import RareWarnings

REFUSALS_MIN: Final = 10
"""Refusals of a batch, each followed by an upload that a gateway decided, before it is parked."""
REFUSED_S_MIN: Final = 3600.0
"""Time since the first refusal, so that reconfiguring a proxy parks nothing."""
STOP_S: Final = 60.0
"""A run that waits for acceptance ends after this time with foreign responses only."""

_log: Final = structlog.get_logger("sluice.agent.uploader")


def describe_foreign_server(target: GatewayTarget, response: GatewayResponse) -> str:
    """Describe what responded, and what to check."""
    address = f" ({target.address})" if target.address else ""
    content = response.code or response.media_type or "no content type"
    return (
        f"{target.url.rstrip('/')}{UPLOAD_PATH}{address} responded with {response.status} and"
        f" {content}, which is not the response of a sluice gateway:"
        " check --gateway and the proxies in front of it"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRefusals:
    """The foreign responses to one batch.

    Attributes:
        counted: Responses that were followed by an upload that a gateway decided.
        decided: The uploads that gateways had decided at the last response.
    """

    first_s: float
    counted: int = 0
    decided: int = 0

    def again(self, decided: int) -> "BatchRefusals":
        """Return the state after another foreign response.

        `decided` counts the uploads that gateways have decided in this run.
        """
        passed = decided > self.decided
        return replace(self, counted=self.counted + passed, decided=decided)

    def is_final(self, now_s: float) -> bool:
        """Return True if the batch is to be parked."""
        return self.counted >= REFUSALS_MIN and now_s - self.first_s >= REFUSED_S_MIN


class ForeignResponses:
    """The foreign responses of one run.

    Attributes:
        rounds: How often every gateway gave one, since a gateway last decided about a batch.
        problem: The last one, while `rounds` is not 0; otherwise empty.
    """

    def __init__(self, clock: Clock, metrics: AgentMetrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._warnings = RareWarnings(clock)
        self._refusals: dict[int, BatchRefusals] = {}
        self._decided = 0
        self._since_s = 0.0
        self.rounds = 0
        self.problem = ""

    def report(self, target: GatewayTarget, response: GatewayResponse) -> None:
        """Log a foreign response, at most once a minute for each gateway."""
        if self._warnings.may_warn(str(target)):
            _log.error(
                "not_a_gateway",
                gateway=str(target),
                status=response.status,
                reason=describe_foreign_server(target, response),
            )

    def refuse(
        self, batch: SpooledBatch, target: GatewayTarget, response: GatewayResponse
    ) -> BatchRefusals:
        """Record that every gateway gave a foreign response to a batch; return those to it."""
        now_s = self._clock.monotonic_ns() / NS_PER_S
        if not self.rounds:
            self._since_s = now_s
        self.rounds += 1
        self.problem = describe_foreign_server(target, response)
        self._metrics.misdirected.set(1)
        known = self._refusals.get(batch.header.order)
        refusals = (
            BatchRefusals(first_s=now_s, decided=self._decided)
            if known is None
            else known.again(self._decided)
        )
        self._refusals[batch.header.order] = refusals
        return refusals

    def check_route(self) -> None:
        """Raise `NotAGateway` if all responses of the last `STOP_S` were foreign."""
        now_s = self._clock.monotonic_ns() / NS_PER_S
        if self.rounds and now_s - self._since_s >= STOP_S:
            raise NotAGateway(self.problem)

    def decided(self) -> None:
        """Record that a gateway decided about a batch."""
        self._decided += 1
        self.responded()

    def responded(self) -> None:
        """Record that not every response was foreign."""
        self.rounds = 0
        self.problem = ""
        self._metrics.misdirected.set(0)

    def forget(self, batch: SpooledBatch) -> None:
        """Drop what is known about a batch that is settled."""
        self._refusals.pop(batch.header.order, None)
