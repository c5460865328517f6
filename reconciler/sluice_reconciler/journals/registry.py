"""Which gateways write journals; journals decide the frontier only if all gateways do.

A registration may be lost, and another program may write manifests. A batch is without a journal
if its collector has no registration that is older than the batch. Journals decide only after a full
pass during which no route met such a batch. As soon as one is met, full passes decide again.
"""

from collections.abc import Sequence
from typing import Final

import structlog

from sluice_protocol.journals import GatewayProcess
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_reconciler.discovery import DiscoveryStore
from sluice_reconciler.journals.progress import SKEW_S
from sluice_reconciler.metrics import ReconcilerMetrics

log = structlog.get_logger()

COLLECTORS_MAX: Final = 1_000
"""Collectors without a registration that are remembered; further ones change nothing."""


class GatewayRegistry:
    """The registered gateways, and whether every gateway is registered."""

    def __init__(self, discovery: DiscoveryStore, metrics: ReconcilerMetrics) -> None:
        self._discovery = discovery
        self._metrics = metrics
        self._starts: dict[str, int] = {}
        self._suspects: dict[str, int] = {}
        self._checked: dict[str, int] = {}
        self._reported: set[str] = set()
        self._unregistered = 0
        self._marked = 0
        self._passed: tuple[UnixNs, int] | None = None

    @property
    def is_journaled(self) -> bool:
        """Whether journals decide the frontier."""
        return bool(self._starts) and self._discovery.record.journaled_since_unix_ns is not None

    def observe_batches(self, manifests: Sequence[AcceptedManifest]) -> None:
        """Remember collectors that accepted a batch before any known registration of theirs."""
        since_ns = self._discovery.record.journaled_since_unix_ns or 0
        for one in manifests:
            at_ns = one.accepted_at_unix_ns
            if at_ns < since_ns or self._is_registered(one.collector_id, at_ns):
                continue
            if len(self._suspects) < COLLECTORS_MAX:
                oldest_ns = self._suspects.get(one.collector_id, at_ns)
                self._suspects[one.collector_id] = min(oldest_ns, at_ns)

    def _is_registered(self, collector_id: str, at_ns: int) -> bool:
        started_ns = self._starts.get(collector_id)
        return started_ns is not None and started_ns <= at_ns + SKEW_S * NS_PER_S

    def begin_listing(self) -> None:
        """Select the collectors that the listing of registrations which follows decides about."""
        self._checked, self._suspects = self._suspects, {}

    async def observe_registrations(self, registrations: Sequence[GatewayProcess]) -> None:
        """Decide whether every gateway is registered, by a listing that has just been read."""
        starts: dict[str, int] = {}
        for one in registrations:
            started_ns = starts.get(one.collector_id, one.started_at_unix_ns)
            starts[one.collector_id] = min(started_ns, one.started_at_unix_ns)
        self._starts = starts
        checked, self._checked = self._checked, {}
        found = [name for name, at_ns in checked.items() if not self._is_registered(name, at_ns)]
        if found:
            self._unregistered += 1
            self._report(found)
            if self._discovery.record.journaled_since_unix_ns is not None:
                await self._discovery.set_journaled_since(None)
        passed, self._passed = self._passed, None
        is_decided = self._discovery.record.journaled_since_unix_ns is not None
        if passed is None or passed[1] != self._unregistered or not starts or is_decided:
            return
        await self._discovery.set_journaled_since(passed[0])
        log.info("journals_decide_frontier", since_ns=passed[0], gateways=len(starts))

    def _report(self, collectors: Sequence[str]) -> None:
        self._metrics.unjournaled_gateways.inc(len(collectors))
        if not self._starts:
            return  # no gateway writes journals yet
        for name in collectors:
            if name not in self._reported and len(self._reported) < COLLECTORS_MAX:
                self._reported.add(name)
                log.warning("gateway_without_journal", gateway=name)

    def begin_pass(self) -> None:
        """Begin to observe whether a full pass meets a gateway that writes no journal."""
        self._marked = self._unregistered

    def end_pass(self, began_ns: UnixNs) -> None:
        """Let journals decide from the next listing on, if the pass met no such gateway."""
        self._passed = (began_ns, self._marked)
